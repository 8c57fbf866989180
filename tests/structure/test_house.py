"""The shape of the source tree: folders that can be read, small protocols, no import circles.

Each rule has a list of what does not keep it yet. The lists may only become shorter: an entry that keeps the rule fails.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import source_trees

import penstock

ROOT = Path(penstock.__file__).parent
MODULES_MAX, METHODS_MAX, PARAMETERS_MAX, LINES_MAX = 16, 12, 10, 60
FILE_LINES_MAX, CARD_LINES_MIN = 500, 3

FULL_FOLDERS: set[str] = set()
WIDE_PROTOCOLS: set[str] = set()
WIDE_CONSTRUCTORS: set[str] = set()
LONG_FUNCTIONS: set[str] = set()
LONG_FILES: set[str] = set()
BARE_NUMBERS: set[str] = set()
CIRCLES: set[str] = set()
"""Pairs of modules, and for a circle of more its first module."""


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def trees() -> dict[str, ast.Module]:
    return {name_of(path): tree for path, tree in source_trees.trees(ROOT).items() if path.parent.name != "proto"}


@cache
def statements() -> dict[str, list[ast.AST]]:
    found = source_trees.statements(ROOT)
    return {name_of(path): nodes for path, nodes in found.items() if path.parent.name != "proto"}


def classes() -> dict[str, ast.ClassDef]:
    return {
        f"{module}.{node.name}": node
        for module, nodes in statements().items()
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_no_folder_holds_too_many_modules():
    folders = {path.parent for path in ROOT.rglob("*.py") if path.parent.name != "proto"}
    full = {
        str(folder.relative_to(ROOT))
        for folder in folders
        if sum(path.name != "__init__.py" for path in folder.glob("*.py")) > MODULES_MAX
    }
    assert full == FULL_FOLDERS


def test_protocols_are_small():
    wide = {
        name
        for name, node in classes().items()
        if any(ast.unparse(base) in ("Protocol", "typing.Protocol") for base in node.bases)
        and len(methods(node)) > METHODS_MAX
    }
    assert wide == WIDE_PROTOCOLS


def test_constructors_take_few_parameters():
    wide = {
        name
        for name, node in classes().items()
        for method in methods(node)
        if method.name == "__init__" and len(method.args.args) + len(method.args.kwonlyargs) - 1 > PARAMETERS_MAX
    }
    assert wide == WIDE_CONSTRUCTORS


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """All its lines: parameters and docstring, which of a command are its options and its help, count too."""
    return (node.end_lineno or 0) - node.lineno + 1


def test_functions_fit_on_a_screen():
    long = {
        f"{module}.{node.name}"
        for module, nodes in statements().items()
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > LINES_MAX
    }
    assert long == LONG_FUNCTIONS


def test_values_are_made_by_the_decorator_that_compiles_late():
    # The decorator of the standard library takes 0.5 to 1 ms of each start for each class.
    own = {"spark/options.py"}  # has no line left; no server imports it
    others = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if re.search(r"^from dataclasses import .*\bdataclass\b", path.read_text(), re.MULTILINE)
    }
    assert others == own


def test_files_are_short():
    long = {
        str(path.relative_to(ROOT))
        for path in ROOT.rglob("*.py")
        if path.parent.name != "proto" and len(path.read_text().splitlines()) > FILE_LINES_MAX
    }
    assert long == LONG_FILES


def imports(nodes: list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("penstock."):
            home = node.module.removeprefix("penstock.")
            for item in node.names:
                inner = f"{home}.{item.name}"
                yield inner if inner in statements() else home


def circles() -> set[tuple[str, ...]]:
    """Modules that import each other, for type checkers included: strongly connected parts of the graph (Tarjan)."""
    known = statements()
    graph = {
        name: {other for other in imports(nodes) if other in known and other != name} for name, nodes in known.items()
    }
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: set[tuple[str, ...]] = set()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.add(tuple(sorted(stack[at:])))
            del stack[at:]

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_modules_do_not_import_each_other_in_a_circle():
    assert {item if len(item) == 2 else item[0] for item in circles()} == CIRCLES


_UNITS = (
    "MS|S|NS|US|SECONDS|HOURS|DAYS|BYTES|KIB|MIB|BITS|CHARS|COLUMNS|ROWS|LANES|EVENTS|SEGMENTS|PERCENT|PORT|STATUS"
    "|VERSION|FORMAT"
)
UNIT = re.compile(rf"(^|_)({_UNITS})(_|$)")
"""A unit as a word in the name of a constant."""


def is_number(node: ast.expr | None) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=operand):
            return is_number(operand)
        case ast.BinOp(left=left, right=right):
            return is_number(left) and is_number(right)
    return False


def numbers_of(node: ast.stmt) -> Iterator[str]:
    """The names that an assignment gives to numbers."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
            pairs = list(zip(names, values, strict=True))
        case ast.Assign(targets=[name], value=value) | ast.AnnAssign(target=name, value=value):
            pairs = [(name, value)]
        case _:
            return
    yield from (name.id for name, value in pairs if isinstance(name, ast.Name) and is_number(value))


def bare_numbers() -> Iterator[str]:
    """Numbers of modules without a unit in the name, a comment on the line or above it, or a docstring below."""
    for module, tree in trees().items():
        path = ROOT.joinpath(*module.split("."))
        lines = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text().splitlines()
        for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
            is_said = isinstance(after, ast.Expr) or "#" in lines[(node.end_lineno or 0) - 1]
            if not is_said and not lines[node.lineno - 2].lstrip().startswith("#"):
                yield from (f"{module}.{name}" for name in numbers_of(node) if not UNIT.search(name))


def test_numbers_have_a_unit_or_say_what_they_count():
    assert set(bare_numbers()) == BARE_NUMBERS


@pytest.mark.parametrize(
    "package", sorted(path.parent for path in ROOT.rglob("__init__.py")), ids=lambda path: path.name
)
def test_each_package_says_what_lives_there(package):
    if package.name != "proto":
        card = ast.get_docstring(ast.parse((package / "__init__.py").read_text()))
        is_large = sum(path.name != "__init__.py" for path in package.glob("*.py")) > 3
        assert card
        assert not is_large or len(card.splitlines()) >= CARD_LINES_MIN
