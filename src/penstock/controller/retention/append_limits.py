"""Gives the store the planner's limit for writers: the total length to which a stream's segments may grow.

The store keeps limits in memory. Streams with a limit are marked durably, so that a starting store sets the limits
before it accepts appends. Source: docs/design/0036-retention-in-the-controller.md.
"""

from __future__ import annotations

import itertools
import logging
from contextlib import AbstractAsyncContextManager
from typing import Any

from penstock.codec.control.streams import MarkerRecord, StreamState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing, overwrite
from penstock.controller.retention.facts import Snapshot, look
from penstock.controller.tasks import each
from penstock.core.cuts.order import size_till
from penstock.core.retention.facts import RetentionRule, WriterState, WriterVerdict
from penstock.core.retention.planner import decide
from penstock.model.errors import NotFoundError, PenstockError, UnsupportedError
from penstock.model.names import StreamName, segment_name
from penstock.ports.data.limits import AppendLimit, LimitAction

log = logging.getLogger(__name__)

_STAMPS_MAX = 10_000  # streams whose last change is remembered; afterwards all count as changed
AT_ONCE = 16  # streams whose limits are restored at a time, at a start

_ACTIONS = {
    WriterState.HOLD: LimitAction.HOLD,
    WriterState.REJECT: LimitAction.REJECT,
    WriterState.NOTIFY: LimitAction.NOTIFY,
}


class AppendLimits:
    """Limits of all streams. ``limited`` holds those that this controller has set.

    A limit is decided and sent under one lock of the stream, so that an older decision never replaces a newer one. A cycle
    decides before it takes the lock. It decides again there if the limit was changed meanwhile.
    """

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._limited: set[StreamName] = set()
        self._asked: set[StreamName] = set()
        self._unsupported = False
        self._numbers = itertools.count(1)
        self._stamps: dict[StreamName, int] = {}
        self._oldest_stamp = 0
        """Of streams that are not in ``_stamps``."""
        self._held: set[StreamName] = set()
        """Streams that ``hold`` has stopped: only the next cycle, or ``lift``, lets their writers continue."""

    async def restore(self) -> int:
        """Set the limits of all marked streams; returns how many. Call it before the store accepts appends."""
        ctx, prefix = self._ctx, b"quota/"
        found = [ctx.set_aside.stream(entry, prefix) async for entry in ctx.metadata.scan_all(prefix)]
        names = [name for name in found if name is not None]

        async def restore_one(name: StreamName) -> None:
            try:
                await self.refresh(name)
            except NotFoundError:
                return
            except PenstockError as error:
                # The first cycle tries again. Until then the store accepts a little more than it should.
                log.warning("limit of a stream could not be set", extra={"stream": str(name), "error": str(error)})

        await each(names, restore_one, limit=AT_ONCE)
        return len(names)

    async def refresh(self, stream: StreamName) -> None:
        """Bring the stream's limit in line with its policy and subscribers as they are now."""
        async with self._lock(stream):
            await self._refresh(stream)

    async def _refresh(self, stream: StreamName) -> None:
        if stream not in self._held:
            found = await look(self._ctx, stream)
            await self._put(found, decide(found.facts, now_ms=self._ctx.retention_clock.now_ms()).writers)

    def _lock(self, name: StreamName) -> AbstractAsyncContextManager[None]:
        return self._ctx.locks.hold(f"limit/{name}")

    async def renew(self, name: StreamName) -> None:
        """As ``refresh``, for callers whose own work is done: the next cycle retries a failure."""
        async with self._lock(name):
            # From here on this run may miss what a subscriber publishes.
            self._asked.discard(name)
            try:
                await self._refresh(name)
            except PenstockError as error:
                log.info("limit of a stream could not be renewed", extra={"stream": str(name), "error": str(error)})

    def refresh_soon(self, name: StreamName) -> None:
        """As ``refresh``, in the background, if the stream has a limit: waiting writers must not wait for a cycle. Many
        calls cause at most one further run after the current one."""
        if name in self._limited and name not in self._asked:
            self._asked.add(name)
            self._ctx.tasks.start(self.renew(name))

    def stamp(self, name: StreamName) -> int:
        """A number that differs after each change of the stream's limit. Take it before the facts are read."""
        return self._stamps.get(name, self._oldest_stamp)

    async def push(self, found: Snapshot, verdict: WriterVerdict, *, stamp: int) -> None:
        """Set the limit that a cycle has decided. If it was changed after ``stamp`` was taken, it is decided again: the other
        decision may be newer. The caller holds the stream's lock."""
        async with self._lock(found.name):
            self._held.discard(found.name)
            if stamp == self.stamp(found.name):
                await self._put(found, verdict)
            else:
                await self._refresh(found.name)

    async def _put(self, found: Snapshot, verdict: WriterVerdict) -> None:
        """Set the stream's limit in the store. The mark is durable before the limit applies, and is removed after
        it."""
        ctx, name = self._ctx, found.name
        marked = found.policy.limits_backlog
        if marked and not found.has_quota_mark and not await self._mark(found):
            return
        open_ended = verdict.state is WriterState.OPEN or found.view.record.state is not StreamState.ACTIVE
        if not open_ended:
            await self._send(name, _limit(found, verdict))
            self._limited.add(name)
        elif name in self._limited or found.has_quota_mark:
            await self._lift(name)
        if found.has_quota_mark and not marked:
            await ctx.metadata.remove_keys([keys.quota(name)])

    async def _mark(self, found: Snapshot) -> bool:
        """Mark the stream. False if another stream has the name now: the mark must not outlive its stream."""
        ctx, name = self._ctx, found.name

        async def attempt() -> bool:
            view = await ctx.streams.find(name)
            if view is None or view.record.incarnation != found.view.record.incarnation:
                return False
            await ctx.metadata.put(overwrite(keys.quota(name), MarkerRecord()), view.check())
            return True

        return await changing(attempt)

    async def hold(self, found: Snapshot, rule: str) -> None:
        """Refuse all appends to the stream until ``lift``, or until its next cycle. The caller holds the stream's lock."""
        positions = found.tail.positions
        limit = AppendLimit(
            stream=str(found.name),
            segments=[segment_name(found.name, segment) for segment in positions],
            total_bytes=sum(positions.values()),
            action=LimitAction.HOLD,
            reason={"stream": str(found.name), "rule": rule, "limit": 0, "used": 0, "subscriber": ""},
        )
        async with self._lock(found.name):
            self._held.add(found.name)
            self._limited.add(found.name)
            await self._send(found.name, limit)

    async def lift(self, name: StreamName) -> None:
        """Let writers continue without a limit."""
        async with self._lock(name):
            self._held.discard(name)
            await self._lift(name)

    async def _lift(self, name: StreamName) -> None:
        await self._send(name, AppendLimit(stream=str(name), segments=()))
        self._limited.discard(name)

    async def _send(self, name: StreamName, limit: AppendLimit) -> None:
        if self._unsupported:
            return
        number = next(self._numbers)
        if name not in self._stamps and len(self._stamps) >= _STAMPS_MAX:
            self._stamps.clear()
            self._oldest_stamp = number
        self._stamps[name] = number
        try:
            await self._ctx.segments.limit_appends([limit])
        except UnsupportedError as error:
            self._unsupported = True
            log.warning("the store limits no appends: quotas only evict", extra={"error": str(error)})


