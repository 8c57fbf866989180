"""Everything the planner has to know of a stream, gathered at the price of what has changed since the last look.

Source: docs/design/0006-controller.md, "Retention".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from penstock.codec.control.readers import RetentionSetRecord, SubscriberRecord
from penstock.codec.control.streams import CounterRecord, HeadRecord, StreamState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.grace.records import load_grace, undo_holds, without_moves
from penstock.controller.metadata import Stored, stored
from penstock.controller.retention.holds import Placed, holds_of, to_facts
from penstock.controller.retention.policies import Levels, level_keys, read_levels
from penstock.controller.retention.sets import RetentionSet
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.boundaries import boundaries_of
from penstock.controller.streams.boundary_finder import BoundaryFinder
from penstock.controller.streams.cuts import asked_again
from penstock.controller.streams.tails import Tail, tail_of
from penstock.core.cuts.order import Positions, at_or_after, head_of, missing_lengths, size_till, upper_bound
from penstock.core.policies.levels import record_interval_ms
from penstock.core.retention.decision import RetentionDecision
from penstock.core.retention.facts import RetentionFacts, StreamCutRecord, SubscriberActivity
from penstock.core.retention.settlement import head_after, records_after, subscribers_after
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import CorruptDataError, SegmentNotFoundError, SubscriberNotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import LONG_MAX
from penstock.model.retention import EffectivePolicy, PolicyDocument
from penstock.ports.data.tables import TableRemoval


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A stream as one look has found it: the records with what a change of them is conditional on, and the facts."""

    view: StreamView
    head: Stored[HeadRecord]
    history: StreamHistory
    tail: Tail
    levels: Levels
    policy: EffectivePolicy
    members: RetentionSet
    subscribers: Mapping[str, Stored[SubscriberRecord]]
    dropped: Sequence[TableRemoval]
    holds: Sequence[Placed]
    facts: RetentionFacts
    has_quota_mark: bool

    @property
    def name(self) -> StreamName:
        return self.view.name

    @property
    def first(self) -> Positions:
        """The head that users see."""
        return self.facts.head or head_of(self.history)

    def record_of(self, subscriber: str) -> SubscriberRecord:
        record = self.subscribers[subscriber].value
        if record is None:
            raise SubscriberNotFoundError("subscriber has no record", subscriber=subscriber)
        return record


async def stored_subscribers(
    ctx: Context, view: StreamView, dropped: list[TableRemoval] | None = None
) -> dict[str, Stored[SubscriberRecord]]:
    """Subscribers of the stream by ``scope/group``, sorted; none of an earlier stream of this name, none that is dropped.

    ``dropped`` gets what takes the records of the latter away.
    """
    prefix = keys.subscribers(view.name)
    found: dict[str, Stored[SubscriberRecord]] = {}
    async for entry in ctx.metadata.scan_all(prefix):
        item: Stored[SubscriberRecord] = stored(entry, SubscriberRecord)
        if item.value is None or item.value.incarnation != view.record.incarnation:
            continue
        if not item.value.dropped:
            found[_subscriber(entry.key[len(prefix) :])] = item
        elif dropped is not None:
            dropped.append(item.remove())
    return found


def _subscriber(name: bytes) -> str:
    """Raises CorruptDataError: while a subscriber has no legal name, everything is kept for it."""
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise CorruptDataError("metadata key names no subscriber", name=name[:80]) from error


async def load_subscribers(ctx: Context, view: StreamView) -> dict[str, SubscriberRecord]:
    """As ``stored_subscribers``, for those who only look."""
    found = await stored_subscribers(ctx, view)
    return {name: item.value for name, item in found.items() if item.value is not None}


@asked_again
async def look(
    ctx: Context,
    name: StreamName,
    *,
    frequency_ms: int = 0,
    change: PolicyDocument | None = None,
    all_counts: bool = False,
) -> Snapshot:
    """As ``snapshot``, of a stream that nobody has locked: all of one moment as far as anybody can tell.

    Raises: ScopeNotFoundError, StreamNotFoundError; UnavailableError where it changes faster than it can be looked at.
    """
    view = await ctx.streams.get(name)
    return await snapshot(ctx, view, frequency_ms=frequency_ms, change=change, all_counts=all_counts)


