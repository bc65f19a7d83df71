"""The adapter that the how-to builds keeps the contract, and the page shows what is in the file."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from contract_tests import OpenStorage, QueueStorageContract, make_task
from durable_queue import QueueStorage, StorageError

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "json_file_storage.py"
PAGE = DOCS / "how-to" / "write-a-storage-adapter.md"

_spec = importlib.util.spec_from_file_location("json_file_storage", EXAMPLE)
assert _spec is not None
assert _spec.loader is not None
_example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_example)
JsonFileStorage = _example.JsonFileStorage


class TestJsonFileStorage(QueueStorageContract):
    durable = True

    @pytest.fixture
    def open_storage(self, tmp_path: Path) -> OpenStorage:
        return lambda: JsonFileStorage(tmp_path / "queue.json")


def test_the_page_shows_what_is_in_the_files():
    """Every excerpt in the how-to stands, word for word, in the file that its title names."""
    files = {"json_file_storage.py": EXAMPLE, "test_json_file.py": Path(__file__)}
    blocks = re.findall(
        r'^```python title="([^"]+)"\n(.*?)^```$', PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )

    assert len(blocks) == PAGE.read_text("utf-8").count("```python")
    for name, block in blocks:
        assert block in files[name].read_text("utf-8")


def test_the_example_has_the_thirteen_methods_and_nothing_optional():
    """The example implements what every adapter must, and shows no more than that and `close`."""
    assert JsonFileStorage.__abstractmethods__ == frozenset()
    overridden = {name for name in vars(JsonFileStorage) if not name.startswith("_")}
    assert overridden == QueueStorage.__abstractmethods__ | {"close"}


def test_the_example_is_short():
    """The example has fewer than 125 lines."""
    assert len(EXAMPLE.read_text("utf-8").splitlines()) < 125


@pytest.mark.asyncio
async def test_an_adapter_that_ignores_after_is_told(tmp_path: Path) -> None:
    """C4.12: the defaults, which walk in pages, refuse a page that they had already instead of walking for ever."""

    class IgnoresAfter(JsonFileStorage):
        async def get_by_status(self, status, *, limit=None, after=None):
            return await super().get_by_status(status, limit=limit)

    async with IgnoresAfter(tmp_path / "queue.json") as storage:
        await storage.save(make_task())
        with pytest.raises(StorageError, match=r"IgnoresAfter.*ignores `after`"):
            await storage.count_by_status()
