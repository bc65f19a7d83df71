"""The page of the storage contract and the contract tests say the same."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import attrs

from contract_tests import QueueStorageContract
from contract_tests._base import full_task, make_task
from durable_queue import QueueStorage, StoredTask

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "storage-contract.md").read_text("utf-8")
TESTS = {
    name: getattr(QueueStorageContract, name).__doc__ or ""
    for name in dir(QueueStorageContract)
    if name.startswith("test_")
}


def clauses_of(text: str) -> set[str]:
    return set(re.findall(r"\bC\d+\.\d+\b", text))


def test_every_contract_test_begins_with_its_clauses():
    """The docstring of a contract test begins with the clauses that it checks."""
    assert [name for name, doc in TESTS.items() if not re.match(r"C\d+\.\d+(, [CS]\d+\.\d+)*: \S", doc)] == []


def test_every_clause_on_the_page_is_checked():
    """Each clause that the page defines is cited by a contract test, and each cited one is defined, once."""
    defined = re.findall(r"^- \*\*(C\d+\.\d+)\*\* ", PAGE, re.MULTILINE)

    assert len(defined) == len(set(defined))
    assert set(defined) == set.union(*(clauses_of(doc) for doc in TESTS.values()))


def test_clauses_are_numbered_without_gaps():
    """Sections and the clauses in them are numbered from 1 on, in the order in which they stand."""
    defined = re.findall(r"^- \*\*C(\d+)\.(\d+)\*\* ", PAGE, re.MULTILINE)
    sections = list(dict.fromkeys(section for section, _ in defined))
    expected = [
        (section, str(number))
        for section in sections
        for number in range(1, 1 + sum(other == section for other, _ in defined))
    ]

    assert sections == [str(number) for number in range(1, len(sections) + 1)]
    assert defined == expected


def test_every_method_is_on_the_page():
    """Each method of QueueStorage is named in the tables, and the thirteen abstract ones stand in the first."""
    first, second = (
        part.split("\n\n")[0] for part in re.split(r"^\|---\|---\|---\|\n", PAGE, flags=re.MULTILINE)[1:3]
    )
    attributes = {"atomic", "consumed_by", "reads_ahead"}
    methods = {name for name in vars(QueueStorage) if not name.startswith("_")} - attributes

    assert set(re.findall(r"^\| `(\w+)", first, re.MULTILINE)) == QueueStorage.__abstractmethods__
    assert set(re.findall(r"`(\w+)\(", second)) | QueueStorage.__abstractmethods__ == methods | {"apply"}


def test_every_key_of_the_encoding_is_on_the_page():
    """The table of the canonical JSON has every key of a record, and no other."""
    table = PAGE.split("### Canonical JSON")[1].split("An instant is")[0]
    first_column = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)

    assert set(re.findall(r"`(\w+)`", " ".join(first_column))) == set(make_task().to_json())


def test_the_full_record_has_no_default():
    """The record with which the contract looks for forgotten fields differs from a bare one in each of them."""
    bare = StoredTask(id="bare", type="t", created_at=make_task().created_at)
    same = [f.name for f in attrs.fields(StoredTask) if getattr(full_task(), f.name) == getattr(bare, f.name)]

    assert same == []


def test_every_area_explains_its_failures():
    """The areas are registered for assertion rewriting, so that a failure shows the values that differ."""
    loaders = {
        base.__module__: type(sys.modules[base.__module__].__loader__).__name__
        for base in QueueStorageContract.__mro__
        if any(name.startswith("test_") for name in vars(base))
    }

    assert len(loaders) == 14
    assert set(loaders.values()) == {"AssertionRewritingHook"}
