"""Tables as markdown, and into the page that shows the last ones."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.benchmarks.measuring import ROOT, Row, Table

PAGE: Final = ROOT / "docs" / "explanation" / "performance.md"

_HEADINGS: Final = ("measure", "ours", "against", "ratio", "asked", "met")


def markdown(table: Table) -> str:
    """Return a table under its title, with its notes below."""
    lines = [f"### {table.title}", "", _line(_HEADINGS), _line(["---"] * len(_HEADINGS))]
    lines += [_line(_cells(row)) for row in table.rows]
    if table.notes:
        lines += ["", *table.notes]
    return "\n".join(lines)


def summary(tables: Iterable[Table]) -> str:
    """Say how many of the rows that ask for something meet it, and name the others."""
    asked = [row for table in tables for row in table.rows if row.wanted]
    unmet = [
        f"  not met: {row.measure}: {row.ours}; {row.against}; asked {row.wanted}"
        for row in asked
        if not row.met
    ]
    return "\n".join([f"{len(asked) - len(unmet)} of {len(asked)} bounds met", *unmet])


def write(name: str, machine: Iterable[str], tables: Iterable[Table], page: Path = PAGE) -> None:
    """Put tables between the two comments of the page that bear a name.

    Raises:
        ValueError: the page does not have the two comments.
    """
    day = datetime.now(UTC).date().isoformat()
    measured = "\n".join([f"Measured on {day}:", "", *(f"- {fact}" for fact in machine)])
    text = "\n\n".join([measured, *map(markdown, tables)])
    first, last = f"<!-- measured: {name} -->", f"<!-- end of {name} -->"
    before = page.read_text("utf-8")
    # A function, because a backslash in a replacement text would mean something.
    after, count = re.subn(
        f"{re.escape(first)}.*?{re.escape(last)}",
        lambda _: f"{first}\n\n{text}\n\n{last}",
        before,
        flags=re.DOTALL,
    )
    if count != 1:
        raise ValueError(f"{page.name} must have the comments '{first}' and '{last}' once")
    page.write_text(after, "utf-8")


def _cells(row: Row) -> list[str]:
    ratio = "" if row.ratio is None else f"{row.ratio:.{2 if row.ratio < 10 else 0}f} x"
    met = ("yes" if row.met else "**no**") if row.wanted else ""
    return [row.measure, row.ours, row.against, ratio, row.wanted, met]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
