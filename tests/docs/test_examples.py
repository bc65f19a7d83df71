"""Every example of the documentation runs.

The Python blocks of a page share a namespace and run in order, in an empty folder. A block with a title shows a part
of the file of that name and must stand there. A block behind ``<!-- not-run: reason -->`` is compiled only, and a
console block behind ``<!-- run -->`` is run line by line, in a folder that holds a copy of ``docs``.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks, name_of

LANGUAGES = {"", "console", "python", "text", "toml", "sql", "json", "mermaid"}


def compiled(page: Path, block: Block) -> types.CodeType:
    """The code of a block, with its own lines in tracebacks; it may await where it stands."""
    source = "\n" * (block.line - 1) + block.code
    code: Any = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    assert isinstance(code, types.CodeType)
    return code


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python blocks of a page run one after the other, as a reader would run them."""
    monkeypatch.chdir(tmp_path)
    # Classes find their module here when their annotations are resolved.
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    with asyncio.Runner() as runner:
        for block in blocks(page):
            if block.language != "python" or block.title:
                continue
            code = compiled(page, block)
            if block.comment.startswith("not-run"):
                assert block.comment.removeprefix("not-run").strip(": "), f"{page}:{block.line}: say why"
            elif code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, module.__dict__))
            else:
                exec(code, module.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_an_excerpt_stands_in_its_file(page: Path) -> None:
    """A block with a title shows lines that stand in the file of that name, as they are."""
    for block in blocks(page):
        if block.title:
            found = [*(ROOT / "docs").rglob(block.title), *(ROOT / "tests").rglob(block.title)]
            assert found, f"{page}:{block.line}: there is no {block.title}"
            assert any(block.code in file.read_text("utf-8") for file in found), f"{page}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """The console blocks that are marked with `run` end well."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for block in blocks(page):
        if block.language == "console" and block.comment == "run":
            lines = [line.removeprefix("$ ") for line in block.code.splitlines()]
            subprocess.run(
                ["sh", "-e", "-c", "\n".join(lines)],
                cwd=tmp_path,
                env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                check=True,
                timeout=120,
            )


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    """A misspelt language would keep a block from being run."""
    assert {block.language for block in blocks(page)} <= LANGUAGES


def test_blocks_are_found(tmp_path: Path) -> None:
    """The runner sees what a reader sees: languages, titles, comments and lines, also in a list."""
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n```python\nx = 1\n```\n\n<!-- not-run: needs a server -->\n\n```python\ny = 2\n```\n\n"
        'Text.\n\n```python title="a.py"\nz = 3\n```\n\n- item\n\n  ```console\n  $ ls\n  ```\n',
        encoding="utf-8",
    )

    assert blocks(page) == [
        Block(4, "python", "", "", "x = 1\n"),
        Block(10, "python", "", "not-run: needs a server", "y = 2\n"),
        Block(16, "python", "a.py", "", "z = 3\n"),
        Block(22, "console", "", "", "$ ls\n"),
    ]
