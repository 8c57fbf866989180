"""The parsed files below a folder. They are parsed when the first test asks, not while tests are collected."""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_BODIES = ("body", "orelse", "finalbody", "handlers", "cases")


@cache
def trees(root: Path) -> dict[Path, ast.Module]:
    """By path, in the order of the paths."""
    # Millions of nodes that stay: to search them for circles again and again took twice as long as to parse.
    gc.disable()
    try:
        return {path: ast.parse(path.read_text()) for path in sorted(root.rglob("*.py"))}
    finally:
        gc.freeze()
        gc.enable()


@cache
def statements(root: Path) -> dict[Path, list[ast.AST]]:
    """By path: each statement of the file at any depth. Expressions, most of a tree, are not visited."""
    return {path: list(statements_of(tree)) for path, tree in trees(root).items()}


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """The statements below the node, at any depth."""
    for name in _BODIES:
        inner = getattr(node, name, ())
        for child in inner if isinstance(inner, list) else ():
            yield child
            yield from statements_of(child)
