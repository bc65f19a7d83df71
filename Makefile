# `make` alone lists the targets. Another Python: `make test PYTHON=python3.12`.

PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .venv-bench
DIST ?= dist
BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c "import sys; print('%d.%d' % sys.version_info[:2])" 2>/dev/null || echo missing)
INSTALL := -m pip install --quiet --disable-pip-version-check

# Installed again only when pyproject.toml has changed or another Python is asked for.
RUN_READY := $(VENV)/.ready-to-run-$(VERSION)
TEST_READY := $(VENV)/.ready-to-test-$(VERSION)
BENCH_READY := $(BENCH_VENV)/.ready-to-bench-$(VERSION)

.DEFAULT_GOAL := help
.PHONY: help run test lint types check build kill-sweep bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(RUN_READY) ## Run sample jobs, kill the run, and watch it resume
	@$(BIN)/python docs/examples/kill_and_resume.py

test: $(TEST_READY) ## Run all tests
	$(BIN)/python -m pytest $(TESTS)

lint: $(TEST_READY) ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(TEST_READY) ## Check types
	$(BIN)/mypy

check: lint types test ## Everything that must pass before a commit

build: $(TEST_READY) ## Build the wheel and the source archive
	$(BIN)/python -m build --outdir $(DIST)

kill-sweep: $(TEST_READY) ## Kill a run at 50 random moments and look for lost or repeated jobs
	$(BIN)/python tests/command/kill_sweep.py --kills 50

# Some of it: `make bench ONLY="throughput latency"`. A trial of a few seconds: `make bench QUICK=1`.
# On another disk: `make bench FOLDER=/mnt/disk`. Into docs/explanation/performance.md: `make bench WRITE=1`.
bench: $(BENCH_READY) ## Measure speed and scale beside other queues
	@$(BENCH_VENV)/bin/python -m tests.benchmarks $(ONLY) $(if $(QUICK),--quick) $(if $(WRITE),--write) \
		$(if $(FOLDER),--folder "$(FOLDER)")

clean: ## Remove what was built, installed and cached here
	rm -rf $(VENV) $(BENCH_VENV) $(DIST) build run-demo *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.made-by-$(VERSION) $(BENCH_VENV)/.made-by-$(VERSION):
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { \
		echo "durable_queue needs Python 3.11 or newer; '$(PYTHON)' is: $(VERSION)."; \
		echo "Name another one, for example: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	@test "$$($(@D)/bin/python -c "import sys; print('%d.%d' % sys.version_info[:2])" 2>&1)" = "$(VERSION)" \
		|| $(PYTHON) -m venv --clear $(@D)
	@touch $@

$(RUN_READY): pyproject.toml $(VENV)/.made-by-$(VERSION)
	$(BIN)/python $(INSTALL) --editable .
	@touch $@

$(TEST_READY): pyproject.toml $(VENV)/.made-by-$(VERSION)
	$(BIN)/python $(INSTALL) --editable ".[dev]"
	@touch $(RUN_READY) $@

$(BENCH_READY): pyproject.toml tests/benchmarks/requirements.txt $(BENCH_VENV)/.made-by-$(VERSION)
	$(BENCH_VENV)/bin/python $(INSTALL) --editable . --requirement tests/benchmarks/requirements.txt
	@touch $@
