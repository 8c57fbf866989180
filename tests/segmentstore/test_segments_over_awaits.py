"""A segment that was found before an await is pinned over it, or asked for again: checked in the source itself.

Over an await a segment may leave memory and be loaded anew. The object that was found before then answers what was true
once, and what is written by it overwrites what is true now.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import penstock.segmentstore

ROOM = Path(penstock.segmentstore.__file__).parent
FIXED = frozenset({"uid", "name", "kind", "key_bytes", "rollover_bytes", "is_part", "is_transient", "require_plain"})
"""Never change: an old object answers as well."""

FINDERS = re.compile(
    r"(segments|segment_calls)\.(find|load)\(|await find\(|find_visible\(|by_uid\.get\(|await _visible\("
)
REFRESHES = frozenset({"is_current"})
NEVER_RETURNS = frozenset({"refuse"})

EXEMPT = {
    "recovery.py": "nothing leaves memory before the store serves",
    "directory.py:attribute": "answers by the object it was given; its callers look again, which is checked",
}


class Reader:
    """Visits one coroutine in execution order. ``found``: uses of a segment object that may be outdated."""

    def __init__(self, function: ast.AsyncFunctionDef) -> None:
        self.found: list[tuple[int, str]] = []
        self.tracked: dict[str, None] = {}
        self.stale: dict[str, None] = {}
        self.pinned: dict[str, int] = {}
        arguments = [*function.args.args, *function.args.kwonlyargs]
        for argument in arguments:
            if argument.annotation is not None and ast.unparse(argument.annotation) in ("Segment", "Segment | None"):
                self.tracked[argument.arg] = None
        self.block(function.body)

    # --- statements -------------------------------------------------------------------------------------------

    def block(self, body: list[ast.stmt]) -> bool:
        """Whether it runs to its end."""
        return all(self.statement(item) for item in body)

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Return() | ast.Raise():
                self.fields(node)
                return False
            case ast.Continue() | ast.Break():
                return False
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return True
            case ast.Assign():
                self.expression(node.value)
                for target in node.targets:
                    self.bind(target, node.value)
            case ast.AnnAssign():
                if node.value is not None:
                    self.expression(node.value)
                    self.bind(node.target, node.value)
            case ast.If():
                self.expression(node.test)
                return self.either(node.body, node.orelse)
            case ast.While() | ast.For() | ast.AsyncFor():
                self.loop(node)
            case ast.With() | ast.AsyncWith():
                return self.context(node)
            case ast.Try() | ast.TryStar():
                return self.attempt(node)
            case _:
                self.fields(node)
                return not self.ends(node)
        return True

    def ends(self, node: ast.stmt) -> bool:
        value = node.value if isinstance(node, ast.Expr) else None
        if not isinstance(value, ast.Await) or not isinstance(value.value, ast.Call):
            return False
        return ast.unparse(value.value.func).rpartition(".")[2] in NEVER_RETURNS

    def either(self, body: list[ast.stmt], other: list[ast.stmt]) -> bool:
        before = dict(self.stale)
        first = self.block(body)
        after, self.stale = self.stale, before
        second = self.block(other)
        if first and second:
            self.stale |= after
        elif first:
            self.stale = after
        return first or second

    def loop(self, node: ast.While | ast.For | ast.AsyncFor) -> None:
        if not isinstance(node, ast.While):
            self.expression(node.iter)
        for _ in range(2):
            before = dict(self.stale)
            if isinstance(node, ast.While):
                self.expression(node.test)
            elif isinstance(node, ast.AsyncFor):
                self.awaited()
            self.block(node.body)
            self.stale |= before
        self.block(node.orelse)

    def context(self, node: ast.With | ast.AsyncWith) -> bool:
        before = dict(self.pinned)
        for item in node.items:
            self.expression(item.context_expr)
            if isinstance(node, ast.AsyncWith):
                self.awaited()
        goes_on = self.block(node.body)
        self.pinned = before
        if isinstance(node, ast.AsyncWith):
            self.awaited()
        return goes_on

    def attempt(self, node: ast.Try | ast.TryStar) -> bool:
        before = dict(self.stale)
        goes_on = self.block(node.body)
        # Whatever was awaited may have failed there.
        reached = {**before, **self.stale}
        for handler in node.handlers:
            kept, self.stale = self.stale, dict(reached)
            if self.block(handler.body):
                kept |= self.stale
                goes_on = True
            self.stale = kept
        goes_on = self.block(node.orelse) and goes_on
        self.block(node.finalbody)
        return goes_on

    # --- expressions ------------------------------------------------------------------------------------------

    def fields(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expression(child)

    def expression(self, node: ast.expr) -> None:
        match node:
            case ast.Lambda():
                return  # Runs when the operation is applied, which keeps its segment in memory.
            case ast.Await():
                self.expression(node.value)
                self.awaited()
            case ast.NamedExpr():
                self.expression(node.value)
                self.bind(node.target, node.value)
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in self.tracked and attr in FIXED:
                return
            case ast.Compare(left=ast.Name(), comparators=[ast.Constant(value=None)]):
                return
            case ast.Call(func=ast.Attribute(attr=attr), args=[ast.Name(id=name)]) if attr in REFRESHES:
                self.stale.pop(name, None)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="pinned")):
                self.use(name, node.lineno)
                self.pinned[name] = 1
            case ast.Name(id=name):
                self.use(name, node.lineno)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                self.comprehension(node)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.expression(child)
                    elif isinstance(child, ast.keyword):
                        self.expression(child.value)

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for part in node.generators:
            self.expression(part.iter)
            for target in ast.walk(part.target):
                if isinstance(target, ast.Name):
                    self.stale.pop(target.id, None)
            for test in part.ifs:
                self.expression(test)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.expression(part)

    def bind(self, target: ast.expr, value: ast.expr) -> None:
        names = [item.id for item in ast.walk(target) if isinstance(item, ast.Name)]
        text = ast.unparse(value)
        for name in names:
            self.stale.pop(name, None)
            if FINDERS.search(text):
                self.tracked[name] = None

    def use(self, name: str, line: int) -> None:
        if name in self.tracked and name in self.stale:
            self.found.append((line, name))
            del self.stale[name]

    def awaited(self) -> None:
        self.stale |= dict.fromkeys(name for name in self.tracked if name not in self.pinned)


def old_uses(source: str, file: str = "given.py") -> list[str]:
    """Places where coroutines of a module use a segment that may have been replaced during an await."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AsyncFunctionDef) and f"{file}:{node.name}" not in EXEMPT:
            found += [f"{file}:{line} {node.name}: {name}" for line, name in Reader(node).found]
    return found


