"""The storage contract as tests: what every adapter must do, checked by area.

An adapter author subclasses `QueueStorageContract` in a test module and overrides one fixture:

    class TestMyStorage(QueueStorageContract):
        durable = True

        @pytest.fixture
        def open_storage(self, tmp_path):
            return lambda: MyStorage.open(tmp_path / "queue.db")

Each test names the clauses of ``docs/reference/storage-contract.md`` that it checks.
"""

import pytest

# Before the areas are imported: an adapter's author sees the values that differ only if their asserts are rewritten.
pytest.register_assert_rewrite(
    "contract_tests._ahead",
    "contract_tests._apply",
    "contract_tests._concurrency",
    "contract_tests._consumer",
    "contract_tests._dependents",
    "contract_tests._durability",
    "contract_tests._expiry",
    "contract_tests._keys",
    "contract_tests._paging",
    "contract_tests._queries",
    "contract_tests._readiness",
    "contract_tests._records",
    "contract_tests._unreadable",
    "contract_tests._walk",
)

from contract_tests._ahead import AheadArea  # noqa: E402 - after the registration above
from contract_tests._apply import ApplyArea  # noqa: E402
from contract_tests._base import Damage, OpenStorage, make_task  # noqa: E402
from contract_tests._concurrency import ConcurrencyArea  # noqa: E402
from contract_tests._consumer import ConsumerArea  # noqa: E402
from contract_tests._dependents import DependentsArea  # noqa: E402
from contract_tests._durability import DurabilityArea  # noqa: E402
from contract_tests._expiry import ExpiryArea  # noqa: E402
from contract_tests._keys import KeysArea  # noqa: E402
from contract_tests._paging import PagingArea  # noqa: E402
from contract_tests._queries import QueriesArea  # noqa: E402
from contract_tests._readiness import ReadinessArea  # noqa: E402
from contract_tests._records import RecordsArea  # noqa: E402
from contract_tests._unreadable import UnreadableArea  # noqa: E402
from contract_tests._walk import WalkArea  # noqa: E402

__all__ = ["Damage", "OpenStorage", "QueueStorageContract", "make_task"]


class QueueStorageContract(
    RecordsArea,
    QueriesArea,
    PagingArea,
    ReadinessArea,
    AheadArea,
    KeysArea,
    DependentsArea,
    ExpiryArea,
    ApplyArea,
    ConcurrencyArea,
    DurabilityArea,
    ConsumerArea,
    UnreadableArea,
    WalkArea,
):
    """Every test of the contract. Subclass it under a name that begins with ``Test`` and override `open_storage`.

    The flags `durable`, `answers_expiry`, `claims_whole_store` and the fixture `damage` widen what is checked; what
    they leave out is skipped with a sentence.
    """
