"""Subscribers: reader groups whose acknowledged cuts limit retention. Operators can describe, move and remove them
too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.readers import SubscriberRecord
from penstock.codec.control.record import dump_positions
from penstock.codec.control.streams import CounterRecord, HeadRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import Stored, changing, overwrite
from penstock.controller.retention.answers import settlement_of
from penstock.controller.retention.append_limits import AppendLimits
from penstock.controller.retention.facts import Snapshot, load_subscribers, look
from penstock.controller.retention.removals import LEFT, MANUAL
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.cuts import asked_again, check_bound, check_given, retry_if_moved
from penstock.controller.streams.tails import head_positions, tail_positions
from penstock.controller.streams.workflows import exclusive, settled
from penstock.core.cuts.check import check_position, check_range
from penstock.core.cuts.order import Positions, at_or_after, lower_bound, size_till, upper_bound
from penstock.core.planner_json.stream import encode_cut
from penstock.core.retention.facts import HolderKind
from penstock.core.streams.history import StreamHistory
from penstock.core.streams.query_source import check_publisher, is_made_by_query, owned_by, owner_in_words
from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    CorruptDataError,
    GenerationMismatchError,
    InvalidCutError,
    NotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
    TruncatedError,
)
from penstock.model.names import READER_GROUP_PREFIX, StreamName, segment_name
from penstock.model.queries import QuerySource
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.data.tables import TablePut


class Subscribers:
    """Subscriptions of all streams. Retention checks a stream soon after a subscriber has acknowledged more of it."""

    def __init__(self, ctx: Context, limits: AppendLimits) -> None:
        self._ctx = ctx
        self._limits = limits

    async def list(self, stream: StreamName) -> Sequence[str]:
        """As ``scope/group``, sorted."""
        view = await self._ctx.streams.get(stream)
        return tuple(await load_subscribers(self._ctx, view))

    async def check_bounds(self, stream: StreamName, start: StreamCut, end: StreamCut) -> None:
        """Raises ScopeNotFoundError, StreamNotFoundError, InvalidCutError (also for an end before the start)."""
        await retry_if_moved(stream, lambda: self._check_bounds(stream, start, end))

    async def _check_bounds(self, name: StreamName, start: StreamCut, end: StreamCut) -> None:
        view = await self._ctx.streams.get(name)
        history = await self._ctx.histories.of(view)
        for cut in (start, end):
            await check_bound(self._ctx.segments, view, history, cut)
        if not (start.is_unbounded or end.is_unbounded):
            check_range(name, history, start.positions, end.positions)

    async def join(self, stream: StreamName, group: str, *, group_id: UUID, generation: int, start: Positions) -> None:
        """Register the group, or raise its generation. Its acknowledged cut stays.

        A start with positions is its first acknowledged cut, from this step on. Data before the head was truncated
        before the group joined. A stream that was deleted after the start was checked is skipped, even if another stream has
        its name now: it has no data left to hold.
        """

        async def attempt() -> bool:
            view = await settled(self._ctx, stream)
            found = await self._ctx.metadata.get(keys.subscriber(stream, group), SubscriberRecord)
            known = found.value
            same = known is not None and known.incarnation == view.record.incarnation and not known.dropped
            if known is not None and same and known.group_id == group_id:
                if known.generation < generation:
                    now_ms = self._ctx.clock.now_ms()
                    await self._ctx.metadata.put(found.put(replace(known, generation=generation, updated_ms=now_ms)))
                return False
            record = SubscriberRecord(
                group_id=group_id,
                generation=generation,
                incarnation=view.record.incarnation,
                cut=await self._from_head(view, start),
                updated_ms=self._ctx.clock.now_ms(),
            )
            # A removal that was decided without this subscriber fails on the stream's record and is decided again.
            await self._ctx.metadata.put(found.put(record), view.put(view.record))
            return bool(start)

        try:
            async with exclusive(self._ctx, stream):
                moved = await changing(attempt)
        except (StreamNotFoundError, InvalidCutError):
            return
        if moved:
            self._ctx.attention.dirty(stream)

    async def _from_head(self, view: StreamView, start: Positions) -> Positions | None:
        if not start:
            return None
        history = await self._ctx.histories.of(view)
        check_position(view.name, history, StreamCut(view.name, start))
        head = (await self._ctx.metadata.get(keys.head(view.name), HeadRecord)).value
        first = head_positions(history, head)
        return dict(start) if at_or_after(history, start, first) else upper_bound(history, [start, first])

    async def leave(self, stream: StreamName, group: str, *, group_id: UUID, generation: int) -> None:
        """Forget the subscription, unless it belongs to a later generation, or to a later group of the same name."""

        async def attempt() -> None:
            found = await self._ctx.metadata.get(keys.subscriber(stream, group), SubscriberRecord)
            known = found.value
            if known is None or known.dropped or known.group_id != group_id or known.generation > generation:
                return
            await self._forget(stream, group, found, known, rule=LEFT)

        await changing(attempt)
        self._ctx.audit.soon()
        self._ctx.attention.dirty(stream)

    async def _forget(
        self,
        name: StreamName,
        group: str,
        found: Stored[SubscriberRecord],
        known: SubscriberRecord,
        *,
        rule: str,
    ) -> None:
        """Remove the subscription, with its audit entry and the time at which it left the stream."""
        ctx = self._ctx
        dropped = replace(known, dropped=True)
        entry = AuditEntry(
            kind=AuditKind.DROP,
            target=str(name),
            fields={
                "rule": rule,
                "subscriber": group,
                "cut": dump_positions(known.cut or {}),
                "last_active_ms": known.updated_ms,
            },
        )
        versions = await ctx.metadata.put(found.put(dropped), self._left_put(name), *ctx.audit.puts([entry]))
        # The record already marks it as removed. If this fails, the next cycle removes the rest.
        gone = Stored(key=found.key, value=dropped, version=versions[0])
        await ctx.metadata.remove_if_unchanged([gone.remove()])

    async def publish(
        self,
        subscriber: str,
        *,
        group_id: UUID | None,
        generation: int | None,
        cut: StreamCut,
        source: QuerySource | None = None,
    ) -> None:
        """Acknowledge all data before ``cut``. None for id or generation: not compared.

        It counts as activity for ``idle.subscriber_s`` if it moves the subscriber forwards, or if nothing is unread. A
        heartbeat of a subscriber that is behind and makes no progress does not count.

        Raises, in this order: ScopeNotFoundError and StreamNotFoundError, SubscriberNotFoundError,
        GenerationMismatchError, WriterInUseError (the subscriber belongs to another query than ``source``), InvalidCutError
        (not a cut, or before the last one at some key).
        """
        await retry_if_moved(
            cut.stream, lambda: changing(lambda: self._publish(subscriber, group_id, generation, cut, source))
        )
        self._ctx.attention.dirty(cut.stream)
        self._ctx.telemetry.add("subscriber_cuts")
        self._limits.refresh_soon(cut.stream)

    async def _publish(
        self,
        subscriber: str,
        group_id: UUID | None,
        generation: int | None,
        cut: StreamCut,
        source: QuerySource | None,
    ) -> None:
        ctx = self._ctx
        view = await ctx.streams.get(cut.stream)
        found = await ctx.metadata.get(keys.subscriber(cut.stream, subscriber), SubscriberRecord)
        known = found.value
        if (
            known is None
            or known.dropped
            or known.incarnation != view.record.incarnation
            or (group_id is not None and group_id != known.group_id)
        ):
            raise SubscriberNotFoundError(
                "reader group does not subscribe to the stream", subscriber=subscriber, stream=str(cut.stream)
            )
        if generation is not None and generation != known.generation:
            raise GenerationMismatchError(
                "reader group has changed since it was read",
                subscriber=subscriber,
                generation=generation,
                now=known.generation,
            )
        check_publisher(known, source, subscriber=subscriber)
        history = await ctx.histories.of(view)
        # If a rule has moved it, its own last cut counts: the new one may be older than the rule's.
        said = known.cut if known.own is None else known.own
        await check_given(ctx.segments, view, history, cut, reached=said)
        if said is not None and not at_or_after(history, cut.positions, said):
            raise InvalidCutError(
                "cut is before the acknowledged cut of the subscriber",
                subscriber=subscriber,
                acknowledged=dict(said),
                cut=dict(cut.positions),
            )
        own, now_at = None, dict(cut.positions)
        if known.own is not None and known.cut is not None and not at_or_after(history, now_at, known.cut):
            own, now_at = now_at, upper_bound(history, [now_at, known.cut])
        owned = owned_by(known, source)
        moves_on = said is None or not at_or_after(history, said, cut.positions)
        # A run that records itself but publishes nothing new has only started. It is no activity: a query that fails at every
        # start must become idle.
        counts = moves_on or (
            owned == known and at_or_after(history, cut.positions, await tail_positions(ctx, view, history))
        )
        updated_ms = ctx.clock.now_ms() if counts else known.updated_ms
        await ctx.metadata.put(found.put(replace(owned, cut=now_at, own=own, updated_ms=updated_ms)))

    def _left_put(self, name: StreamName) -> TablePut:
        return overwrite(keys.left(name), CounterRecord(value=self._ctx.clock.now_ms()))

    # --- by operators -----------------------------------------------------------------------------------------------

    @asked_again
    async def describe(self, stream: StreamName) -> Sequence[SubscriberInfo]:
        """All subscribers, with exact events and ages, and the bytes that each keeps after all due decisions. Raises
        ScopeNotFoundError, StreamNotFoundError."""
        ctx = self._ctx
        found = await look(ctx, stream, all_counts=True)
        held: dict[str, int] = {}
        settlement = await settlement_of(ctx, found, now_ms=ctx.retention_clock.now_ms())
        for item in settlement.ranges():
            if item.kind is HolderKind.SUBSCRIBER:
                held[item.name] = held.get(item.name, 0) + item.bytes
        infos = [self._info(found, group, held.get(group, 0)) for group in found.subscribers]
        return tuple([replace(info, owner=await self._owner(found.record_of(info.name), info.name)) for info in infos])

    async def _owner(self, record: SubscriberRecord, group: str) -> str:
        is_java = not record.query and not is_made_by_query(record.group_id) and await self._has_java_state(group)
        return owner_in_words(record.query, record.group_id, is_java=is_java)

    async def _has_java_state(self, group: str) -> bool:
        """Whether the stream with the group's name has data. Only Pravega's Java client writes there."""
        scope, _, name = group.partition("/")
        stream = StreamName(scope, READER_GROUP_PREFIX + name)
        try:
            view = await self._ctx.streams.get(stream)
            tail = await tail_positions(self._ctx, view, await self._ctx.histories.of(view))
        except (NotFoundError, CorruptDataError):
            return False  # The group is being deleted or cannot be read. Its subscription is still described.
        return any(offset > 0 for offset in tail.values())

    def _info(self, found: Snapshot, group: str, held_bytes: int) -> SubscriberInfo:
        record, activity = found.record_of(group), found.facts.activity[group]
        waits_at = found.facts.subscribers[group] or found.first
        oldest_ms = activity.oldest_unacked_ms
        return SubscriberInfo(
            name=group,
            generation=record.generation,
            cut=None if record.cut is None else StreamCut(found.name, dict(record.cut)),
            updated_ms=record.updated_ms,
            lag_bytes=max(0, size_till(found.history, found.tail.positions) - size_till(found.history, waits_at)),
            lag_events=-1 if activity.backlog_events is None else activity.backlog_events,
            lag_ms=None if oldest_ms is None else max(0, self._ctx.retention_clock.now_ms() - oldest_ms),
            held_bytes=held_bytes,
            query=record.query,
        )

    async def move(
        self, stream: StreamName, subscriber: str, cut: StreamCut, *, dry_run: bool = False
    ) -> SubscriberMove:
        """Set the acknowledged cut; ``dry_run``: only return what that would do.

        Returns what ``ControlPlane.subscribers.move`` returns. Unbounded ``cut``: the tail.
        Raises: ScopeNotFoundError, StreamNotFoundError, SubscriberNotFoundError, InvalidCutError (no cut of the stream, or
        beyond its tail), TruncatedError (before the head at some key).
        """
        ctx = self._ctx

        async def look() -> SubscriberMove:
            return (await self._target(stream, subscriber, cut)).answer

        if dry_run:
            return await retry_if_moved(stream, look)

        async def attempt() -> SubscriberMove:
            await settled(ctx, stream)
            target = await self._target(stream, subscriber, cut)
            await self._put_move(target)
            return target.answer

        # A cycle that has read the old cut must not remove the data that this move gives back.
        async with exclusive(ctx, stream):
            answer = await changing(attempt)
        ctx.audit.soon()
        ctx.attention.dirty(stream)
        await self._limits.renew(stream)
        return answer

    async def _target(self, name: StreamName, group: str, cut: StreamCut) -> _Target:
        ctx = self._ctx
        view, head = await ctx.streams.get_with_head(name)
        found = await self._there(view, group)
        history = await ctx.histories.of(view)
        first = head_positions(history, head.value)
        tail = await tail_positions(ctx, view, history)
        wanted = tail if cut.is_unbounded else dict(cut.positions)
        await check_bound(ctx.segments, view, history, cut)
        if not cut.is_unbounded:
            self._check_not_gone(view, history, first, wanted)
        known = found.value
        start = first if known is None or known.cut is None else known.cut
        if not at_or_after(history, start, first):
            start = upper_bound(history, [start, first])
        lower = lower_bound(history, [start, wanted])
        gained = await ctx.events.between(name, history, lower, wanted)
        given_back = await ctx.events.between(name, history, lower, start)
        answer = SubscriberMove(
            stream=str(name),
            subscriber=group,
            start=encode_cut(start),
            end=encode_cut(wanted),
            from_cut=StreamCut(name, dict(start)).to_text(),
            lower_cut=StreamCut(name, dict(lower)).to_text(),
            bytes=size_till(history, wanted) - size_till(history, start),
            events=None if gained is None or given_back is None else gained - given_back,
            passed_bytes=size_till(history, wanted) - size_till(history, lower),
            passed_events=gained,
        )
        return _Target(view=view, group=group, found=found, start=start, wanted=wanted, answer=answer)

    def _check_not_gone(self, view: StreamView, history: StreamHistory, first: Positions, wanted: Positions) -> None:
        if not at_or_after(history, wanted, first):
            segment = next((item for item in sorted(first) if wanted.get(item, -1) < first[item]), min(first))
            raise TruncatedError(
                "cut is before the head of the stream: its data is deleted",
                segment=segment_name(view.name, segment),
                start_offset=max(first[segment], 0),
            )

    async def _there(self, view: StreamView, group: str) -> Stored[SubscriberRecord]:
        """Raises SubscriberNotFoundError."""
        found = await self._ctx.metadata.get(keys.subscriber(view.name, group), SubscriberRecord)
        known = found.value
        if known is None or known.dropped or known.incarnation != view.record.incarnation:
            raise SubscriberNotFoundError(
                "reader group does not subscribe to the stream", subscriber=group, stream=str(view.name)
            )
        return found

    async def _put_move(self, target: _Target) -> None:
        ctx, known = self._ctx, target.found.value
        if known is None:
            return
        entry = AuditEntry(
            kind=AuditKind.MOVE,
            target=str(target.view.name),
            fields={
                "rule": MANUAL,
                "bytes": target.answer.bytes,
                "events": target.answer.events,
                "subscribers": [
                    {
                        "name": target.group,
                        "from": dump_positions(target.start),
                        "to": dump_positions(target.wanted),
                        "bytes": target.answer.bytes,
                        "events": target.answer.events,
                    }
                ],
            },
        )
        # The move is no activity of the group. The group may publish any cut from its new position on.
        moved = replace(known, cut=dict(target.wanted), own=None)
        view = target.view
        await ctx.metadata.put(target.found.put(moved), view.put(view.record), *ctx.audit.puts([entry]))

    async def remove(self, stream: StreamName, subscriber: str) -> None:
        """Forget the subscription. Raises ScopeNotFoundError, StreamNotFoundError, SubscriberNotFoundError."""
        ctx = self._ctx

        async def attempt() -> None:
            view = await ctx.streams.get(stream)
            found = await self._there(view, subscriber)
            if found.value is None:
                return
            await self._forget(stream, subscriber, found, found.value, rule=MANUAL)

        await changing(attempt)
        ctx.audit.soon()
        ctx.attention.dirty(stream)
        self._limits.refresh_soon(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A checked move: its start, its target, and the data that it skips."""

    view: StreamView
    group: str
    found: Stored[SubscriberRecord]
    start: Positions
    wanted: Positions
    answer: SubscriberMove
