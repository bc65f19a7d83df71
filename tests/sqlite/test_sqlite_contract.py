"""The SQLite storage keeps the storage contract, all of it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from contract_tests import Damage, OpenStorage, QueueStorageContract
from durable_queue_sqlite import SqliteQueueStorage
from tests.sqlite.support import execute


class TestSqliteQueueStorage(QueueStorageContract):
    durable: ClassVar[bool] = True
    answers_expiry: ClassVar[bool] = True
    claims_whole_store: ClassVar[bool] = True

    @pytest.fixture
    def open_storage(self, tmp_path: Path) -> OpenStorage:
        return lambda: SqliteQueueStorage.open(tmp_path / "queue.db")

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        async def damage(task_id: str) -> None:
            execute(tmp_path / "queue.db", "UPDATE tasks SET details = '{' WHERE id = ?", task_id)

        return damage