@pytest.mark.parametrize("path", sorted(ROOM.rglob("*.py")), ids=lambda path: path.stem)
def test_no_segment_is_used_after_an_await_unless_pinned_or_looked_up_again(path: Path) -> None:
    if path.name in EXEMPT:
        pytest.skip(EXEMPT[path.name])
    assert old_uses(path.read_text(), path.name) == []


OLD = (
    """
async def free(self, segment: Segment):
    upto = await self.dead(segment)
    if segment.chunks.holds(chunk): pass
""",
    """
async def read(container, name):
    segment = (await container.segments.find_visible(name)).require_plain()
    found = await container.rows.get(b"")
    return segment.length
""",
    """
async def tell(container, segment: Segment):
    with segment.pinned():
        await one()
    await two()
    use(segment)
""",
    """
async def again(container, name):
    segment = await container.segments.find(name)
    while True:
        if segment.gone: return
        await wait()
""",
    """
async def caught(container, name):
    segment = await container.segments.find(name)
    try:
        await wait()
    except OSError:
        mark(segment)
""",
    """
async def late(container, name):
    segment = await container.segments.find(name)
    async with lock:
        with segment.pinned():
            pass
""",
)

SOUND = (
    """
async def free(self, segment: Segment):
    with segment.pinned():
        upto = await self.dead(segment)
        if segment.chunks.holds(chunk): pass
""",
    """
async def set(container, name):
    while True:
        segment = await container.segments.find(name)
        state = await container.segments.attribute(segment, 1)
        if container.segments.is_current(segment):
            break
    segment.touched = True
""",
    """
async def seal(container, name):
    segment = await container.segments.find(name)
    if segment.sealed:
        await refuse(container, segment, error)
    segment.next_sealed = True
    await wait()
    return segment.uid
""",
)


@pytest.mark.parametrize("source", OLD)
def test_the_check_finds_a_segment_that_may_be_outdated(source: str) -> None:
    assert len(old_uses(source)) == 1


@pytest.mark.parametrize("source", SOUND)
def test_the_check_lets_sound_code_pass(source: str) -> None:
    assert old_uses(source) == []
