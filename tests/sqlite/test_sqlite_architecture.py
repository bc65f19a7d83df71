"""What the adapter is made of: what any adapter could use, in files of a readable size."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import durable_queue_sqlite

FILES = sorted(Path(durable_queue_sqlite.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_nothing_of_the_inside_of_durable_queue_is_imported(file: Path) -> None:
    """S13.8: an outsider can write such an adapter: neither the engine nor the core is imported."""
    imported: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module))
    private = {name for name in imported if name.startswith("durable_queue._")}

    assert private == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_files_stay_short(file: Path) -> None:
    """S1.1: a file that has grown past 450 lines has two reasons to change."""
    assert len(file.read_text("utf-8").splitlines()) <= 450
