"""Every planted bug still fits the code that it changes, so that a long run finds the bug and not a stale patch."""

from __future__ import annotations

import ast
import inspect
from typing import Any
from unittest.mock import _patch

import planted
import planted_cluster
import planted_control
import planted_core
import planted_erasure
import planted_heads
import planted_ledgers
import planted_more
import planted_rates
import planted_retention
import planted_spark
import pytest

MODULES = (
    planted,
    planted_cluster,
    planted_control,
    planted_core,
    planted_erasure,
    planted_heads,
    planted_ledgers,
    planted_more,
    planted_rates,
    planted_retention,
    planted_spark,
)
BUGS = [pytest.param(bug, id=f"{module.__name__}-{name}") for module in MODULES for name, bug in module.PLANTED.items()]


def shape(call: Any) -> tuple[bool, list[str]] | None:
    """Whether a function is a coroutine, and the kinds of the parameters that it needs; None where it takes any."""
    if not inspect.isfunction(call):
        return None
    parameters = inspect.signature(call).parameters.values()
    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters):
        return None
    needed = [str(one.kind) for one in parameters if one.kind != one.KEYWORD_ONLY or one.default is one.empty]
    return inspect.iscoroutinefunction(call), needed


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_fits_and_is_taken_out_again(bug, monkeypatch):
    changed: list[tuple[Any, str, Any]] = []
    enter = _patch.__enter__

    def entered(self: Any) -> Any:
        target = self.getter()
        changed.append((target, self.attribute, inspect.getattr_static(target, self.attribute)))
        return enter(self)

    monkeypatch.setattr(_patch, "__enter__", entered)
    with bug():
        for target, name, before in changed:
            wanted, found = shape(before), shape(inspect.getattr_static(target, name))
            assert wanted is None or found is None or wanted == found, (target, name)
    assert changed
    for target, name, before in changed:
        assert inspect.getattr_static(target, name) is before, (target, name)


def waits_inside_a_patch(source: str) -> list[str]:
    """Coroutines that await something while a patch of their own is in place."""
    found = []
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.AsyncFunctionDef):
            continue
        for block in ast.walk(call):
            if isinstance(block, ast.With) and any("patch" in ast.unparse(one.context_expr) for one in block.items):
                inner = [one for line in block.body for one in ast.walk(line)]
                if any(isinstance(one, ast.Await | ast.AsyncFor | ast.AsyncWith) for one in inner):
                    found.append(call.name)
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_no_coroutine_awaits_inside_a_patch_of_its_own(module):
    """Where two of them overlap, the first that ends takes the patch of both out, and the second leaves it behind."""
    assert waits_inside_a_patch(inspect.getsource(module)) == []


def test_a_wait_inside_a_patch_is_seen():
    source = "async def copy():\n    with patch.object(a, 'b', c):\n        await d()\n"
    assert waits_inside_a_patch(source) == ["copy"]
    assert waits_inside_a_patch(source.replace("async def", "def").replace("await d()", "d()")) == []
