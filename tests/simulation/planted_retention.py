"""Bugs planted in the retention engine, each a patch of one place. The month that misses one proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from penstock.controller.grace import kept as grace
from penstock.controller.grace import undo
from penstock.controller.retention import facts
from penstock.controller.retention import steps as retention_steps
from penstock.controller.retention.audit import Audit
from penstock.controller.retention.clock import RetentionClock
from penstock.controller.retention.steps import Steps


def the_wall_clock_is_believed() -> Any:
    """Data ages by a clock that somebody may set."""
    return patch.object(RetentionClock, "now_ms", lambda self: self._wall.now_ms())


def holds_are_forgotten_by_rules() -> Any:
    """Rules do not know of holds; only calls by hand are refused."""
    return patch.object(facts, "to_facts", lambda ctx, holds: [])


def released_without_looking_at_the_time() -> Any:
    """Any sweep gives back what is kept, due or not."""
    original = grace.load_grace

    async def load(ctx: Any, name: Any) -> Any:
        found = await original(ctx, name)
        records = [
            replace(item, value=replace(item.value, due_ms=0)) if item.value is not None else item
            for item in found.records
        ]
        return replace(found, records=records)

    return patch.object(grace, "load_grace", load)


def undo_promises_before_it_restores() -> Any:
    """The head goes back, the bytes stay behind it."""

    async def nothing(segments: Any, work: Any) -> dict[Any, int]:
        return {}

    return patch.object(undo, "collect", nothing)


def decisions_are_not_told() -> Any:
    """A truncation without its audit entry."""
    original, puts_of_all = Steps._truncate, Audit.puts
    truncating = ContextVar("truncating", default=False)  # per task: several streams are truncated at once

    async def truncate(self: Any, cut: Any, moves: Any) -> None:
        token = truncating.set(True)
        try:
            await original(self, cut, moves)
        finally:
            truncating.reset(token)

    def puts(self: Any, entries: Any) -> Any:
        return [] if truncating.get() else puts_of_all(self, entries)

    stack = ExitStack()
    stack.enter_context(patch.object(Steps, "_truncate", truncate))
    stack.enter_context(patch.object(Audit, "puts", puts))
    return stack


def time_to_live_counts_double() -> Any:
    """Data is thought to be older than it is when it is looked at."""
    original = retention_steps.decide

    def decide(known: Any, *, now_ms: int) -> Any:
        ttl_ms = None if known.policy is None or known.policy.ttl_ms is None else known.policy.ttl_ms // 2
        policy = known.policy if known.policy is None else replace(known.policy, ttl_ms=ttl_ms)
        return original(replace(known, policy=policy), now_ms=now_ms)

    return patch.object(retention_steps, "decide", decide)


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        the_wall_clock_is_believed,
        holds_are_forgotten_by_rules,
        released_without_looking_at_the_time,
        undo_promises_before_it_restores,
        decisions_are_not_told,
        time_to_live_counts_double,
    )
}
