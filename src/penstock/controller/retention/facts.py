"""Gathers the planner's facts about a stream. The cost grows with what has changed since the last look.

Source: docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace

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
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import TableRemoval


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A stream at one moment: its records with the versions that changes are conditional on, and the facts."""

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
    """Subscribers of the stream by ``scope/group``, sorted; without those of an earlier stream of this name, and
    without dropped ones. ``dropped`` gets the removals of the records of dropped ones.
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
    """As ``stored_subscribers``, for callers that only read."""
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
    """As ``snapshot``, without the stream's lock: consistent, as if read at one moment.

    Raises: ScopeNotFoundError, StreamNotFoundError; UnavailableError if it changes faster than it can be read.
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
    """Gather the planner's facts about the stream.

    ``frequency_ms``: least age of the newest record before another is added, more if the policy wants sparser records;
    0: add one in any case. ``change``: replaces the stream's document. ``all_counts``: unread events and ages of all
    subscribers, even if no rule needs them. Raises: SegmentNotFoundError if the stream has changed since ``view`` was
    read.
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
    """Return what ``snapshot`` would return, with a record in any case, if the decision were performed and nothing else
    happened. Changes nothing. Raises as ``snapshot``."""
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
    """Gathers the facts of one snapshot."""

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
        """All facts except the holds, whether a truncation is in progress, and when the stream was last used."""
        ctx, policy, records = self.ctx, self.policy, self.records
        if frequency_ms:
            frequency_ms = record_interval_ms(policy, cycle_ms=frequency_ms) or frequency_ms
        if records and records[-1].positions == self.tail.positions:
            # An idle stream would repeat the same record.
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
        """The end of the stream as a record, unless an earlier length is not known yet: the record would stay too
        small."""
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
        """The position from which the subscriber still needs data; empty if it has published nothing.

        Data before the head is lost to it and must not count as kept. Otherwise a subscriber that a maximum once
        overruled would seem to keep more than the maximum forever, and would lose all its data in each cycle.
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
        """Latest time at which the oldest unread event was written; None if nothing is unread.

        It existed when the first record beyond the cut was made, and no later than the last event.
        """
        records, size = self.records, size_till(self.history, cut)

        def has_unread(positions: Positions) -> bool:
            # Different cuts between two epochs can have no data between them.
            return size_till(self.history, upper_bound(self.history, [cut, positions])) > size

        if not has_unread(self.tail.positions):
            return None
        place = bisect_left(range(len(records)), True, key=lambda i: has_unread(records[i].positions))
        times = [records[place].time_ms] if place < len(records) else [self.ctx.retention_clock.now_ms()]
        if self.tail.last_append_ms is not None:
            times.append(self.ctx.retention_clock.stamped_ms(self.tail.last_append_ms))
        return min(times)

    async def last_used_ms(self, left: CounterRecord | None) -> int | None:
        """When the stream last got an event, was created, or lost a subscriber."""
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
                # It was truncated away; use the other segments.
                continue
        return max(times, default=self.view.record.created_ms)
