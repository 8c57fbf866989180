"""Subscriptions of a topic: reader groups that subscribe to its stream, and their positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from uuid import NAMESPACE_URL, uuid3

from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    ConflictError,
    GenerationMismatchError,
    InvalidCutError,
    NotFoundError,
    ReaderGroupNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.retention import Combine, Idle, Measure, PolicyDocument, Retain
from penstock.model.segments import SegmentId, make_segment_id
from penstock.net.http.pulsar.bodies import AdminError
from penstock.net.http.pulsar.context import Admin, Topic, lifted
from penstock.net.http.pulsar.names import subscriber_of, subscription_of
from penstock.net.http.pulsar.positions import Ledger, Position, with_offset
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.subscribers import SubscriberInfo

_TRIES_MAX = 16  # failed compare-and-sets in a row before the call is refused
_MADE_HERE = 3
"""The version of the group ids of subscriptions. Groups of Spark queries have version 5, all others version 3 or 4."""


class Cursors:
    """Creates, moves and removes subscriptions."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def all(self, topic: Topic) -> dict[str, SubscriberInfo]:
        """Subscriptions by name, sorted, with their lags."""
        found = await self._admin.controller.subscribers.describe(topic.stream)
        return dict(sorted((subscription_of(topic.scope, item.name), item) for item in found))

    async def names(self, topic: Topic) -> list[str]:
        found = await self._admin.controller.subscribers.list(topic.stream)
        return sorted(subscription_of(topic.scope, name) for name in found)

    async def get(self, topic: Topic, subscription: str) -> SubscriberInfo:
        """Raises AdminError 404."""
        found = (await self.all(topic)).get(subscription)
        if found is None:
            raise _not_found(topic, subscription)
        return found

    async def cut_of(self, topic: Topic, info: SubscriberInfo) -> StreamCut:
        """The acknowledged cut, never before the head, because that data is lost; the head if nothing is
        acknowledged."""
        head = await self._admin.controller.cuts.head(topic.stream)
        if info.cut is None or info.cut.is_unbounded:
            return head
        try:
            await self._admin.controller.cuts.segments_between(topic.stream, head, info.cut)
        except InvalidCutError:
            return head
        return info.cut

    async def create(self, topic: Topic, subscription: str, start: StreamCut) -> None:
        """Subscribe from ``start`` on. Raises AdminError 409 if it exists already."""
        subscriber = subscriber_of(topic.scope, subscription)
        scope, _, group = subscriber.partition("/")
        if scope != topic.scope:
            raise AdminError(412, "A subscription of another namespace cannot be created here")
        async with self._admin.lock(f"group/{subscriber}"):
            if subscriber in await self._admin.controller.subscribers.list(topic.stream):
                raise AdminError(409, "Subscription already exists for topic")
            await self._change_group(scope, group, topic.stream, start)

    async def remove(self, topic: Topic, subscription: str) -> None:
        """Raises AdminError 404."""
        controller = self._admin.controller
        subscriber = subscriber_of(topic.scope, subscription)
        scope, _, group = subscriber.partition("/")
        async with self._admin.lock(f"group/{subscriber}"):
            try:
                await controller.subscribers.remove(topic.stream, subscriber)
            except SubscriberNotFoundError as error:
                raise _not_found(topic, subscription) from error
            # The subscription no longer holds data. The group is left, which may subscribe to other topics.
            await self._change_group(scope, group, topic.stream, None)

    async def forget(self, topic: Topic, subscription: str) -> None:
        """Remove the deleted topic from the subscription's group; a group without topics is deleted."""
        subscriber = subscriber_of(topic.scope, subscription)
        scope, _, group = subscriber.partition("/")
        async with self._admin.lock(f"group/{subscriber}"):
            await self._change_group(scope, group, topic.stream, None)

    async def tidy(self, scope: str) -> None:
        """Remove the scope's groups that only subscribe to deleted streams."""
        controller = self._admin.controller
        for group in await controller.groups.list(scope):
            with suppress(ReaderGroupNotFoundError):
                known = await controller.groups.get(scope, group)
                streams = [await controller.streams.exists(name) for name in known.start_cuts]
                if known.retention is not ReaderGroupRetention.NONE and streams and not any(streams):
                    await controller.groups.delete(scope, group, group_id=known.id)

    async def _change_group(self, scope: str, group: str, stream: StreamName, start: StreamCut | None) -> None:
        """Add the stream to the group with this start, or remove it. Creates or removes the group if needed."""
        controller = self._admin.controller
        for _ in range(_TRIES_MAX):
            try:
                known = await controller.groups.get(scope, group)
            except ReaderGroupNotFoundError:
                if start is None:
                    return
                unique = f"{scope}/{group}/{stream}/{self._admin.clock.now_ms()}"
                made = ReaderGroupConfig(
                    scope=scope,
                    name=group,
                    id=uuid3(NAMESPACE_URL, unique),
                    retention=ReaderGroupRetention.MANUAL,
                    start_cuts={stream: start},
                )
                if (await controller.groups.create(made)).start_cuts.get(stream) == start:
                    return
                continue  # another call was first: join the group that it created
            if known.id.version != _MADE_HERE:
                # Its readers would also read the topic: a group that another client created is not changed.
                if start is None:
                    return
                raise AdminError(409, "A reader group of that name was created by another client")
            starts = await self._still_subscribed(known, stream)
            if start is not None:
                starts[stream] = start
            try:
                if starts:
                    await controller.groups.update(replace(known, start_cuts=starts))
                else:
                    await controller.groups.delete(scope, group, group_id=known.id)
            except (GenerationMismatchError, ReaderGroupNotFoundError):
                continue
            return
        raise AdminError(409, "Concurrent modification")

    async def _still_subscribed(self, known: ReaderGroupConfig, leaving: StreamName) -> dict[StreamName, StreamCut]:
        starts: dict[StreamName, StreamCut] = {}
        for name, cut in known.start_cuts.items():
            try:
                subscribers = await self._admin.controller.subscribers.list(name)
            except NotFoundError:
                continue
            if name != leaving and known.full_name in subscribers:
                starts[name] = cut
        return starts

    async def move(self, topic: Topic, info: SubscriberInfo, cut: StreamCut) -> SubscriberMove:
        """Acknowledge everything before ``cut``, and nothing after it."""
        return await self._admin.controller.subscribers.move(topic.stream, info.name, cut)

    async def reset(self, topic: Topic, info: SubscriberInfo, cut: StreamCut) -> None:
        """As ``move``; the readers also continue at ``cut``. Raises AdminError 412 if ``MoveReaders`` raises
        ConflictError."""
        if self._admin.move_readers is None:
            await self.move(topic, info, cut)
            return
        try:
            await self._admin.move_readers(info.name, cut)
        except ConflictError as error:
            raise AdminError(412, str(error)) from error

    async def clear(self, topic: Topic, info: SubscriberInfo) -> None:
        """As ``reset``, to the end of the partition or of all partitions. Raises AdminError 412."""
        await self.reset(topic, info, await self.end(topic, await self.cut_of(topic, info)))

    async def end(self, topic: Topic, cut: StreamCut) -> StreamCut:
        """The tail; for a partition, ``cut`` with that partition at its end."""
        tail = await self._admin.controller.cuts.tail(topic.stream)
        if topic.partition is None:
            return tail
        current = await self._current(topic)
        segment = current[topic.partition]
        return with_offset(cut, current, segment, tail.positions[segment])

    async def _current(self, topic: Topic) -> list[SegmentId]:
        return [item.segment for item in await self._admin.controller.layout.current(topic.stream)]

    async def skip(self, topic: Topic, info: SubscriberInfo, events: int) -> None:
        """As ``reset``, past the next ``events`` of one partition. Raises AdminError 405, 412."""
        only = topic.only
        if only is None:
            raise AdminError(405, "Skip messages on a partitioned topic is not allowed")
        if events <= 0:
            return
        positions = self._admin.positions
        layout = await positions.layout(topic.stream)
        cut = await self.cut_of(topic, info)
        unread, _ = await positions.backlog(layout, cut, only)
        if events >= unread:
            await self.reset(topic, info, await self.end(topic, cut))
            return
        ledger, entry = await positions.next_entry(layout, cut, only)
        offset = await positions.offset_of(topic.stream, ledger, entry)
        target = await positions.walk(topic.stream, ledger, offset, events)
        await self.reset(topic, info, self._at(topic, layout.current, cut, ledger, target))

    def _at(self, topic: Topic, current: Sequence[SegmentId], cut: StreamCut, ledger: Ledger, offset: int) -> StreamCut:
        if len(current) == 1 and ledger.segment == current[0]:
            return StreamCut(topic.stream, {ledger.segment: offset})
        if ledger.segment not in current:
            raise AdminError(412, "The position is from before the number of partitions was changed")
        return with_offset(cut, current, ledger.segment, offset)

    async def resolve(
        self, topic: Topic, cut: StreamCut, position: Position, *, behind: bool = False
    ) -> StreamCut | None:
        """``cut`` with the topic or partition moved to the position (``behind``: past the event at it).

        None for an invalid position: in no ledger of the topic, or past its end. A position before the head becomes the
        head.
        """
        positions = self._admin.positions
        if position.is_latest:
            return await self.end(topic, cut)
        if position.is_earliest:
            return await self._start(topic, cut)
        layout = await positions.layout(topic.stream)
        found = layout.of(position.ledger)
        if found is None or (topic.only is not None and found[0] != topic.only):
            return None
        ledger = found[1]
        if position.entry > ledger.info.event_count:
            return None
        entry = max(0, position.entry) + (1 if behind and position.entry >= 0 else 0)
        offset = await positions.offset_of(topic.stream, ledger, entry)
        return self._at(topic, layout.current, cut, ledger, offset)

    async def _start(self, topic: Topic, cut: StreamCut) -> StreamCut:
        head = await self._admin.controller.cuts.head(topic.stream)
        if topic.partition is None:
            return head
        current = await self._current(topic)
        if set(head.positions) != set(current):
            raise AdminError(412, "The topic holds data from before the number of partitions was changed")
        segment = current[topic.partition]
        return with_offset(cut, current, segment, head.positions[segment])

    async def expire(self, topic: Topic, info: SubscriberInfo, older_than_s: int) -> None:
        """Acknowledge older events: exactly those that a time-to-live of that many seconds would."""
        cut = await self.cut_of(topic, info)
        if older_than_s <= 0:
            await self.move(topic, info, await self.end(topic, cut))
            return
        change = PolicyDocument(backlog=replace(lifted(), ttl_s=older_than_s), idle=_NEVER_IDLE)
        plan = await self._admin.controller.retention.plan(topic.stream, change=change)
        for advance in plan.expire:
            if advance.subscriber == info.name:
                target = _cut(topic.stream, advance.end)
                await self.move(topic, info, await self._component(topic, cut, target))

    async def at_time(self, topic: Topic, cut: StreamCut, at_ms: int) -> StreamCut:
        """The last recorded cut before which everything is older than ``at_ms``; the head if none is recorded."""
        age_ms = self._admin.clock.now_ms() - at_ms
        if age_ms < 0:
            return await self.end(topic, cut)
        age_s = age_ms // 1000 if age_ms % 1000 == 0 else age_ms / 1000
        # A policy whose minimum is also its maximum: the data that it would keep begins at the newest record of at
        # least that age.
        retain = Retain(
            min_bytes=0, min_age_s=age_s, combine=Combine.ALL, max_bytes=None, max_age_s=age_s, measure=Measure.STREAM
        )
        change = PolicyDocument(retain=retain, backlog=lifted(), idle=_NEVER_IDLE)
        plan = await self._admin.controller.retention.plan(topic.stream, change=change)
        start = await self._start(topic, cut)
        if plan.candidate is None:
            return start
        target = _cut(topic.stream, plan.candidate)
        head = await self._admin.controller.cuts.head(topic.stream)
        try:
            await self._admin.controller.cuts.segments_between(topic.stream, head, target)
        except InvalidCutError:
            return start
        return await self._component(topic, cut, target)

    async def _component(self, topic: Topic, cut: StreamCut, target: StreamCut) -> StreamCut:
        """All of ``target``, or ``cut`` with only the partition moved to ``target``."""
        if topic.partition is None:
            return target
        current = await self._current(topic)
        if set(target.positions) != set(current):
            raise AdminError(412, "The topic holds data from before the number of partitions was changed")
        segment = current[topic.partition]
        return with_offset(cut, current, segment, target.positions[segment])


_NEVER_IDLE = Idle(subscriber_s=None, stream_s=None)


def _not_found(topic: Topic, subscription: str) -> AdminError:
    return AdminError(404, f"Subscription {subscription} not found for topic {topic}")


def _cut(stream: StreamName, positions: Mapping[str, int]) -> StreamCut:
    """A cut as the planner writes it: ``number#epoch`` to offset."""
    found: dict[SegmentId, int] = {}
    for text, offset in positions.items():
        number, _, epoch = text.partition("#")
        found[make_segment_id(int(epoch), int(number))] = offset
    return StreamCut(stream, found)
