"""The planner's answers to users: what would be deleted, why data is kept, when and why data was deleted. Read-only.

Source: docs/formats/planner.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from penstock.codec.control.readers import PastTruncationsRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.retention.facts import Snapshot, look, snapshot_after
from penstock.controller.retention.policies import UNREADABLE, document_of
from penstock.controller.retention.steps import decided
from penstock.controller.streams.cuts import asked_again, check_bound, retry_if_moved
from penstock.core.cuts.order import Positions, at_or_after
from penstock.core.planner_json.answers import ranges_of, run_of
from penstock.core.planner_json.facts_line import facts_of
from penstock.core.planner_json.requests import FactsLine
from penstock.core.planner_json.stream import encode_cut
from penstock.core.policies.levels import check_effective, validate
from penstock.core.policies.locks import check_change
from penstock.core.policies.sentence import sentence
from penstock.core.retention.decision import RetentionDecision
from penstock.core.retention.facts import HeldRange, HolderKind, StreamCutRecord
from penstock.core.retention.settlement import Settlement, goes_on
from penstock.model.answers.explanation import Explanation, GoneData
from penstock.model.answers.facts import StreamFacts
from penstock.model.answers.plan import RetentionPlan
from penstock.model.cuts import StreamCut
from penstock.model.errors import RetentionLockError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyDocument
from penstock.model.segments import SegmentId


async def settlement_of(ctx: Context, found: Snapshot, *, now_ms: int) -> Settlement:
    """What cycles would decide from here on, until nothing is due, if nobody writes or acknowledges."""
    decisions = [item async for _, item in _steps(ctx, found, now_ms=now_ms)]
    return Settlement(decisions=decisions)


async def _steps(ctx: Context, found: Snapshot, *, now_ms: int) -> AsyncIterator[tuple[Snapshot, RetentionDecision]]:
    """Each decision with its facts, until nothing is due."""
    made = 0
    while True:
        decision = await decided(ctx, found, now_ms=now_ms)
        made += 1
        yield found, decision
        if not goes_on(decision, made):
            return
        found = await snapshot_after(ctx, found, decision)


@asked_again
async def planned(ctx: Context, name: StreamName, *, change: PolicyDocument | None, at_ms: int | None) -> RetentionPlan:
    """What would be done at ``at_ms`` with ``change`` as the stream's document, until nothing is due.

    A time in the past counts as now. Assumes that nobody appends or acknowledges until then.
    Raises: ScopeNotFoundError, StreamNotFoundError, InvalidArgumentError, UnavailableError.
    """
    checked = None if change is None else validate(change, name)
    found = await look(ctx, name, change=checked)
    if checked is not None and not found.levels.unreadable:
        check_effective(found.policy, name)
    now_ms = ctx.retention_clock.now_ms()
    when_ms = now_ms if at_ms is None else max(now_ms, at_ms)
    settlement = await settlement_of(ctx, found, now_ms=when_ms)
    cut, times = settlement.truncate, settlement.times_ms()
    if times is not None and times[0] is None and found.facts.head is None:
        # Nothing was ever truncated: the oldest byte is as old as the stream at most.
        times = (ctx.retention_clock.began_ms(found.view.record.created_ms), times[1])
    return RetentionPlan(
        **asdict(run_of(str(name), settlement)),
        at_ms=when_ms,
        events=0 if cut is None else await ctx.events.between(name, found.history, found.first, cut),
        time_range_ms=None if times is None else list(times),
        subscribers=settlement.hurt,
        policy=found.policy,
        unreadable=found.levels.unreadable,
        sentence=_sentence(ctx, found),
        locked="" if checked is None else _locked(ctx, found),
    )


def _locked(ctx: Context, found: Snapshot) -> str:
    """Why a lock refuses the changed document of the stream; empty if none does, or the present one is unreadable."""
    after = found.levels.documents
    try:
        before = replace(after, stream=document_of(found.view.record))
        check_change(before, after, now_ms=ctx.retention_clock.certain_ms())
    except RetentionLockError as error:
        return str(error)
    except UNREADABLE:
        return ""
    return ""


@asked_again
async def stream_facts(ctx: Context, name: StreamName, *, change: PolicyDocument | None) -> StreamFacts:
    """What the planner knows of the stream now, with ``change`` as the stream's document.

    The planner decides from these facts as the next cycle will, except that it does not count lost events exactly.
    Raises: ScopeNotFoundError, StreamNotFoundError, InvalidArgumentError, UnavailableError.
    """
    checked = None if change is None else validate(change, name)
    found = await look(ctx, name, change=checked)
    if checked is not None and not found.levels.unreadable:
        check_effective(found.policy, name)
    now_ms = ctx.retention_clock.now_ms()
    facts = replace(found.facts, boundaries=await _all_boundaries(ctx, found, now_ms=now_ms))
    return facts_of(FactsLine(id=str(name), now_ms=now_ms, scope=name.scope, name=name.stream, facts=facts))


async def _all_boundaries(ctx: Context, found: Snapshot, *, now_ms: int) -> Sequence[StreamCutRecord]:
    """The cuts that the due decisions need, with their events if a quota counts events."""
    known: dict[tuple[tuple[SegmentId, int], ...], StreamCutRecord] = {}
    async for step, _ in _steps(ctx, found, now_ms=now_ms):
        for item in step.facts.boundaries:
            known.setdefault(tuple(sorted(item.positions.items())), item)
    before = found.facts.head_event_count
    if found.policy.backlog_events is None or before is None:
        return tuple(known.values())
    counted: list[StreamCutRecord] = []
    for item in known.values():
        count = await ctx.events.between(found.name, found.history, found.first, item.positions)
        counted.append(replace(item, event_count=None if count is None else before + count))
    return counted


def _sentence(ctx: Context, found: Snapshot) -> str:
    if found.levels.unreadable:
        return "everything is kept: the policy cannot be read"
    return sentence(found.policy, cycle_ms=ctx.settings.retention_cycle_ms)


@asked_again
async def explained(ctx: Context, name: StreamName, *, position: StreamCut | None) -> Explanation:
    """What would be done now until nothing is due, and what keeps each byte, or the one at ``position``.

    Raises: ScopeNotFoundError, StreamNotFoundError, InvalidCutError, UnavailableError.
    """
    found = await retry_if_moved(name, lambda: _look_with(ctx, name, position))
    now_ms = ctx.retention_clock.now_ms()
    settlement = await settlement_of(ctx, found, now_ms=now_ms)
    run = asdict(run_of(str(name), settlement))
    run["why"] = f"{settlement.why} {settlement.stays}".strip()
    ranges: Sequence[HeldRange] = ()
    release_ms: int | UnsetType | None = None
    gone: GoneData | UnsetType | None = None
    if position is None or position.is_unbounded:
        ranges, release_ms, gone = settlement.ranges(), UNSET, UNSET
    elif not at_or_after(found.history, position.positions, found.first):
        gone = await _gone(ctx, found, position.positions)
    elif (at := settlement.range_at(position.positions)) is not None:
        ranges, release_ms = [at], now_ms if at.kind is HolderKind.DUE else at.release_ms
    return Explanation(
        **run,
        policy=found.policy,
        unreadable=found.levels.unreadable,
        sentence=_sentence(ctx, found),
        ranges=ranges_of(ranges, found.facts.holds),
        earliest_release_ms=release_ms,
        gone=gone,
    )


async def _look_with(ctx: Context, name: StreamName, position: StreamCut | None) -> Snapshot:
    """Look at the stream and check that ``position`` belongs to it. Raises as ``look``, and InvalidCutError."""
    found = await look(ctx, name)
    if position is not None:
        await check_bound(ctx.segments, found.view, found.history, position, reached=found.tail.positions)
    return found


async def _gone(ctx: Context, found: Snapshot, position: Positions) -> GoneData:
    """The first recorded truncation beyond the position. If older truncations are forgotten, one of them may have
    removed the data; ``certain`` is False then."""
    record = await ctx.metadata.get(keys.past_truncations(found.name), PastTruncationsRecord)
    past = (record.value or PastTruncationsRecord()).truncations
    # From the first record with a cut on, each shows what it removed; before that it is unknown.
    remembered = sum(item.bytes for item in past)
    whole = found.head.value is not None and found.head.value.truncated_bytes <= remembered
    for place, item in enumerate(past):
        if item.cut is None:
            whole = False
        elif not at_or_after(found.history, position, item.cut):
            certain = whole or (place > 0 and past[place - 1].cut is not None)
            return GoneData(
                at_ms=item.at_ms, rule=item.rule, bytes=item.bytes, head=encode_cut(item.cut), certain=certain
            )
    return GoneData(at_ms=None, rule=None, bytes=None, head=None, certain=False)