async def snapshot(
    ctx: Context,
    view: StreamView,
    *,
    frequency_ms: int = 0,
    change: PolicyDocument | None = None,
    all_counts: bool = False,
) -> Snapshot:
    """What the planner has to know of the stream.

    ``frequency_ms``: how old the newest record must be for another one, or older where the policy asks for sparser ones; 0:
    there is to be one in any case. ``change``: takes the place of the stream's document. ``all_counts``: unread events and
    ages of all subscribers, also where no rule asks. Raises: SegmentNotFoundError where the stream has moved on since
    ``view`` was read.
    """
    name = view.name
    wanted = [keys.head(name), keys.retention_set(name), keys.left(name), keys.quota(name), *level_keys(name)]
    entries = await ctx.metadata.entries(wanted)
    head: Stored[HeadRecord] = stored(entries[0], HeadRecord)
    levels = read_levels(name, view.record, entries[4:])
    if change is not None:
        levels = levels.with_stream(change)
    policy = levels.effective
    state: Stored[RetentionSetRecord] = stored(entries[1], RetentionSetRecord)
    left: Stored[CounterRecord] = stored(entries[2], CounterRecord)
    history = await ctx.histories.of(view)
    tail = await tail_of(ctx, view, history)
    members = await ctx.sets.of(name, state)
    dropped: list[TableRemoval] = []
    subscribers = await stored_subscribers(ctx, view, dropped)
    holds = await holds_of(ctx, view)
    visible = head.value.visible if head.value is not None and head.value.visible else None
    gathering = _Gathering(ctx, view, history, visible, tail, policy, members.records, subscribers)
    facts = await gathering.facts(levels.unreadable, frequency_ms, all_counts=all_counts)
    undone = undo_holds((await load_grace(ctx.metadata, name)).values)
    facts = replace(
        facts,
        truncating=head.value is not None and head.value.pending is not None,
        last_append_ms=await gathering.last_used_ms(left.value),
        holds=[*to_facts(ctx, holds), *undone],
        policy=without_moves(policy) if undone else policy,
    )
    return Snapshot(
        view=view,
        head=head,
        history=history,
        tail=tail,
        levels=levels,
        policy=policy,
        members=members,
        subscribers=subscribers,
        dropped=dropped,
        holds=holds,
        facts=facts,
        has_quota_mark=entries[3].version >= 0,
    )


async def snapshot_after(ctx: Context, found: Snapshot, decision: RetentionDecision) -> Snapshot:
    """What ``snapshot`` would find, to be recorded in any case, if the decision were performed and nothing else happened.
    Changes nothing. Raises as ``snapshot``."""
    facts = found.facts
    cuts = subscribers_after(facts, decision)
    subscribers = {
        name: replace(item, value=replace(found.record_of(name), cut=cuts[name] or None))
        for name, item in found.subscribers.items()
        if name in cuts
    }
    records = records_after(facts.retention_set, decision)
    head = head_after(facts, decision)
    gathering = _Gathering(ctx, found.view, found.history, head, found.tail, found.policy, records, subscribers)
    last_ms = facts.last_append_ms
    if last_ms is not None and decision.drops:
        # A stream counts as used when a subscriber leaves it.
        last_ms = max(last_ms, ctx.retention_clock.stamped_ms(ctx.clock.now_ms()))
    changed = await gathering.facts(facts.unreadable, 0, all_counts=False)
    return replace(
        found,
        subscribers=subscribers,
        facts=replace(
            changed,
            truncating=facts.truncating,
            last_append_ms=last_ms,
            holds=facts.holds,
            policy=facts.policy,
        ),
    )


