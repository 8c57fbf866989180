"""The pages together: a reader finds each of them, and can follow one after another with the same server."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
TASKS = sorted([*(DOCS / "tutorials").glob("*.md"), *(DOCS / "how-to").glob("*.md")])
RUN = re.compile(r"^ *```(?:sh|console)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
CREATED = re.compile(r"penstock stream create ([\w-]+/[\w-]+)")


def test_the_index_links_every_tutorial_and_guide() -> None:
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    missing = [page.name for page in TASKS if f"]({page.relative_to(DOCS)})" not in index]
    assert not missing


def test_no_two_pages_create_the_same_stream() -> None:
    """A page that creates the stream of an earlier page stops at its first command."""
    creators: defaultdict[str, list[str]] = defaultdict(list)
    for page in TASKS:
        blocks = "".join(RUN.findall(page.read_text(encoding="utf-8")))
        for stream in set(CREATED.findall(blocks)):
            creators[stream].append(page.name)
    assert {stream: pages for stream, pages in creators.items() if len(pages) > 1} == {}