def _limit(found: Snapshot, verdict: WriterVerdict) -> AppendLimit:
    """Convert the verdict, which counts the whole history, to a limit for the segments that still grow."""
    positions = found.tail.positions
    sealed_bytes = size_till(found.history, positions) - sum(positions.values())
    total_bytes = total_events = None
    # An age limit applies whatever the size.
    by_age = verdict.exceeded and verdict.rule is RetentionRule.BACKLOG_AGE
    if verdict.total_bytes is not None:
        total_bytes = max(0, verdict.total_bytes - sealed_bytes)
    if verdict.total_events is not None:
        sealed_events = found.tail.events - sum(found.tail.open_events.values())
        total_events = max(0, verdict.total_events - sealed_events)
    return AppendLimit(
        stream=str(found.name),
        segments=[segment_name(found.name, segment) for segment in positions],
        total_bytes=total_bytes,
        total_events=total_events,
        quota_bytes=None if by_age else found.policy.backlog_bytes,
        quota_events=None if by_age else found.policy.backlog_events,
        action=_ACTIONS.get(verdict.bytes_state, _ACTIONS[verdict.state]),
        events_action=_ACTIONS.get(verdict.events_state),
        reason=_reason(found, verdict),
    )


def _reason(found: Snapshot, verdict: WriterVerdict) -> dict[str, Any]:
    policy, facts = found.policy, found.facts
    used: int | None = None
    limit: int | None = policy.backlog_bytes
    cut = facts.subscribers.get(verdict.subscriber)
    activity = facts.activity.get(verdict.subscriber)
    if verdict.rule is RetentionRule.BACKLOG_EVENTS:
        limit = policy.backlog_events
        used = None if activity is None else activity.backlog_events
    elif verdict.rule is RetentionRule.BACKLOG_AGE:
        limit = policy.backlog_age_ms
        oldest_ms = None if activity is None else activity.oldest_unacked_ms
        if oldest_ms is not None and facts.tail is not None:
            used = facts.tail.time_ms - oldest_ms
    elif cut and facts.tail is not None:
        used = max(0, facts.tail.size_bytes - size_till(found.history, cut))
    return {
        "stream": str(found.name),
        "rule": "" if verdict.rule is None else verdict.rule.value,
        "limit": limit,
        "used": used,
        "subscriber": verdict.subscriber,
    }
