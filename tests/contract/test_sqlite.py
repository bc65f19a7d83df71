"""The SQLite storage keeps the storage contract."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from contract_tests import Damage, OpenStorage, QueueStorageContract
from durable_queue_sqlite import SqliteQueueStorage


class TestSqliteQueueStorage(QueueStorageContract):
    """Every part of the contract, the optional ones included."""

    durable = True
    answers_expiry = True
    claims_whole_store = True

    @pytest.fixture
    def open_storage(self, tmp_path: Path) -> OpenStorage:
        """Open the same file each time."""
        return lambda: SqliteQueueStorage(tmp_path / "queue.db")

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        """Write something else in the place of a record's retry policy."""

        async def damage(task_id: str) -> None:
            with closing(sqlite3.connect(tmp_path / "queue.db")) as connection, connection:
                connection.execute("UPDATE tasks SET retry_policy = 'no policy' WHERE id = ?", (task_id,))

        return damage
