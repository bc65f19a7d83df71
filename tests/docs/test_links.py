"""Links between pages lead somewhere, and every page can be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links, name_of


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    """A relative link names a file that is there and, behind a #, one of its headings."""
    wrong = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)

    assert wrong == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    """Whoever begins at the README finds every page by following links."""
    reached = {ROOT / "README.md"}
    left = list(reached)
    while left:
        page = left.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if "://" not in link and target.suffix == ".md" and target not in reached and target.exists():
                reached.add(target)
                left.append(target)

    assert sorted(name_of(page) for page in set(PAGES) - reached) == []
