"""Plain English: words that readers stumble over stay out of code, comments, names and documents."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = ("src", "tests", "docs", "bench", "scripts", "examples")
KINDS = {".py", ".md", ".txt"}

WORDS = re.compile(r"\b(told|whoever|whom|mend|of late|at length|for ever)\b", re.IGNORECASE)
"""Write instead: reports, anyone who, who, fix, recently, in full, forever."""

STORED = "audit-told"
"""A key of the metadata: renaming it would make stores of earlier versions unreadable."""


def test_words_that_must_be_read_twice_are_not_used() -> None:
    pages = [path for place in PLACES for path in sorted((ROOT / place).rglob("*")) if path.suffix in KINDS]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in (*pages, *ROOT.glob("*.md"))
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if WORDS.search(line.replace(STORED, ""))
    ]
    assert not found, "\n".join(found)
