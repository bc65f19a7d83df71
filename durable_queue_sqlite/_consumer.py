"""The right to consume a file: one at a time, given back at the latest when the process ends (S7.9)."""

from __future__ import annotations

from filelock import FileLock, Timeout

from durable_queue.errors import QueueInUseError


class ConsumerClaim:
    """A lock on a file beside the database; for a database in memory, on the object.

    The operating system drops the lock with the process. A forked child does not keep it: filelock closes the
    inherited descriptor there.

    Args:
        path: the resolved path of the database, or None for one in memory.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        # Not per thread: a queue takes the claim in one thread and may close in another.
        self._lock = None if path is None else FileLock(path + ".lock", mode=0o600, thread_local=False)
        self._is_held = False

    def acquire(self) -> None:
        """Take the claim.

        Raises:
            QueueInUseError: it is taken, through this object, another one, or by another process.
        """
        if self._is_held:
            raise QueueInUseError(
                f"{self._path or 'this storage'}: a live queue consumes it through this object already"
            )
        if self._lock is not None:
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise QueueInUseError(
                    f"{self._path}: another live queue consumes this file, in this or another process"
                ) from None
        self._is_held = True

    def release(self) -> None:
        """Give it back; a no-op without one."""
        if self._is_held:
            self._is_held = False
            if self._lock is not None:
                self._lock.release()
