"""Performs a decision in steps. Each step is durable, atomic and conditional on the facts of the decision.

Subscribers that lose data are moved in the step that records this and its audit entries. If they fit, the same step
truncates. Source: docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import EvictionsRecord, SubscriberRecord
from penstock.codec.control.record import dump_positions
from penstock.codec.control.streams import CounterRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.groups.moved_subscribers import remember_puts
from penstock.controller.metadata import CHUNK, Stored, overwrite, stored
from penstock.controller.retention.facts import Snapshot
from penstock.controller.retention.policies import shown_policy
from penstock.controller.retention.removals import truncation_puts
from penstock.controller.streams.truncation import begin_truncation, finish_truncation
from penstock.core.cuts.order import CutOrder, Positions, at_or_after, compare, upper_bound, within_ends
from penstock.core.planner_json.stream import encode_cut
from penstock.core.retention.facts import Advance, Drop, RetentionRule
from penstock.core.retention.planner import RetentionDecision, decide
from penstock.model.answers.subscribers import Eviction
from penstock.model.cuts import StreamCut
from penstock.model.policies import LONG_MAX
from penstock.model.traces.spans import spanning
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import TableCheck, TablePut, TableRemoval

log = logging.getLogger(__name__)

MOVED_AT_ONCE = 40
"""Subscribers moved in one step. Each takes its record, the one before and up to three audit entries; a batch takes 256
items."""

_POSITIONS_AT_ONCE = 40_000
"""Maximum positions moved in one step. A batch is one operation of the log, so a stream with thousands of segments
moves fewer subscribers per step."""

_POSITIONS_KEPT = 10_000
"""Maximum positions in the eviction records of one stream, because they are one value."""

_MATTERS: Mapping[RetentionRule, Sequence[str]] = {
    RetentionRule.TTL: ("backlog.ttl_s",),
    RetentionRule.BACKLOG_BYTES: ("backlog.max_bytes", "backlog.on_exceed_bytes", "backlog.evict_to"),
    RetentionRule.BACKLOG_EVENTS: ("backlog.max_events", "backlog.on_exceed_events", "backlog.evict_to"),
    RetentionRule.BACKLOG_AGE: ("backlog.max_age_s", "backlog.on_exceed_age", "backlog.evict_to"),
    RetentionRule.IDLE_SUBSCRIBER: ("idle.subscriber_s",),
    RetentionRule.IDLE_STREAM: ("idle.stream_s", "idle.stream_when"),
}
_RETAIN = (
    "retain.min_bytes",
    "retain.min_age_s",
    "retain.combine",
    "retain.max_bytes",
    "retain.max_age_s",
    "retain.measure",
    "unsubscribed",
    "grace_s",
)


def mattered(found: Snapshot, rule: RetentionRule) -> dict[str, Any]:
    """The effective values that a rule has used, each with its level."""
    wanted = _MATTERS.get(rule, _RETAIN)
    shown = shown_policy(found.policy, wanted)
    return {path: shown[path] for path in wanted if path in shown}


async def decided(ctx: Context, found: Snapshot, *, now_ms: int) -> RetentionDecision:
    """The planner's decision, with the exact number of events that each subscriber loses, if its cuts are event
    boundaries, and without a time at which an idle stream would be recorded again."""
    decision = decide(found.facts, now_ms=now_ms)
    if decision.next_due_ms is not None and decision.next_due_ms > LONG_MAX:
        decision = replace(decision, next_due_ms=None)

    async def counted(items: Sequence[Advance]) -> tuple[Advance, ...]:
        return tuple([replace(item, events=await _events_lost(ctx, found, item)) for item in items])

    if not decision.expirations and not decision.evictions:
        return decision
    return replace(
        decision,
        expirations=await counted(decision.expirations),
        evictions=await counted(decision.evictions),
    )


async def _events_lost(ctx: Context, found: Snapshot, item: Advance) -> int | None:
    start = item.start
    if not at_or_after(found.history, start, found.first):
        start = upper_bound(found.history, [start, found.first])
    count = await ctx.events.between(found.name, found.history, start, item.end)
    return item.events if count is None else count


@dataclass(frozen=True, slots=True)
class _Move:
    """All changes of one decision to one subscriber, in order."""

    name: str
    advances: Sequence[Advance]
    drop: Drop | None


def _latest(items: Sequence[Eviction], limit: int) -> tuple[Eviction, ...]:
    """The newest eviction records that fit together. If a single one is too large, its cuts are left out."""
    room = _POSITIONS_KEPT
    kept: list[Eviction] = []
    for item in reversed(items[-limit:]):
        size = len(item.start or ()) + len(item.end or ())
        if size > _POSITIONS_KEPT:
            item, size = structs.replace(item, start=None, end=None), 0
        room -= size
        if room < 0:
            break
        kept.append(item)
    return tuple(reversed(kept))


class Steps:
    """Performs one decision about one stream, whose lock is held."""

    def __init__(self, ctx: Context, found: Snapshot, decision: RetentionDecision) -> None:
        self._ctx = ctx
        self._found = found
        self._decision = decision

    async def perform(self) -> None:
        """Perform all steps except the deletion of the stream. Raises as ``Metadata.put`` if another writer was faster:
        decide again."""
        moves = self._moves()
        dropped = [move.name for move in moves if move.drop is not None]
        at_once = min(MOVED_AT_ONCE, max(1, _POSITIONS_AT_ONCE // len(self._found.tail.positions)))
        while len(moves) > at_once:
            await self._put_moves(moves[:at_once])
            moves = moves[at_once:]
        cut = self._decision.truncate
        if cut is not None and self._goes_on(cut):
            removal = {"messaging.destination.name": str(self._found.name), "penstock.rule": self._decision.rule.value}
            with spanning("remove the head", attributes=removal):
                await self._truncate(cut, moves)
        else:
            await self._put_moves(moves, *self._set_puts())
        await self._forget(dropped)

    # --- subscribers ---------------------------------------------------------------------------------------------

    def _moves(self) -> list[_Move]:
        advances: dict[str, list[Advance]] = {}
        for item in (*self._decision.expirations, *self._decision.evictions):
            advances.setdefault(item.subscriber, []).append(item)
        drops = {item.subscriber: item for item in self._decision.drops}
        names = [*advances, *(name for name in drops if name not in advances)]
        return [_Move(name, advances.get(name, ()), drops.get(name)) for name in names]

    async def _move_puts(self, moves: Sequence[_Move]) -> list[TablePut]:
        """The new records of the subscribers, the eviction records, and the audit entries."""
        if not moves:
            return []
        ctx, found = self._ctx, self._found
        puts = [found.subscribers[item.name].put(self._moved(item)) for item in moves]
        before = {item.name: found.record_of(item.name) for item in moves}
        dropped = [item.name for item in moves if item.drop is not None]
        puts += await remember_puts(ctx, found.name, before, dropped, found.policy.grace_ms)
        if any(item.drop is not None for item in moves):
            puts.append(overwrite(keys.left(found.name), CounterRecord(value=ctx.clock.now_ms())))
        lost = [item for move in moves for item in move.advances]
        if lost:
            puts.append(await self._evictions_put(lost))
        return [*puts, *ctx.audit.puts([entry for move in moves for entry in self._entries(move)])]

    def _moved(self, move: _Move) -> SubscriberRecord:
        record = self._found.record_of(move.name)
        if move.advances:
            own = record.cut if record.own is None else record.own
            record = replace(record, cut=dict(move.advances[-1].end), own=own)
        return replace(record, dropped=move.drop is not None)

    async def _evictions_put(self, lost: Iterable[Advance]) -> TablePut:
        ctx, name = self._ctx, self._found.name
        (entry,) = await ctx.metadata.entries([keys.evictions(name)])
        known: Stored[EvictionsRecord] = stored(entry, EvictionsRecord)
        before = known.value or EvictionsRecord()
        now_ms = ctx.clock.now_ms()
        fresh = [
            Eviction(
                at_ms=now_ms,
                subscriber=item.subscriber,
                start=encode_cut(item.start),
                end=encode_cut(item.end),
                bytes=item.bytes,
                events=item.events,
                rule=item.rule.word,
            )
            for item in lost
        ]
        return known.put(EvictionsRecord(evictions=_latest([*before.evictions, *fresh], ctx.settings.evictions_max)))

    def _entries(self, move: _Move) -> list[AuditEntry]:
        found, target = self._found, str(self._found.name)
        entries = [
            AuditEntry(
                kind=AuditKind.EXPIRE if item.rule is RetentionRule.TTL else AuditKind.EVICT,
                target=target,
                fields={
                    "rule": item.rule.value,
                    "policy": mattered(found, item.rule),
                    "bytes": item.bytes,
                    "events": item.events,
                    "subscribers": [self._hurt(item)],
                },
            )
            for item in move.advances
        ]
        if move.drop is not None:
            entries.append(
                AuditEntry(
                    kind=AuditKind.DROP,
                    target=target,
                    fields={
                        "rule": move.drop.rule.value,
                        "policy": mattered(found, move.drop.rule),
                        "subscriber": move.name,
                        "cut": dump_positions(move.drop.start),
                        "last_active_ms": found.record_of(move.name).updated_ms,
                    },
                )
            )
        return entries

    @staticmethod
    def _hurt(item: Advance) -> dict[str, Any]:
        return {
            "name": item.subscriber,
            "from": dump_positions(item.start),
            "to": dump_positions(item.end),
            "bytes": item.bytes,
            "events": item.events,
        }

    async def _put_moves(self, moves: Sequence[_Move], *others: TablePut) -> None:
        puts = [*others, *await self._move_puts(moves)]
        if not puts:
            return
        found = self._found
        # The truncation itself replaces the stream's record. This step does not, but the same changes must refuse it.
        versions = await self._ctx.metadata.put(*puts, found.view.check(), *found.levels.checks)
        if others:
            await self._set_changed(versions[0])
        self._log_moves(moves)

    def _log_moves(self, moves: Sequence[_Move]) -> None:
        ctx, name = self._ctx, str(self._found.name)
        for item in (item for move in moves for item in move.advances):
            log.warning(
                "retention took unread data from a subscriber",
                extra={
                    "stream": name,
                    "subscriber": item.subscriber,
                    "lost_bytes": item.bytes,
                    "rule": item.rule.value,
                },
            )
            ctx.telemetry.add("evicted_bytes", item.bytes)
        for move in moves:
            if move.drop is not None:
                log.warning("retention dropped a silent subscriber", extra={"stream": name, "subscriber": move.name})
                ctx.telemetry.add("dropped_subscribers")
        if moves:
            ctx.audit.soon()

    async def _forget(self, names: Sequence[str]) -> None:
        """Remove the records of dropped subscribers, also those that an interrupted call left."""
        gone: list[TableRemoval] = list(self._found.dropped)
        wanted = [keys.subscriber(self._found.name, name) for name in names]
        for entry in await self._ctx.metadata.entries(wanted) if wanted else ():
            item: Stored[SubscriberRecord] = stored(entry, SubscriberRecord)
            if item.value is not None and item.value.dropped:
                gone.append(item.remove())
        if gone:
            await self._ctx.metadata.remove_if_unchanged(gone)

    # --- the head and the retention set --------------------------------------------------------------------------

    def _goes_on(self, cut: Positions) -> bool:
        return compare(self._found.history, cut, self._found.first) is not CutOrder.EQUAL

    def _set_puts(self) -> list[TablePut]:
        """The decision's changes of the retention set; empty if it does not change."""
        found, record, prune_ms = self._found, self._decision.record, self._decision.prune_through_ms
        forgets = prune_ms is not None and any(item.time_ms <= prune_ms for item in found.members.records[:1])
        if record is not None and prune_ms is not None and record.time_ms <= prune_ms:
            # It would be dropped in the same step. Later records are newer.
            record = None
        if record is None and not forgets:
            return []
        return found.members.puts(found.name, record=record, prune_ms=prune_ms)

    async def _set_changed(self, version: int) -> None:
        found, decision = self._found, self._decision
        await self._ctx.sets.changed(
            found.name, found.members, version, record=decision.record, prune_ms=decision.prune_through_ms
        )

    async def _truncate(self, cut: Positions, moves: Sequence[_Move]) -> None:
        ctx, found, decision = self._ctx, self._found, self._decision
        cut = within_ends(found.history, cut)
        set_puts = self._set_puts()
        hurt = [self._hurt(item) for item in (*decision.expirations, *decision.evictions)]
        puts: list[TablePut | TableCheck] = [
            *set_puts,
            *await self._move_puts(moves),
            *await truncation_puts(
                ctx,
                found.view,
                found.history,
                found.first,
                cut,
                rule=decision.rule.value,
                policy=mattered(found, decision.rule),
                hurt=hurt[: CHUNK // 4],
            ),
        ]
        begun = await begin_truncation(
            ctx,
            found.view,
            StreamCut(found.name, dict(cut)),
            *puts,
            *found.levels.checks,
            grace_ms=found.policy.grace_ms,
        )
        self._log_moves(moves)
        ctx.audit.soon()
        if begun is None:
            return
        await finish_truncation(ctx, begun)
        if set_puts:
            (entry,) = await ctx.metadata.entries([keys.retention_set(found.name)])
            await self._set_changed(entry.version)
        log.info(
            "retention truncated a stream",
            extra={"stream": str(found.name), "rule": decision.rule.value, "freed_bytes": decision.frees_bytes},
        )
        ctx.telemetry.add("retention_truncations", 1, (decision.rule.value,))