class _Gathering:
    """Facts in the making."""

    def __init__(
        self,
        ctx: Context,
        view: StreamView,
        history: StreamHistory,
        head: Positions | None,
        tail: Tail,
        policy: EffectivePolicy,
        records: Sequence[StreamCutRecord],
        subscribers: Mapping[str, Stored[SubscriberRecord]],
    ) -> None:
        self.ctx = ctx
        self.view = view
        self.history = history
        self.head = head
        self.tail = tail
        self.policy = policy
        self.records = records
        self.subscribers = subscribers

    async def facts(self, unreadable: str, frequency_ms: int, *, all_counts: bool) -> RetentionFacts:
        """All but the holds, whether a truncation is in flight, and when the stream was last used."""
        ctx, policy, records = self.ctx, self.policy, self.records
        if frequency_ms:
            frequency_ms = record_interval_ms(policy, cycle_ms=frequency_ms) or frequency_ms
        if records and records[-1].positions == self.tail.positions:
            # An idle stream would say the same thing again and again.
            frequency_ms = LONG_MAX
        end = self._end()
        cuts = {name: self._waits_at(item.value) for name, item in self.subscribers.items()}
        activity = {}
        for name, item in self.subscribers.items():
            if item.value is not None:
                activity[name] = await self._activity(item.value, cuts[name], all_counts=all_counts)
        head_events = None
        if policy.backlog_events is not None:
            behind = await ctx.events.between(
                self.view.name, self.history, self.head or head_of(self.history), self.tail.positions
            )
            head_events = None if behind is None else self.tail.events - behind
        return RetentionFacts(
            history=self.history,
            policy=policy,
            head=self.head,
            retention_set=records,
            subscribers=cuts,
            tail=end,
            frequency_ms=frequency_ms,
            activity=activity,
            boundaries=await self._boundaries(end, cuts, activity, unreadable=bool(unreadable)),
            head_event_count=head_events,
            unreadable=unreadable,
        )

    async def _boundaries(
        self,
        end: StreamCutRecord | None,
        cuts: Mapping[str, Positions],
        activity: Mapping[str, SubscriberActivity],
        *,
        unreadable: bool,
    ) -> Sequence[StreamCutRecord]:
        if end is None or unreadable:
            return ()
        finder = BoundaryFinder(self.ctx, self.view.name, self.history, self.records, self.head, end)
        return await boundaries_of(finder, self.policy, self.records, cuts, activity)

    def _end(self) -> StreamCutRecord | None:
        """The end of the stream as a record, unless a length before it is not known yet: it would stay too small."""
        positions = self.tail.positions
        if missing_lengths(self.history, positions):
            return None
        return StreamCutRecord(
            time_ms=self.ctx.retention_clock.now_ms(),
            size_bytes=size_till(self.history, positions),
            positions=positions,
            event_count=self.tail.events,
        )

    def _waits_at(self, subscriber: SubscriberRecord | None) -> Positions:
        """From where on the subscriber still needs data; empty where it has published nothing.

        What lies before the head is lost to it and must not count as kept: a subscriber once overruled by a maximum would
        else look as if it kept more than that for ever, and lose everything at each cycle.
        """
        if subscriber is None or subscriber.cut is None:
            return {}
        if self.head is None or at_or_after(self.history, subscriber.cut, self.head):
            return subscriber.cut
        return upper_bound(self.history, [subscriber.cut, self.head])

    async def _activity(self, record: SubscriberRecord, cut: Positions, *, all_counts: bool) -> SubscriberActivity:
        policy = self.policy
        events = oldest_ms = None
        start = cut or self.head or head_of(self.history)
        if all_counts or (policy.backlog_events is not None and cut):
            events = await self.ctx.events.between(self.view.name, self.history, start, self.tail.positions)
        if all_counts or policy.backlog_age_ms is not None:
            oldest_ms = self._oldest_unread_ms(start)
        return SubscriberActivity(
            oldest_unacked_ms=oldest_ms,
            backlog_events=events,
            last_active_ms=self.ctx.retention_clock.stamped_ms(record.updated_ms),
        )

    def _oldest_unread_ms(self, cut: Positions) -> int | None:
        """By when, at the latest, the oldest unread event was there; None where nothing is unread.

        It was there when the first record beyond the cut was made, and in any case when the last event came.
        """
        records, size = self.records, size_till(self.history, cut)

        def has_unread(positions: Positions) -> bool:
            # Between two epochs lie cuts that differ, with nothing between them.
            return size_till(self.history, upper_bound(self.history, [cut, positions])) > size

        if not has_unread(self.tail.positions):
            return None
        place = bisect_left(range(len(records)), True, key=lambda i: has_unread(records[i].positions))
        times = [records[place].time_ms] if place < len(records) else [self.ctx.retention_clock.now_ms()]
        if self.tail.last_append_ms is not None:
            times.append(self.ctx.retention_clock.stamped_ms(self.tail.last_append_ms))
        return min(times)

    async def last_used_ms(self, left: CounterRecord | None) -> int | None:
        """When the stream last took an event, was made, or was left by a subscriber."""
        if self.policy.stream_idle_ms is None or self.view.name.is_internal:
            return None
        last_ms = self.tail.last_append_ms
        if last_ms is None and self.view.record.state is StreamState.SEALED:
            last_ms = await self._last_sealed_ms()
        if last_ms is None:
            return None
        times = [last_ms, self.view.record.created_ms, *([] if left is None else [left.value])]
        return self.ctx.retention_clock.stamped_ms(max(times))

    async def _last_sealed_ms(self) -> int | None:
        times: list[int] = []
        for segment in self.tail.positions:
            try:
                times.append((await self.ctx.segments.info(segment_name(self.view.name, segment))).last_modified_ms)
            except SegmentNotFoundError:
                # Truncated away; the others tell.
                continue
        return max(times, default=self.view.record.created_ms)
