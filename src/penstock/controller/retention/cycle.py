"""One retention cycle of one stream: gather the facts, ask the planner, perform its decision, until nothing is due.

The dry run and ``explain`` ask the same planner with the same facts and stop there.
Source: docs/design/0007-retention.md, docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import EvictionsRecord
from penstock.codec.control.record import dump_positions
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing
from penstock.controller.retention.answers import explained, planned
from penstock.controller.retention.append_limits import AppendLimits
from penstock.controller.retention.facts import Snapshot, load_subscribers, snapshot
from penstock.controller.retention.policies import shown_policy
from penstock.controller.retention.steps import Steps, decided, mattered
from penstock.controller.streams.idle import delete_idle
from penstock.controller.streams.workflows import exclusive, settled
from penstock.core.cuts.order import Positions, size_till
from penstock.core.planner_json.answers import run_of
from penstock.core.retention.facts import RetentionRule
from penstock.core.retention.planner import RetentionDecision, decide
from penstock.core.retention.settlement import STEPS_MAX, Settlement, only_repeats
from penstock.model.answers.explanation import Explanation
from penstock.model.answers.plan import RetentionPlan, RetentionRun
from penstock.model.answers.subscribers import Eviction
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import PolicyDocument
from penstock.model.traces.spans import spanning
from penstock.ports.data.tables import TableCheck

__all__ = ["RetentionCycle", "load_subscribers"]

log = logging.getLogger(__name__)

HELD_EVERY_MS = 3_600_000
"""Least time between two audit entries that report that holds keep data of one stream from a rule."""

_REPORTS_MAX = 10_000  # reports that are remembered, so that they are not repeated

_HOLDS_NAMED = 100
"""Holds that one entry names, in the order of their ids: an entry is one value, and each hold is a condition of its batch."""


class _Look:
    """The decisions about one stream in one cycle. ``ended``: what is due now is left to the next cycle."""

    def __init__(self) -> None:
        self.decisions: list[RetentionDecision] = []
        self.ended = False
        self._tail: Positions | None = None

    def note_performed(self, found: Snapshot, decision: RetentionDecision) -> None:
        """Record that the decision about these facts was performed."""
        self.decisions.append(decision)
        if self._tail is None:
            self._tail = found.tail.positions

    def only_chases(self, found: Snapshot, decision: RetentionDecision) -> bool:
        """Whether the stream has grown since the first decision, and this one only repeats rules that have acted."""
        grew = self._tail is not None and found.tail.positions != self._tail
        return grew and only_repeats(self.decisions, decision)


class RetentionCycle:
    """Runs, plans and explains cycles."""

    def __init__(self, ctx: Context, limits: AppendLimits) -> None:
        self._ctx = ctx
        self._limits = limits
        self._reported: OrderedDict[tuple[StreamName, str], int] = OrderedDict()

    async def run(self, name: StreamName, *, frequency_ms: int = 0) -> RetentionRun:
        """Decide and perform until nothing is due, and return what was done.

        What is due only because of appends in the meantime is left to the next cycle. ``frequency_ms``: how often to
        record the tail, at most; 0: now in any case. If this fails or is cancelled, the decisions made before are
        performed in full. Raises: ScopeNotFoundError, StreamNotFoundError.
        """
        with spanning("retention cycle", attributes={"messaging.destination.name": str(name)}) as span:
            done = await self._ctx.tasks.run(self._run(name, frequency_ms))
            span.set("penstock.retention.truncates", done.truncate is not None)
            return done

    async def _run(self, name: StreamName, frequency_ms: int) -> RetentionRun:
        ctx = self._ctx
        look = _Look()
        while True:
            decision, deleted = await self._step(name, frequency_ms, look)
            if deleted:
                ctx.attention.due(name, None)
                break
            if look.ended or not decision.moves_on or len(look.decisions) == STEPS_MAX:
                again_ms = ctx.retention_clock.now_ms() if look.ended or decision.moves_on else decision.next_due_ms
                ctx.attention.due(name, again_ms)
                break
        return run_of(str(name), Settlement(decisions=look.decisions))

    async def _step(self, name: StreamName, frequency_ms: int, look: _Look) -> tuple[RetentionDecision, bool]:
        """Make one decision and perform it. Returns the decision, and whether the stream was deleted."""
        ctx = self._ctx

        async def attempt(*, deletes: bool) -> tuple[Snapshot, RetentionDecision, int]:
            stamp = self._limits.stamp(name)
            view = await settled(ctx, name)
            found = await snapshot(ctx, view, frequency_ms=frequency_ms)
            now_ms = ctx.retention_clock.now_ms()
            decision = await decided(ctx, found, now_ms=now_ms)
            await self._report_faults(found)
            await self._report_held(found, decision, now_ms)
            # If the whole stream is deleted, no other step is needed.
            if not (deletes and (decision.deletes_stream or look.only_chases(found, decision))):
                await Steps(ctx, found, decision).perform()
            return found, decision, stamp

        async with exclusive(ctx, name):
            found, decision, stamp = await changing(lambda: attempt(deletes=True))
            if decision.deletes_stream:
                if await delete_idle(ctx, name, found, self._limits):
                    look.note_performed(found, decision)
                    return decision, True
                # Performed in any case: the attempt to delete the stream has lifted its limit.
                found, decision, stamp = await changing(lambda: attempt(deletes=False))
            elif look.only_chases(found, decision):
                look.ended = True
                return decision, False
            look.note_performed(found, decision)
            await self._limits.push(found, decision.writers, stamp=stamp)
        return decision, False

    async def _report_held(self, found: Snapshot, decision: RetentionDecision, now_ms: int) -> None:
        """Report to the audit stream, from time to time, what a rule would remove without the holds."""
        if not found.holds:
            return
        ctx, own = self._ctx, {hold.id for hold in found.holds}
        free = replace(found.facts, holds=[hold for hold in found.facts.holds if hold.id not in own])
        would = decide(free, now_ms=now_ms)
        reached = found.first if decision.truncate is None else decision.truncate
        more = 0
        if would.truncate is not None:
            more = size_till(found.history, would.truncate) - size_till(found.history, reached)
        if more <= 0 and not (would.deletes_stream and not decision.deletes_stream):
            return
        what = "delete" if would.deletes_stream else "truncate"
        report = (found.name, f"{what} {','.join(sorted(own))}")
        if not self._is_due(report, now_ms):
            return
        rule = RetentionRule.IDLE_STREAM if would.deletes_stream else would.rule
        after: Positions = would.truncate or reached
        entry = AuditEntry(
            kind=AuditKind.HELD,
            target=str(found.name),
            fields={
                "would": what,
                "rule": rule.value,
                "policy": mattered(found, rule),
                "before": dump_positions(reached),
                "after": dump_positions(after),
                "bytes": max(more, 0),
                "events": await ctx.events.between(found.name, found.history, reached, after),
                "holds": [
                    {"hold": hold.id, "owner": hold.record.owner, "reason": hold.record.reason}
                    for hold in found.holds[:_HOLDS_NAMED]
                ],
            },
        )
        named = [hold.check() for hold in found.holds[:_HOLDS_NAMED]]
        await self._report(found, entry, report, now_ms, *named)

    async def _report_faults(self, found: Snapshot) -> None:
        """Report from time to time that a policy cannot be read and that all data is kept."""
        report, now_ms = (found.name, "policy"), self._ctx.retention_clock.now_ms()
        if not found.levels.unreadable or not self._is_due(report, now_ms):
            return
        fields = {"unreadable": found.levels.unreadable, "kept": True, "policy": shown_policy(found.policy)}
        entry = AuditEntry(kind=AuditKind.POLICY, target=str(found.name), fields=fields)
        await self._report(found, entry, report, now_ms)
        log.warning(
            "a retention policy cannot be read, all data is kept",
            extra={"stream": str(found.name), "why": found.levels.unreadable},
        )

    def _is_due(self, what: tuple[StreamName, str], now_ms: int) -> bool:
        last_ms = self._reported.get(what)
        return last_ms is None or now_ms - last_ms >= HELD_EVERY_MS

    async def _report(
        self, found: Snapshot, entry: AuditEntry, what: tuple[StreamName, str], now_ms: int, *checks: TableCheck
    ) -> None:
        """Write an audit entry, unless the stream, a policy above it or one of ``checks`` has changed since ``found``.

        It counts as written only once it is durable. Otherwise the next cycle tries again. Raises as ``Metadata.put``.
        """
        puts = self._ctx.audit.puts([entry])
        await self._ctx.metadata.put(*puts, found.view.check(), *found.levels.checks, *checks)
        self._ctx.audit.soon()
        self._reported[what] = now_ms
        self._reported.move_to_end(what)
        if len(self._reported) > _REPORTS_MAX:
            self._reported.popitem(last=False)

    # --- answers -------------------------------------------------------------------------------------------------

    async def plan(
        self, name: StreamName, *, change: PolicyDocument | None = None, at_ms: int | None = None
    ) -> RetentionPlan:
        """Return what a cycle would do at that time with that document. Changes nothing. Raises as ``run``, and
        InvalidArgumentError for a document that contradicts itself."""
        return await planned(self._ctx, name, change=change, at_ms=at_ms)

    async def explain(self, name: StreamName, *, position: StreamCut | None = None) -> Explanation:
        """Return what a cycle would decide now, and in ``ranges`` what keeps each byte. Changes nothing. Raises as
        ``run``, and InvalidCutError."""
        return await explained(self._ctx, name, position=position)

    async def evictions(self, name: StreamName) -> Sequence[Eviction]:
        """The latest forced advances of the stream's subscribers, oldest first."""
        await self._ctx.streams.get(name)
        found = await self._ctx.metadata.get(keys.evictions(name), EvictionsRecord)
        return [] if found.value is None else list(found.value.evictions)
