"""The shape of the tests: what several of them use lies in a module beside them, and each fake is written once."""

from __future__ import annotations

import ast
from pathlib import Path

from source_trees import statements

from penstock.testing import fakes

ROOT = Path(__file__).parents[1]


def imported(nodes: list[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {node.module or "", *(f"{node.module}.{item.name}" for item in node.names)}
        elif isinstance(node, ast.Import):
            names |= {item.name for item in node.names}
    return names


def test_no_module_imports_a_module_of_tests():
    found = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path, nodes in statements(ROOT).items()
        for name in imported(nodes)
        if name.startswith("test_") or (name.startswith("tests.") and ".test_" in name)
    }
    assert found == set()


def test_a_class_of_a_public_fake_is_not_written_again():
    names = {name for name, item in vars(fakes).items() if isinstance(item, type) and item.__module__ == fakes.__name__}
    assert {"FakeClock", "InlineOffload", "SeededRng"} <= names
    found = {
        f"{path.relative_to(ROOT)} has a {node.name} of its own"
        for path, nodes in statements(ROOT).items()
        for node in nodes
        if isinstance(node, ast.ClassDef) and node.name in names
    }
    assert found == set()
