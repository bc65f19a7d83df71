"""What the author of an adapter meets: a test module of a few lines, in either mode of pytest-asyncio."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mode", ["strict", "auto"])
def test_a_failure_shows_the_field(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """In the project of an adapter's author the contract runs, fails where it must, and shows what differs."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    pytester.makeini(
        f"[pytest]\nasyncio_mode = {mode}\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"
    )
    pytester.makepyfile(
        """
        import attrs
        import pytest
        from contract_tests import QueueStorageContract
        from durable_queue import MemoryQueueStorage

        class Forgetful(MemoryQueueStorage):
            async def save(self, task):
                await super().save(attrs.evolve(task, idempotency_key=None))

        class TestForgetful(QueueStorageContract):
            walk_examples = 2
            durable = False

            @pytest.fixture
            def open_storage(self):
                return Forgetful
        """
    )
    areas = "every_field_comes_back or dependents_come_in_order or random_walk or outlive"
    result = pytester.runpytest_subprocess("-k", areas, "-rs", "-p", "no:cacheprovider")

    result.assert_outcomes(passed=3, failed=1, skipped=2)
    result.stdout.fnmatch_lines(["E *{'idempotency_key': {'found': None, 'wanted': 'idem-1'}}"])
    result.stdout.fnmatch_lines(["SKIPPED*this adapter does not outlive its process: durable is not set"])


def test_a_forgotten_fixture_is_explained(pytester: pytest.Pytester) -> None:
    """A subclass that does not override the fixture is told which one, and what it returns."""
    pytester.makepyfile(
        """
        from contract_tests import QueueStorageContract

        class TestNothing(QueueStorageContract):
            pass
        """
    )
    result = pytester.runpytest_inprocess(
        "-k", "test_an_unknown_id", "-o", "asyncio_default_fixture_loop_scope=function"
    )

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*NotImplementedError: TestNothing must override the fixture open_storage; *"]
    )
