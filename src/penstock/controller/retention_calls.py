"""Retention of single streams, as people and programs request it. ``ports.control.retention.Retention``."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.controller.context import Context
from penstock.controller.grace.kept import undo, undo_since
from penstock.controller.retention.answers import stream_facts
from penstock.controller.retention.cycle import RetentionCycle
from penstock.controller.retention.forecast import forecast
from penstock.controller.retention.loop import RetentionLoop
from penstock.controller.retention.reclaim import reclaim_report
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.facts import StreamFacts
from penstock.model.answers.forecast import Forecast
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.answers.reclaim import ReclaimReport
from penstock.model.answers.subscribers import Eviction
from penstock.model.answers.undo import UndoneTruncations
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import PolicyDocument


class RetentionCalls:
    """``ports.control.retention.Retention``, whose rules these calls keep."""

    def __init__(self, ctx: Context, cycle: RetentionCycle, loop: RetentionLoop) -> None:
        self._ctx = ctx
        self._cycle = cycle
        self._loop = loop

    async def run(self, stream: StreamName) -> RetentionRun:
        return await self._loop.run_stream(stream)

    async def plan(
        self, stream: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        return await self._cycle.plan(stream, change=change, at_ms=at_ms)

    async def explain(self, stream: StreamName, *, position: StreamCut | None = None) -> Explanation:
        return await self._cycle.explain(stream, position=position)

    async def facts(self, stream: StreamName, *, change: PolicyDocument | None = None) -> StreamFacts:
        return await stream_facts(self._ctx, stream, change=change)

    async def reclaim(self, stream: StreamName) -> ReclaimReport:
        return await reclaim_report(self._ctx, stream)

    async def forecast(self, stream: StreamName) -> Forecast:
        return await forecast(self._ctx, stream)

    async def undo_last(self, stream: StreamName) -> StreamCut:
        return await undo(self._ctx, stream)

    async def undo(self, stream: StreamName, *, since_ms: int | None = None) -> UndoneTruncations:
        return await undo_since(self._ctx, stream, since_ms=since_ms)

    async def list_evictions(self, stream: StreamName) -> Sequence[Eviction]:
        return await self._cycle.evictions(stream)
