"""The parsed files below a folder. They are parsed when the first test asks, not while tests are collected."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


@cache
def trees(root: Path) -> dict[Path, ast.Module]:
    """By path, in the order of the paths."""
    return {path: ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))}


@cache
def statements(root: Path) -> dict[Path, list[ast.AST]]:
    """By path: each statement of the file at any depth. Expressions, most of a tree, are not visited."""
    return {path: list(_statements(tree)) for path, tree in trees(root).items()}


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    for name in _BODIES:
        inner = getattr(node, name, ())
        for child in inner if isinstance(inner, list) else ():
            yield child
            yield from _statements(child)
