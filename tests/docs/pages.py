"""The pages of the documentation, taken apart: blocks of code with what stands before them, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^(\s*)```(.*)$")
_COMMENT = re.compile(r"^<!-- *(.*?) *-->$")
_HEADING = re.compile(r"^#+ +(.*?) *$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(<?([^)\s>]+)>?(?: +\"[^\"]*\")?\)|!\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block.

    Attributes:
        line: the line of its first line of code, from 1.
        language: the first word after the fence.
        title: what ``title="..."`` says: it shows a part of the file of that name.
        comment: the HTML comment on the line before it, or "".
        code: what stands in it.
    """

    line: int
    language: str
    title: str
    comment: str
    code: str


def name_of(page: Path) -> str:
    """How a page is called in the name of a test."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return list(_blocks(page.read_text("utf-8").splitlines()))


def _blocks(lines: list[str]) -> Iterator[Block]:
    number = 0
    before = ""
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        if opening is None:
            comment = _COMMENT.match(lines[number].strip())
            before = comment[1] if comment else before if not lines[number].strip() else ""
            number += 1
            continue
        indent, info = opening.groups()
        first = number + 1
        number = next(at for at in range(first, len(lines)) if lines[at].strip() == "```")
        language, _, rest = info.partition(" ")
        title = re.search(r'title="([^"]+)"', rest)
        code = "\n".join(line.removeprefix(indent) for line in lines[first:number])
        yield Block(first + 1, language, title[1] if title else "", before, code + "\n")
        before = ""
        number += 1


def links(page: Path) -> list[str]:
    """Where the links of a page lead."""
    text = "\n".join(re.sub(r"`[^`]*`", "code", line) for line in prose_lines(page))
    return [target or image for target, image in _LINK.findall(text)]


def anchors(page: Path) -> set[str]:
    """The anchors that the headings of a page make, the way that code hosts make them."""
    found: set[str] = set()
    for line in prose_lines(page):
        heading = _HEADING.match(line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            found.add(re.sub(r"[^\w\- ]", "", text).replace(" ", "-"))
    return found


def prose_lines(page: Path) -> list[str]:
    """The lines of a page that stand outside of its blocks, as they are."""
    kept = []
    inside = False
    for line in page.read_text("utf-8").splitlines():
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            kept.append(line)
    return kept
