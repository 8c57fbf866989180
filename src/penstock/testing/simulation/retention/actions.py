"""What users do to streams in a long run. Each call is repeated until its outcome is known and recorded in the
model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from penstock.client.retry import RETRYABLE
from penstock.codec.events import frame_events
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    InvalidCutError,
    NotFoundError,
    QuotaExceededError,
    QuotaHeldError,
    ReaderGroupNotFoundError,
    RetentionHoldError,
    ScaleConflictError,
    SegmentNotFoundError,
    SegmentSealedError,
    SubscriberNotFoundError,
    WriterFencedError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import ReaderGroupRetention, StreamConfig
from penstock.model.retention import (
    INHERIT,
    Backlog,
    Combine,
    Idle,
    OnExceed,
    PolicyDocument,
    Retain,
    Unsubscribed,
)
from penstock.model.segments import SegmentId, even_ranges, make_segment_id
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.data.segments import Append
from penstock.testing.simulation.history import History
from penstock.testing.simulation.machine.loop import SimLoop
from penstock.testing.simulation.retention.model import Event, Forced, Held, Policied, Reading, Span, StreamModel
from penstock.testing.simulation.retention.world import DAY_S, HOUR_S, RetentionCluster

SCOPE = "sim"
_LEVEL_SLACK_S = 5.0
_HOUR, _DAY = int(HOUR_S), int(DAY_S)


class Users:
    """All users of one run. Owns only what they have observed."""

    def __init__(self, loop: SimLoop, cluster: RetentionCluster, history: History) -> None:
        self.loop = loop
        self.cluster = cluster
        self.history = history
        self.rng: random.Random = loop.fork("users")
        self.models: dict[StreamName, StreamModel] = {}
        self.writer = UUID(int=self.rng.getrandbits(128), version=4)
        self.forced: dict[StreamName, list[Forced]] = {}
        self._seen: dict[StreamName, set[str]] = {}
        self.number = 0
        self.done: dict[str, int] = {}
        self.undoable_until_s: dict[StreamName, float] = {}

    def count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def now(self) -> float:
        return self.loop.time()

    # --- creating and writing --------------------------------------------------------------------------------------

    async def create(self, name: StreamName) -> None:
        controller, config = self.cluster.controller, StreamConfig()
        try:
            await self.cluster.insist(lambda: controller.streams.create(name, config))
        except AlreadyExistsError:
            self.history.note(f"{name} was created by a lost attempt")
        self.models[name] = StreamModel(name, self.history.violation)
        self.forced[name], self._seen[name] = [], set()
        await self.learn_segments(name)
        await self.learn_policy(name, self.now())

    async def learn_segments(self, name: StreamName) -> list[SegmentId]:
        found = await self.cluster.insist(lambda: self.cluster.controller.layout.current(name))
        self.models[name].ranges |= {item.segment: item.keys for item in found}
        return [item.segment for item in found]

    async def write(self, name: StreamName, count: int) -> None:
        """Append some events, each to a random segment. Events that a quota refuses are not recorded."""
        segments = await self.learn_segments(name)
        for _ in range(count):
            event = await self._append(name, self.rng.choice(segments))
            if event is None:
                self.count("appends refused")
                return
            model = self.models[name]
            model.events.append(event)
            self.count("appends")
            if model.quota_passed(event, self.forced[name]):
                # A rule may have made room by moving or dropping a subscriber; ask before judging.
                await self.learn_forced(name)
                await self.learn_dropped(name)
                for broken in model.quota_passed(event, self.forced[name]):
                    self.history.violation("quota passed", broken)

    async def _append(self, name: StreamName, segment: SegmentId) -> Event | None:
        self.number += 1
        number, local, text = self.number, self.cluster.local, segment_name(name, segment)
        data = frame_events([f"{name}|{number}|".encode() + self.rng.randbytes(self.rng.randrange(20, 200))])
        began_s = self.now()
        while True:
            try:
                last = await local.setup_append(text, self.writer)
                if last >= number:
                    # An attempt whose answer was lost: it is the last event in the segment, because nobody else writes.
                    end = (await local.info(text)).length
                else:
                    request = Append(segment=text, writer=self.writer, data=data, event_number=number, previous=last)
                    end = (await local.append(request)).end_offset
            except (QuotaHeldError, QuotaExceededError, SegmentSealedError, SegmentNotFoundError, WriterFencedError):
                return None
            except RETRYABLE:
                await asyncio.sleep(0.5)
                continue
            return Event(number, segment, end - len(data), end, began_s, self.now(), data)

    async def scale(self, name: StreamName) -> None:
        controller = self.cluster.controller
        old = await self.learn_segments(name)
        ranges = even_ranges(self.rng.choice([count for count in (1, 2, 3) if count != len(old)]))
        try:
            await self.cluster.insist(lambda: controller.layout.scale(name, sealed=old, new_ranges=ranges))
        except ScaleConflictError:
            self.history.note(f"{name} was scaled by a lost attempt")
        await self.learn_segments(name)
        self.count("scales")

    # --- subscribers ---------------------------------------------------------------------------------------------

    async def tail(self, name: StreamName) -> Mapping[SegmentId, int]:
        return (await self.cluster.insist(lambda: self.cluster.controller.cuts.tail(name))).positions

    async def join(self, name: StreamName) -> Reading:
        self.number += 1
        group = f"g{self.number}"
        start = await self.tail(name)
        config = ReaderGroupConfig(
            scope=SCOPE,
            name=group,
            id=UUID(int=self.rng.getrandbits(128), version=4),
            retention=ReaderGroupRetention.MANUAL,
            start_cuts={name: StreamCut(name, start)},
        )
        since_s = self.now()
        await self.cluster.insist(lambda: self.cluster.controller.groups.create(config))
        reading = Reading(f"{SCOPE}/{group}", Span(since_s, self.now()), [(since_s, self.now(), start)])
        self.models[name].subscribers.setdefault(reading.name, []).append(reading)
        self.count("subscribers")
        return reading

    async def leave(self, name: StreamName, reading: Reading) -> None:
        since_s = self.now()
        group = reading.name.partition("/")[2]
        try:
            await self.cluster.insist(lambda: self.cluster.controller.groups.delete(SCOPE, group))
        except ReaderGroupNotFoundError:
            self.history.note(f"{reading.name} was deleted by a lost attempt")
        reading.span = Span(reading.span.since_s, reading.span.sure_s, since_s, self.now())

    async def publish(self, name: StreamName, reading: Reading, cut: Mapping[SegmentId, int]) -> None:
        since_s, last_s = self.now(), reading.progress_s()
        controller, given = self.cluster.controller, StreamCut(name, cut)
        try:
            await self.cluster.insist(
                lambda: controller.subscribers.publish(reading.name, group_id=None, generation=None, cut=given)
            )
        except InvalidCutError:
            # A rule has moved it past the point that it has read to.
            self.count("publications behind")
            return
        except SubscriberNotFoundError:
            self._dropped(name, reading, last_s)
            return
        reading.cuts.append((since_s, self.now(), cut))
        self.count("publications")

    def _dropped(self, name: StreamName, reading: Reading, last_s: float) -> None:
        """The store has dropped the subscriber: it must have made no progress for as long as some policy allows."""
        now_s = self.now()
        limits = [policy.subscriber_idle_ms for policy in self.models[name].policies_between(last_s, now_s)]
        if not any(limit is not None and (now_s - last_s) * 1000 >= limit for limit in limits):
            self.history.violation(
                "dropped early", f"{name} {reading.name} {limits} no progress for {now_s - last_s:.0f} s"
            )
        reading.span = Span(reading.span.since_s, reading.span.sure_s, last_s, now_s)
        self.count("dropped subscribers")

    # --- policies and holds --------------------------------------------------------------------------------------

    def draw_policy(self) -> PolicyDocument:
        rng = self.rng

        def maybe(chance: float, *values: Any) -> Any:
            return rng.choice(values) if rng.random() < chance else INHERIT

        return PolicyDocument(
            retain=Retain(
                min_bytes=maybe(0.5, 0, 500, 3000),
                min_age_s=maybe(0.4, 0, _HOUR, _DAY),
                combine=maybe(0.4, Combine.ANY, Combine.ALL),
                max_bytes=maybe(0.3, 5000, 20_000, None),
                max_age_s=maybe(0.3, 2 * _DAY, 5 * _DAY),
            ),
            unsubscribed=maybe(0.3, Unsubscribed.KEEP, Unsubscribed.RELEASE),
            backlog=Backlog(
                ttl_s=maybe(0.3, 6 * _HOUR, 2 * _DAY),
                max_bytes=maybe(0.4, 2000, 8000),
                on_exceed=maybe(0.8, *OnExceed),
                on_exceed_bytes=maybe(0.2, *OnExceed),
                evict_to=maybe(0.3, 0.5, 0.9),
            ),
            idle=Idle(subscriber_s=maybe(0.2, _DAY, 4 * _DAY)),
            grace_s=maybe(0.7, 0, 3 * _HOUR, _DAY, _DAY),
        )

    async def set_policy(self, target: StreamName | str | None, document: PolicyDocument) -> None:
        since_s, controller = self.now(), self.cluster.controller
        try:
            await self.cluster.insist(lambda: controller.policies.set(target, document))
        except InvalidArgumentError:
            self.count("policies refused")
            return
        self.count("policies")
        for name in self.models:
            if target in (None, name.scope, name):
                await self.learn_policy(name, since_s)

    async def learn_policy(self, name: StreamName, since_s: float) -> None:
        policy = await self.cluster.insist(lambda: self.cluster.controller.policies.effective(name))
        known, now_s = self.models[name].policies, self.now()
        if known:
            span = known[-1].span
            known[-1].span = Span(span.since_s, span.sure_s, since_s, now_s + _LEVEL_SLACK_S)
        known.append(Policied(policy, Span(since_s, now_s)))

    async def hold(self, name: StreamName) -> None:
        self.number += 1
        model, controller, hold_id = self.models[name], self.cluster.controller, f"h{self.number}"
        cut = StreamCut(name, await self.tail(name)) if self.rng.random() < 0.5 else None
        since_s = self.now()
        until_s = since_s + self.rng.choice((6 * HOUR_S, 3 * DAY_S)) if self.rng.random() < 0.5 else None
        until_ms = None if until_s is None else self.cluster.clock.now_ms() + int((until_s - since_s) * 1000)

        async def place() -> None:
            await controller.holds.add(name, owner="law", reason="case", cut=cut, until_ms=until_ms, hold_id=hold_id)

        try:
            await self.cluster.insist(place)
        except (InvalidArgumentError, AlreadyExistsError) as error:
            self.history.violation("hold refused", f"{name} {hold_id} {error}")
            return
        span = Span(since_s, self.now()) if until_s is None else Span(since_s, self.now(), until_s)
        model.holds.append(Held(hold_id, None if cut is None else cut.positions, span))
        self.count("holds")

    async def release_hold(self, name: StreamName) -> None:
        now_s = self.now()
        held = [hold for hold in self.models[name].holds if hold.span.ends_s > now_s]
        if not held:
            return
        hold = self.rng.choice(held)
        hold.span = Span(hold.span.since_s, hold.span.sure_s, now_s)
        try:
            await self.cluster.insist(lambda: self.cluster.controller.holds.release(hold.id, owner="law"))
        except NotFoundError:
            self.history.note(f"{hold.id} was already released")

    # --- manual calls -------------------------------------------------------------------------------------------------

    async def truncate(self, name: StreamName) -> None:
        model = self.models[name]
        cut = await self.tail(name)
        model.by_hand.append(cut)
        try:
            await self.cluster.insist(lambda: self.cluster.controller.streams.truncate(name, StreamCut(name, cut)))
            self.count("truncations by hand")
        except RetentionHoldError:
            self.count("truncations held")
        except InvalidCutError:
            self.history.note(f"{name} is already further on")

    async def undo(self, name: StreamName) -> None:
        """Call once, even if the answer is lost: a second call would undo another truncation."""
        model = self.models[name]
        model.undo_since_s = began_s = self.now()
        due_s = self.undoable_until_s.pop(name, 0.0)
        try:
            await self.cluster.controller.retention.undo_last(name)
            self.count("undone")
        except RETRYABLE:
            self.history.note(f"{name} undo unknown")
        except ConflictError:
            if began_s < due_s - 1 and self.now() < due_s - 1:
                self.history.violation("undo refused within grace", f"{name} {due_s - began_s:.0f} s before it ends")

    # --- what the store reports -------------------------------------------------------------------------------------

    async def learn_forced(self, name: StreamName) -> None:
        """Check forced advances recorded since the last call, each against its rule."""
        model, since_s = self.models[name], self.models[name].observed_s
        for item in await self.cluster.insist(lambda: self.cluster.controller.retention.list_evictions(name)):
            key = repr(item)
            if key in self._seen[name]:
                continue
            self._seen[name].add(key)
            forced = Forced(item.subscriber, _cut(item.start or {}), _cut(item.end or {}), item.rule)
            self.forced[name].append(forced)
            model.check_forced(forced, since_s, self.now())
            self.count(f"forced by {forced.rule}")

    async def learn_dropped(self, name: StreamName) -> None:
        """Check subscribers that the store has dropped by itself."""
        now_s = self.now()
        there = await self.cluster.insist(lambda: self.cluster.controller.subscribers.list(name))
        for reading in (reading for readings in self.models[name].subscribers.values() for reading in readings):
            if reading.span.sure_s <= now_s < reading.span.ends_s and reading.name not in there:
                self._dropped(name, reading, reading.progress_s())

    async def observe(self, name: StreamName) -> Mapping[SegmentId, int]:
        """Read the head, and check its move against all laws."""
        model = self.models[name]
        await self.learn_segments(name)
        asked_s, since_s, advances = self.now(), model.observed_s, model.advances
        head = (await self.cluster.insist(lambda: self.cluster.controller.cuts.head(name))).positions
        await self.learn_forced(name)
        await self.learn_dropped(name)
        model.observe(head, asked_s, self.now(), self.forced[name])
        if model.advances != advances:
            graces = [policy.grace_ms for policy in model.policies_between(since_s, self.now())]
            self.undoable_until_s[name] = since_s + min(graces, default=0) / 1000
        return head


def _cut(fields: Mapping[str, int]) -> dict[SegmentId, int]:
    """A cut as the planner's JSON spells it: ``number#epoch``."""
    found = {}
    for text, offset in fields.items():
        number, _, epoch = text.partition("#")
        found[make_segment_id(int(epoch), int(number))] = offset
    return found
