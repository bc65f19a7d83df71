"""How the broken storages of this directory become test classes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from contract_tests import QueueStorageContract
from durable_queue import StoredTask

AREA_OF: dict[str, str] = {}
"""For each test class of a broken storage, the area that has to notice."""


def breaks(area: str, **flags: Any) -> Callable[[type], type]:
    """Put a test class of a broken storage into its module. `kept` opens the same object each time."""
    kept = flags.pop("kept", False)

    def decorate(storage: type) -> type:
        @pytest.fixture
        def open_storage(self):
            if not kept:
                return storage
            instance = storage()
            return lambda: instance

        name = f"Test{storage.__name__}"
        # Short walks, because Hypothesis takes long to shrink long ones.
        defaults = {"answers_expiry": True, "walk_examples": 100, "walk_steps": 8}
        case = type(name, (QueueStorageContract,), {**defaults, **flags, "open_storage": open_storage})
        setattr(sys.modules[storage.__module__], name, case)
        AREA_OF[name] = area
        return storage

    return decorate


def order(task: StoredTask) -> tuple[datetime, int, str]:
    """Return what lists are sorted by."""
    return (task.created_at, task.sequence, task.id)
