"""The table of docs/explanation/sources.md, made of the docstrings of this suite. Run as a script it writes the file anew.

A test's docstring says the place in the document, a colon, and what is said there. A last paragraph "Differs: …" names the row
of docs/explanation/retention-choices.md, in its words, after which Penstock does something else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "sources.md"
CHOICES = ROOT / "docs" / "explanation" / "retention-choices.md"
HERE = Path(__file__).resolve().parent
BEGIN = "<!-- The tables are made by tests/documents/sources_table.py. -->\n"

DOCUMENTS: Sequence[tuple[str, Sequence[str]]] = (
    (
        "Pravega Stream Retention",
        (
            "test_document_stream_retention.py",
            "test_document_stream_retention_bounds.py",
            "test_document_stream_retention_groups.py",
        ),
    ),
    ("PDP-47, Consumption Based Retention", ("test_document_pdp_47.py", "test_document_pdp_47_policy.py")),
    ("PDP-19, Retention", ("test_document_pdp_19.py",)),
    ("Pravega internals", ("test_document_internals.py", "test_document_internals_store.py")),
    (
        "Pulsar, Message retention and expiry",
        ("test_document_pulsar_retention.py", "test_document_pulsar_backlog.py"),
    ),
)


@dataclass(frozen=True)
class Row:
    place: str
    says: str
    test: str
    differs: str


def rows(file: str) -> Iterator[Row]:
    """One row for each test of the file. Raises ValueError for a docstring of another form."""
    for node in ast.parse((HERE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            text = " ".join((ast.get_docstring(node) or "").split())
            said, _, differs = text.partition(" Differs: ")
            place, colon, says = said.partition(": ")
            if not colon or not says or "|" in text:
                raise ValueError(f"{file}: {node.name} does not say its place and what is said there")
            yield Row(place, says.rstrip("."), node.name, differs.rstrip("."))


def tables() -> str:
    parts = []
    for title, files in DOCUMENTS:
        parts.append(
            f"\n## {title}\n\n| place | says | test | differs: row of `retention-choices.md` |\n|---|---|---|---|\n"
        )
        for file in files:
            parts += [f"| {row.place} | {row.says} | `{row.test}` | {row.differs} |\n" for row in rows(file)]
    return "".join(parts)


def choices() -> set[str]:
    """The first cells of the rows of docs/explanation/retention-choices.md."""
    return set(re.findall(r"^\| ([^|]+?) \|", CHOICES.read_text(encoding="utf-8"), re.MULTILINE)) - {"place"}


if __name__ == "__main__":
    head = PAGE.read_text(encoding="utf-8").partition(BEGIN)[0]
    PAGE.write_text(head + BEGIN + tables(), encoding="utf-8")
