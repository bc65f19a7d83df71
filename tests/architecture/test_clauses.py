"""Every promise of the documentation has a test that names it, and no test names a promise that does not exist."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, files

CLAUSE = re.compile(r"\b[SC]\d+\.\d+\b")
DEFINED = re.compile(r"\*\*([SC]\d+\.\d+)\*\*")
PAGES = ("semantics.md", "storage-contract.md")

WITHOUT_BEHAVIOUR: dict[str, str] = {}
"""Clauses that no test can prove, each with the reason."""


def defined(page: str) -> set[str]:
    """The clauses that a page of the reference states."""
    return set(DEFINED.findall((ROOT / "docs" / "reference" / page).read_text("utf-8")))


def cited_by_tests(file: Path) -> set[str]:
    """The clauses that the docstrings of tests and rules, and the comments of a file, cite."""
    source = file.read_text("utf-8")
    texts = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _proves(node)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    texts += [token.string for token in tokens if token.type == tokenize.COMMENT]
    return {clause for text in texts for clause in CLAUSE.findall(text)}


def _proves(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    decorators = {ast.unparse(decorator).split("(")[0] for decorator in node.decorator_list}
    return node.name.startswith("test_") or bool(decorators & {"rule", "invariant"})


@pytest.mark.parametrize("page", PAGES)
def test_every_clause_is_cited_by_a_test(page: str) -> None:
    """Whoever reads a promise finds its proof by its number."""
    clauses = defined(page)
    cited = {
        clause
        for folder in ("tests", "contract_tests")
        for file in files(folder)
        for clause in cited_by_tests(file)
    }
    missing = clauses - cited - WITHOUT_BEHAVIOUR.keys()

    assert clauses, "the page states no clause: is its form **S1.1** still?"
    assert not missing, f"no test cites {', '.join(sorted(missing, key=_order))}"


def test_no_reason_is_kept_for_a_clause_that_is_gone() -> None:
    """An exception is for a clause that stands on a page."""
    assert set().union(*map(defined, PAGES)) >= WITHOUT_BEHAVIOUR.keys()


@pytest.mark.parametrize("folder", [*PACKAGES, "tests", "docs"])
def test_every_clause_that_is_cited_stands_on_a_page(folder: str) -> None:
    """A number that stands nowhere is a mistake of writing, or a promise that was taken back."""
    clauses = set().union(*map(defined, PAGES))
    wrong = {
        f"{file.relative_to(ROOT)}: {clause}"
        for file in [*files(folder), *(ROOT / folder).rglob("*.md")]
        for clause in CLAUSE.findall(file.read_text("utf-8"))
        if clause not in clauses
    }

    assert sorted(wrong) == []


def _order(clause: str) -> tuple[str, int, int]:
    section, number = clause[1:].split(".")
    return clause[0], int(section), int(number)
