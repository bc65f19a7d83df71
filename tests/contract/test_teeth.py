"""The contract notices what is broken: each broken storage fails the area that is about its fault."""

from __future__ import annotations

from collections import defaultdict

import pytest

from contract_tests import QueueStorageContract
from tests.contract import broken_heads, broken_queries, broken_writes
from tests.contract.breaking import AREA_OF


class Outcomes:
    """A plugin that keeps, of each broken storage, the tests of the area that has to notice, and their outcomes."""

    def __init__(self) -> None:
        self.failed: dict[str, list[str]] = defaultdict(list)
        self.passed: dict[str, list[str]] = defaultdict(list)

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if _is_wanted(item.nodeid)]

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        _, case, test = report.nodeid.split("::")
        if report.when == "call" and report.failed:
            self.failed[case].append(test)
        elif report.when == "call" and report.passed:
            self.passed[case].append(test)


def _is_wanted(node_id: str) -> bool:
    _, case, test = node_id.split("::")
    area = getattr(QueueStorageContract, test).__module__
    return case not in AREA_OF or area == f"contract_tests._{AREA_OF[case]}"


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """Run the contract on all broken storages, once."""
    plugin = Outcomes()
    options = ["-q", "-p", "no:cacheprovider", "--no-header", "--tb=no"]
    broken = [module.__file__ for module in (broken_heads, broken_queries, broken_writes)]
    pytest.main([*broken, *options], plugins=[plugin])
    return plugin


@pytest.mark.parametrize("case", sorted(AREA_OF))
def test_a_broken_storage_fails(case: str, outcomes: Outcomes) -> None:
    """A storage with one fault fails at least one test of the area that is about it."""
    assert outcomes.failed[case] != []


def test_an_unbroken_storage_passes(outcomes: Outcomes) -> None:
    """The reference storage, run in the same way, fails nothing."""
    assert outcomes.failed["TestUnbroken"] == []
    assert len(outcomes.passed["TestUnbroken"]) > 80
