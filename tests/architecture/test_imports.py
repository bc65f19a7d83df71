"""Who may import whom; read from the sources, so that it holds for code that no test runs."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys

import pytest

from tests.architecture.sources import MODULES, PACKAGES, ROOT, files, imports

# From the bottom up: a module imports from its own floor and from those below.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"_json", "_reader", "_refusals", "_text", "clock", "errors"}),
    frozenset({"changes", "events", "outcomes", "retry", "tasks"}),
    frozenset({"_core"}),
    frozenset(
        {"_collection_hooks", "_fake_clock", "_flaky_storage", "_hooks", "memory", "serialization", "storage"}
    ),
    frozenset({"_engine", "graph"}),
    frozenset({"_verbs", "queue"}),
    frozenset({"testing"}),
)
FACE = {"", "__main__", "_command"}
"""What stands outside the house and uses it: the package itself, and the command."""

QUEUE_MODULES = [name for name in MODULES if name.split(".")[0] == "durable_queue"]
ADAPTER_MODULES = [name for name in MODULES if name.split(".")[0] != "durable_queue"]


def room(module: str) -> str:
    """The part of `durable_queue` that a module belongs to: `durable_queue._core.plan` to `_core`."""
    return module.removeprefix("durable_queue").lstrip(".").split(".")[0]


def floor(module: str) -> int:
    """The floor that a module lives on."""
    for number, rooms in enumerate(FLOORS):
        if room(module) in rooms:
            return number
    pytest.fail(f"{module} has no floor yet: give it one in FLOORS")


@pytest.mark.parametrize("module", [name for name in QUEUE_MODULES if room(name) not in FACE])
def test_a_module_imports_from_its_own_floor_or_below(module: str) -> None:
    """Decisions know nothing of the engine, values nothing of decisions, and nobody of the public face."""
    for imported in imports(MODULES[module]):
        if imported.split(".")[0] == "durable_queue":
            assert room(imported) not in FACE, imported
            assert floor(imported) <= floor(module), f"{module} imports {imported} from above"


def test_no_module_imports_itself_over_others() -> None:
    """There is an order in which the modules can be loaded."""
    graph = {name: imports(file) & MODULES.keys() - {name} for name, file in MODULES.items()}

    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(MODULES)


@pytest.mark.parametrize("module", [name for name in QUEUE_MODULES if room(name) == "_core"])
def test_the_core_knows_no_clock_no_chance_no_loop_and_no_log(module: str) -> None:
    """S12.1: the decisions are pure: neither event loop, time, chance, log nor database is imported."""
    outside = {name.split(".")[0] for name in imports(MODULES[module])}

    assert not outside & {
        "asyncio",
        "logging",
        "os",
        "random",
        "secrets",
        "sqlite3",
        "threading",
        "time",
        "uuid",
    }


@pytest.mark.parametrize("module", [name for name in QUEUE_MODULES if room(name) not in FACE])
def test_the_queue_needs_attrs_cattrs_and_sortedcontainers_only(module: str) -> None:
    """Nothing below the public face needs a database driver, a test tool or the adapter."""
    outside = {name.split(".")[0] for name in imports(MODULES[module])} - sys.stdlib_module_names

    assert outside <= {"attrs", "cattrs", "durable_queue", "sortedcontainers"}
    assert "sqlite3" not in imports(MODULES[module])


@pytest.mark.parametrize(
    "module", [name for name in QUEUE_MODULES if room(name) not in {"clock", "_command"}]
)
def test_the_time_is_read_in_one_place(module: str) -> None:
    """S12.1: only the clock asks the computer for the time."""
    assert "time" not in imports(MODULES[module])
    for node in ast.walk(ast.parse(MODULES[module].read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in {"now", "today", "utcnow", "fromtimestamp"}:
            assert ast.unparse(node.value) not in {"datetime", "date", "datetime.datetime"}, ast.unparse(node)


@pytest.mark.parametrize("module", ADAPTER_MODULES)
def test_an_adapter_uses_what_an_outsider_could_use(module: str) -> None:
    """S13.8: adapter and contract tests import public modules of the queue, and its JSON text."""
    private = {name for name in imports(MODULES[module]) if name.startswith("durable_queue._")}

    assert private == set()


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith("contract_tests")])
def test_what_is_installed_needs_no_test_tool(module: str) -> None:
    """Only the contract tests need a test tool: pytest and hypothesis are imported nowhere else."""
    assert not {name.split(".")[0] for name in imports(MODULES[module])} & {
        "hypothesis",
        "pytest",
        "freezegun",
    }


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import durable_queue", ["aiosqlite", "sqlite3", "filelock", "pytest", "hypothesis", "freezegun"]),
        ("import durable_queue.testing", ["aiosqlite", "sqlite3", "filelock", "pytest", "hypothesis"]),
        ("import durable_queue_sqlite", ["pytest", "hypothesis", "freezegun", "contract_tests"]),
        ("import durable_queue.__main__", ["aiosqlite", "sqlite3", "durable_queue_sqlite", "pytest"]),
    ],
)
def test_an_import_loads_no_more_than_it_needs(statement: str, absent: list[str]) -> None:
    """Who imports the queue loads neither a database driver nor a test tool."""
    program = f"import sys\n{statement}\nprint(*(name for name in {absent!r} if name in sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split()

    assert loaded == []


LIMIT = 450
LONG_FILES: dict[str, str] = {}
"""Files that may be longer, each with the reason."""


def test_files_stay_of_a_readable_size() -> None:
    """A file that has grown past 450 lines has more than one reason to change; an exception has its own."""
    lengths = {
        str(file.relative_to(ROOT).as_posix()): len(file.read_text("utf-8").splitlines())
        for folder in (*PACKAGES, "tests", "docs")
        for file in files(folder)
    }
    long = {name for name, length in lengths.items() if length > LIMIT}

    assert long == LONG_FILES.keys()
