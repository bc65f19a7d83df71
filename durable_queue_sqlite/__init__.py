"""A storage for `durable_queue` in one SQLite file.

It uses nothing of `durable_queue` that another adapter could not use, and is a complete one to compare with.
"""

from durable_queue_sqlite.storage import SqliteQueueStorage

__all__ = ["SqliteQueueStorage"]
