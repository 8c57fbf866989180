"""One retention cycle of one stream: gather the facts, ask the planner, do what it says.

The dry run asks the same planner with the same facts and stops there. Source: docs/design/0007-retention.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from penstock.codec.metadata import HeadRecord
from penstock.codec.reader_metadata import EvictionsRecord, SubscriberRecord, TailRecord
from penstock.controller import keys
from penstock.controller.context import Context, StreamView
from penstock.controller.metadata import changing, overwrite, stored
from penstock.controller.tails import load_tail, tail_positions
from penstock.controller.truncation import begin_truncation, finish_truncation
from penstock.controller.workflows import exclusive, settled
from penstock.core.cut_order import (
    CutOrder,
    Positions,
    at_or_after,
    compare,
    head_of,
    missing_lengths,
    size_till,
    upper_bound,
)
from penstock.core.history import StreamHistory
from penstock.core.retention import RetentionDecision, RetentionFacts, StreamCutRecord, decide
from penstock.core.retention_json import encode_decision, encode_ranges
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX
from penstock.ports.segment_service import ANY_VERSION, TablePut

log = logging.getLogger(__name__)


async def load_subscribers(ctx: Context, view: StreamView) -> dict[str, SubscriberRecord]:
    """Subscribers of the stream by ``scope/group``, sorted; none of an earlier stream of this name."""
    prefix = keys.subscribers(view.name)
    found: dict[str, SubscriberRecord] = {}
    async for entry in ctx.metadata.scan_all(prefix):
        record = SubscriberRecord.decode(entry.value)
        if record.incarnation == view.record.incarnation:
            found[entry.key[len(prefix) :].decode()] = record
    return found


async def gather(
    ctx: Context,
    view: StreamView,
    head: HeadRecord | None,
    history: StreamHistory,
    tail: Positions,
    subscribers: Mapping[str, SubscriberRecord],
    *,
    frequency_ms: int,
) -> RetentionFacts:
    """What the planner has to know. ``frequency_ms``: how old the newest record must be for another one."""
    records = [
        StreamCutRecord(time_ms=item.time_ms, size_bytes=item.size_bytes, positions=item.cut)
        async for entry in ctx.metadata.scan_all(keys.tails(view.name))
        for item in (TailRecord.decode(entry.value),)
    ]
    if records and records[-1].positions == tail:
        # An idle stream would say the same thing again and again.
        frequency_ms = LONG_MAX
    end = None
    if not missing_lengths(history, tail):
        end = StreamCutRecord(time_ms=ctx.clock.now_ms(), size_bytes=size_till(history, tail), positions=tail)
    return RetentionFacts(
        history=history,
        policy=view.record.config.retention,
        head=None if head is None or not head.visible else head.visible,
        truncating=head is not None and head.pending is not None,
        retention_set=records,
        subscribers={name: _waits_at(history, head, item) for name, item in subscribers.items()},
        tail=end,
        frequency_ms=frequency_ms,
    )


class RetentionCycle:
    """Runs and explains cycles."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def run(self, name: StreamName, *, frequency_ms: int = 0) -> Mapping[str, Any]:
        """Run one cycle, and return the decision as docs/formats/planner.md has it.

        Raises: ScopeNotFoundError, StreamNotFoundError.
        """
        return await self._ctx.tasks.run(self._run(name, frequency_ms))

    async def _run(self, name: StreamName, frequency_ms: int) -> Mapping[str, Any]:
        ctx = self._ctx

        async def attempt() -> RetentionDecision:
            view = await settled(ctx, name)
            head = await ctx.metadata.get(keys.head(name), HeadRecord)
            history = await ctx.histories.of(view)
            tail = await tail_positions(ctx, view, history)
            subscribers = await load_subscribers(ctx, view)
            facts = await gather(ctx, view, head.value, history, tail, subscribers, frequency_ms=frequency_ms)
            decision = decide(facts, now_ms=ctx.clock.now_ms())
            await self._perform(view, facts, decision)
            return decision

        async with exclusive(ctx, name):
            decision = await changing(attempt)
        return encode_decision(str(name), decision)

    async def _perform(self, view: StreamView, facts: RetentionFacts, decision: RetentionDecision) -> None:
        ctx, name = self._ctx, view.name
        record, prune_ms = decision.record, decision.prune_through_ms
        moves = decision.truncate is not None and _moves(facts, decision.truncate)
        gone_at_once = record is not None and prune_ms is not None and record.time_ms <= prune_ms
        if record is not None and (moves or not gone_at_once):
            entry = TailRecord(time_ms=record.time_ms, size_bytes=record.size_bytes, cut=record.positions)
            await ctx.metadata.put(overwrite(keys.tail(name, record.time_ms), entry))
        if moves and decision.truncate is not None:
            cut = StreamCut(name, dict(decision.truncate))
            begun = await begin_truncation(ctx, view, cut, *await self._eviction_puts(view, decision))
            if begun is not None:
                await finish_truncation(ctx, begun)
            log.info(
                "retention truncated a stream",
                extra={"stream": str(name), "rule": decision.rule.value, "freed_bytes": decision.frees_bytes},
            )
            ctx.telemetry.add("retention_truncations")
        if prune_ms is not None and decision.truncate is not None:
            await self._prune(name, prune_ms)

    async def _prune(self, name: StreamName, through_ms: int) -> None:
        ctx = self._ctx
        last = keys.tail(name, through_ms)
        gone = [entry.key async for entry in ctx.metadata.scan_all(keys.tails(name)) if entry.key <= last]
        if gone:
            await ctx.metadata.remove_keys(gone)

    async def _eviction_puts(self, view: StreamView, decision: RetentionDecision) -> list[TablePut]:
        """The record of who loses unread data, to be written in the very step that takes it."""
        if not decision.evictions:
            return []
        ctx = self._ctx
        (entry,) = await ctx.metadata.entries([keys.evictions(view.name)])
        known = stored(entry, EvictionsRecord).value or EvictionsRecord()
        now_ms = ctx.clock.now_ms()
        fresh = [{"at_ms": now_ms, **item} for item in encode_decision(None, decision)["evict"]]
        for item in fresh:
            log.warning(
                "retention took unread data from a subscriber",
                extra={"stream": str(view.name), "subscriber": item["subscriber"], "lost_bytes": item["bytes"]},
            )
            ctx.telemetry.add("evicted_bytes", int(item["bytes"]))
        kept = replace(known, evictions=(*known.evictions, *fresh)[-ctx.settings.evictions_max :])
        return [TablePut(key=keys.evictions(view.name), value=kept.encode(), version=ANY_VERSION)]

    async def explain(self, name: StreamName) -> Mapping[str, Any]:
        """What a cycle would decide now, and under ``ranges`` who holds each byte. Changes nothing. Raises as ``run``."""
        ctx = self._ctx
        view, head, history, tail = await load_tail(ctx, name)
        subscribers = await load_subscribers(ctx, view)
        facts = await gather(ctx, view, head, history, tail, subscribers, frequency_ms=0)
        now_ms = ctx.clock.now_ms()
        decision = decide(facts, now_ms=now_ms)
        answer = encode_decision(str(name), decision)
        why = f"{decision.why} {decision.stays}".strip()
        return {**answer, "why": why, "ranges": encode_ranges(decision.ranges())}

    async def evictions(self, name: StreamName) -> list[Mapping[str, Any]]:
        """The latest evictions of the stream's subscribers, oldest first."""
        await self._ctx.stream(name)
        found = await self._ctx.metadata.get(keys.evictions(name), EvictionsRecord)
        return [] if found.value is None else list(found.value.evictions)


def _waits_at(history: StreamHistory, head: HeadRecord | None, subscriber: SubscriberRecord) -> Positions:
    """From where on the subscriber still needs data; empty where it has published nothing.

    What lies before the head is lost to it and must not count as kept: a subscriber once overruled by a maximum would else
    look as if it kept more than that for ever, and lose everything at each cycle.
    """
    if subscriber.cut is None:
        return {}
    if head is None or not head.visible or at_or_after(history, subscriber.cut, head.visible):
        return subscriber.cut
    return upper_bound(history, [subscriber.cut, head.visible])


def _moves(facts: RetentionFacts, cut: Positions) -> bool:
    head = facts.head or head_of(facts.history)
    return compare(facts.history, cut, head) is not CutOrder.EQUAL
