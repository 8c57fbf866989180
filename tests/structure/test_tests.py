"""The shape of the tests: what several of them use lies in a module beside them, and each fake is written once."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from source_trees import statements_of

from penstock.testing import fakes

ROOT = Path(__file__).parents[1]


class Names(NamedTuple):
    imported: set[str]
    classes: set[str]


@cache
def names() -> dict[str, Names]:
    """By path. No tree is kept: those of all tests together are large."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        nodes = list(statements_of(ast.parse(path.read_text())))
        classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
        found[str(path.relative_to(ROOT))] = Names(imported(nodes), classes)
    return found


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{item.name}" for item in node.names)}
        elif isinstance(node, ast.Import):
            names |= {item.name for item in node.names}
    return names


def test_no_module_imports_a_module_of_tests():
    found = {
        f"{path} imports {name}"
        for path, of_file in names().items()
        for name in of_file.imported
        if name.startswith("test_") or (name.startswith("tests.") and ".test_" in name)
    }
    assert found == set()


def test_a_class_of_a_public_fake_is_not_written_again():
    public = {
        name for name, item in vars(fakes).items() if isinstance(item, type) and item.__module__ == fakes.__name__
    }
    assert {"FakeClock", "InlineOffload", "SeededRng"} <= public
    found = {
        f"{path} has a {name} of its own" for path, of_file in names().items() for name in of_file.classes & public
    }
    assert found == set()
