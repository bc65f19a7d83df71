"""The source files of the repository, and what they import when they run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("durable_queue", "durable_queue_sqlite", "contract_tests")


def files(package: str) -> list[Path]:
    """The Python files below a folder of the repository."""
    return sorted(path for path in (ROOT / package).rglob("*.py") if "__pycache__" not in path.parts)


def module_name(file: Path) -> str:
    """The dotted name under which a file is imported."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(file): file for package in PACKAGES for file in files(package)}


def imports(file: Path) -> set[str]:
    """The modules that a file imports anywhere but for type checking; names of modules, not of what is in them."""
    found: set[str] = set()
    for node in _statements(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            module = str(node.module)
            members = {f"{module}.{alias.name}" for alias in node.names}
            found |= members & MODULES.keys() or {module}
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _statements(child)
