"""The changes that a step asks of a storage, as values: entries of the list that `QueueStorage.apply` takes."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from durable_queue.tasks import StoredTask


@attrs.frozen
class Save:
    """Insert a new record. In `QueueStorage.apply` an equal record under its id counts as done (S13.3)."""

    task: StoredTask


@attrs.frozen
class Update:
    """Replace the record of an existing id."""

    task: StoredTask


@attrs.frozen
class Delete:
    """Remove an id; a no-op when it is gone."""

    task_id: str


Change: TypeAlias = Save | Update | Delete
"""One entry of the ordered list."""
