"""docs/explanation/sources.md names every test of this suite, and nothing else; and every difference is a row that says why."""

from __future__ import annotations

import re

import pytest
from sources_table import BEGIN, DOCUMENTS, HERE, PAGE, choices, rows, tables

FILES = [file for _, files in DOCUMENTS for file in files]


def test_the_page_is_what_the_tests_say() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2] == tables(), "run: python tests/documents/sources_table.py"


def test_every_test_is_named_once_and_every_name_is_a_test() -> None:
    named = re.findall(r"^\| .* \| `(test_\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    there = [row.test for file in FILES for row in rows(file)]
    assert sorted(named) == sorted(there)
    assert len(set(named)) == len(named) > 100


def test_every_file_of_the_suite_belongs_to_a_document() -> None:
    assert sorted(path.name for path in HERE.glob("test_document_*.py")) == sorted(FILES)


@pytest.mark.parametrize("file", FILES)
def test_every_difference_is_a_row_of_the_choices(file: str) -> None:
    known = choices()
    for row in rows(file):
        assert not row.differs or row.differs in known, (row.test, row.differs)
