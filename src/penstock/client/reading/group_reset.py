"""Reset a reader group: move its readers and its acknowledged position to one place, while no reader is online.

The positions of the readers are in the group's table; the acknowledged position is in the controller's records. So a reset
takes several steps. After each step, the acknowledged position is at or before the readers' positions, so no data is
released that the group still reads. A crash between two steps holds too much at worst; a repeated reset completes it.

Source: docs/design/0031-reader-groups.md, "Reset".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from penstock.client.lag import readable_from
from penstock.client.moments import Services, cut_at, past_ms
from penstock.client.options import Position, position_of
from penstock.client.reading.cursor import resolve_cut
from penstock.client.reading.group_state import GroupState, SegmentKey
from penstock.client.reading.group_streams import has_java_state
from penstock.client.reading.group_table import GroupTable
from penstock.client.reading.liveness import SilenceTracker
from penstock.client.retry import retrying
from penstock.core.planner_json.stream import encode_cut
from penstock.core.streams.query_source import is_made_by_query
from penstock.model.answers.subscribers import SubscriberMove
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    ConflictError,
    InvalidArgumentError,
    InvalidCutError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import KeyRange
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.plane import ControlPlane
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)

ResetTo: TypeAlias = Position | datetime | int
"""Where a group continues: the head (earliest) or tail (latest) of each stream, the events since a time, a cut, or (a
negative number) that many events before its position in each stream."""

_LEASE_REFRESHES = 3  # refresh intervals; no lease is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """The reset of one stream. ``lower``: the earlier of ``to`` and the acknowledged position; None if the group is not
    a subscriber. ``is_behind``: ``lower`` is before the acknowledged position, so data must be held before the readers
    move."""

    to: StreamCut
    before: StreamCut | None
    lower: StreamCut | None
    is_behind: bool
    answer: Mapping[str, Any]


class GroupReset:
    """One reset of one group. ``lease_s``: a reader without a heartbeat for this time counts as offline."""

    def __init__(
        self,
        services: Services,
        config: ReaderGroupConfig,
        clock: Clock,
        rng: Rng,
        *,
        lease_s: float,
    ) -> None:
        self._services = services
        self._controller: ControlPlane = services.controller
        self._config = config
        self._clock = clock
        self._rng = rng
        self._refresh_s = max(config.refresh_ms, 1) / 1000
        self._lease_s = max(lease_s, _LEASE_REFRESHES * self._refresh_s)
        self._table = GroupTable(services, rng, config)

    async def check_state_is_ours(self, streams: Sequence[StreamName]) -> None:
        """Raises ConflictError if another program keeps the positions of the readers, so that no reset can move
        them."""
        config = self._config
        for stream in streams:
            found = (await retrying(partial(self._controller.streams.describe, stream), self._rng)).subscribers
            query = next((item.query for item in found if item.name == config.full_name), "")
            if query or is_made_by_query(config.id):
                raise ConflictError(
                    "subscriber belongs to a Spark query, which continues from its own checkpoint; to move the query: stop "
                    "it, move only the acknowledged position (--acknowledged-only), and start the query with a new "
                    "checkpoint location, the option replaces_query, and without the option start",
                    subscriber=config.full_name,
                    replaces_query=query or "unknown",
                    stream=str(stream),
                )
        if await has_java_state(self._controller, self._rng, config):
            raise ConflictError(
                "reader group belongs to Pravega's Java client, which keeps the positions of its readers itself; call "
                "ReaderGroup.resetReaderGroup there, or move only the acknowledged position (--acknowledged-only)",
                group=config.full_name,
            )

    async def run(self, to: ResetTo, streams: Sequence[StreamName], *, dry_run: bool) -> Sequence[Mapping[str, Any]]:
        """See ``AsyncStore.reset_reader_group``. The group's state must be in this store, and its table must exist."""
        state, away = await self._without_readers()
        here = state.cuts()
        steps = [await self._step(stream, to, here.get(stream)) for stream in streams]
        if dry_run:
            return [item.answer for item in steps]
        ranges: dict[SegmentKey, KeyRange] = {}
        for item in steps:
            asked = partial(self._controller.layout.ranges, item.to.stream, list(item.to.positions))
            found = await retrying(asked, self._rng)
            ranges.update({(item.to.stream, segment): keys for segment, keys in found.items()})
        held = [item for item in steps if item.lower is not None and item.is_behind]
        for item in held:
            await self._acknowledge(item.lower)
        try:
            await self._table.update(partial(self._move_readers, steps, ranges, away))
        except ConflictError:
            for item in held:
                await self._acknowledge(item.before)
            raise
        for item in steps:
            if item.lower is not None:
                await self._acknowledge_target(item.to)
        log.info("reader group was reset", extra={"group": self._config.full_name, "away": sorted(away)})
        return [item.answer for item in steps]

    # --- readers -------------------------------------------------------------------------------------------------

    async def _without_readers(self) -> tuple[GroupState, Mapping[str, tuple[str, int]]]:
        """The state, and the members with their heartbeats, after all were silent for the lease. Raises ConflictError
        if one was not."""
        silences = SilenceTracker(lease_s=self._lease_s, refresh_s=self._refresh_s)
        first: dict[str, tuple[str, int]] | None = None
        while True:
            state = await self._table.load()
            beats = _beats(state)
            if first is None:
                first = beats
            online = [name for name, beat in beats.items() if first.get(name) != beat]
            if online:
                raise self._refusal(online)
            now = asyncio.get_running_loop().time()
            if all(silences.is_dead(name, beat, now) for name, beat in beats.items()):
                return state, beats
            silences.observe(beats, now)
            await asyncio.sleep(self._refresh_s)

    def _refusal(self, online: Sequence[str]) -> ConflictError:
        return ConflictError(
            "nothing was changed: the reader group has readers online; close them, then reset it",
            group=self._config.full_name,
            readers=", ".join(sorted(online)),
        )

    def _move_readers(
        self,
        steps: Sequence[_Step],
        ranges: Mapping[SegmentKey, KeyRange],
        away: Mapping[str, tuple[str, int]],
        state: GroupState,
    ) -> None:
        online = [name for name, beat in _beats(state).items() if away.get(name) != beat]
        if online:
            raise self._refusal(online)
        for name in list(state.members):
            state.leave(name)
        state.reset({item.to.stream: item.to for item in steps}, ranges, self._clock.now_ms())

    # --- positions -----------------------------------------------------------------------------------------------

    async def _step(self, stream: StreamName, to: ResetTo, here: StreamCut | None) -> _Step:
        target = await self._target(stream, to, here)
        answer: dict[str, Any] = {"group": self._config.full_name, "stream": str(stream)}
        lower = before = None
        is_behind = False
        if self._config.retention is ReaderGroupRetention.NONE:
            await self._check_readable(target)
        else:
            moved = await self._move(target, dry_run=True)
            lower, before = StreamCut.from_text(moved.lower_cut), StreamCut.from_text(moved.from_cut)
            is_behind = encode_cut(lower.positions) != encode_cut(before.positions)
            answer |= {"acknowledged_bytes": moved.bytes, "acknowledged_events": moved.events}
        size, events = (0, 0) if here is None else await self._distance(here, target)
        answer |= {
            "from": None if here is None else encode_cut(here.positions),
            "to": encode_cut(target.positions),
            "bytes": size,
            "events": events,
        }
        return _Step(to=target, before=before, lower=lower, is_behind=is_behind, answer=answer)

    async def _target(self, stream: StreamName, to: ResetTo, here: StreamCut | None) -> StreamCut:
        if isinstance(to, int):
            if here is None:
                raise InvalidArgumentError(
                    "the group has no position in the stream to count back from", stream=str(stream)
                )
            return await retrying(partial(self._controller.cuts.before, stream, here, -to), self._rng)
        if isinstance(to, datetime):
            at_ms = past_ms(to, now_ms=self._clock.now_ms(), name="to")
            return await cut_at(self._services, stream, at_ms, end=False)
        position = position_of(to, name="to")
        return await retrying(partial(resolve_cut, self._controller, stream, position), self._rng)

    async def _check_readable(self, cut: StreamCut) -> None:
        """As ``move_subscriber`` checks it for subscribers. Raises InvalidCutError."""
        if not await self._controller.cuts.is_valid(cut.stream, cut):
            raise InvalidCutError("cut is not a position of the stream", stream=str(cut.stream), cut=repr(cut))
        head = await self._controller.cuts.head(cut.stream)
        if await self._bytes(head, cut) is None:
            raise InvalidCutError(
                "cut is before the head of the stream: data there was truncated", stream=str(cut.stream), cut=repr(cut)
            )

    async def _distance(self, here: StreamCut, target: StreamCut) -> tuple[int | None, int | None]:
        """Bytes and events that readers skip; negative if they read them again; None if they do both or it is
        unknown."""
        here = await readable_from(self._controller, here)  # This reset does not skip data that is truncated already.
        forwards = await self._bytes(here, target)
        if forwards is not None:
            return forwards
        back = await self._bytes(target, here)
        if back is None:
            return None, None
        return -back[0], None if back[1] is None else -back[1]

    async def _bytes(self, start: StreamCut, end: StreamCut) -> tuple[int, int | None] | None:
        """Bytes and events from one cut to the other; None if ``end`` is before ``start`` at some key."""
        try:
            spans = await self._controller.cuts.measure(start.stream, start, end)
        except InvalidCutError:
            return None
        events = [item.events for item in spans]
        known = [count for count in events if count is not None]
        return sum(item.end - item.start for item in spans), sum(known) if len(known) == len(events) else None

    async def _acknowledge_target(self, to: StreamCut) -> None:
        """Acknowledge everything before ``to``, where the readers are now, if it is not acknowledged yet.

        Raises ConflictError if another reset has moved the readers to an earlier position: their data stays held.
        """
        tried = await self._move(to, dry_run=True)
        if tried.start == tried.end:
            return
        if not await self._is_passed(to):
            raise self._overtaken(to)
        await self._acknowledge(to)
        # The other reset may have come between the check and the call.
        if not await self._is_passed(to):
            here = (await self._table.load()).cuts()[to.stream]
            await self._acknowledge(StreamCut.from_text((await self._move(here, dry_run=True)).lower_cut))
            raise self._overtaken(to)

    async def _is_passed(self, cut: StreamCut) -> bool:
        """Whether the readers are at the cut or after it, at every key."""
        here = (await self._table.load()).cuts().get(cut.stream)
        return here is None or await self._bytes(cut, here) is not None

    def _overtaken(self, cut: StreamCut) -> ConflictError:
        return ConflictError(
            "another reset moved the readers of the group at the same time; check their positions, and reset again if needed",
            group=self._config.full_name,
            stream=str(cut.stream),
        )

    async def _acknowledge(self, cut: StreamCut | None) -> None:
        if cut is not None:
            await self._move(cut)

    async def _move(self, cut: StreamCut, *, dry_run: bool = False) -> SubscriberMove:
        return await retrying(
            lambda: self._controller.subscribers.move(cut.stream, self._config.full_name, cut, dry_run=dry_run),
            self._rng,
        )


def _beats(state: GroupState) -> dict[str, tuple[str, int]]:
    return {name: (member.incarnation, member.beat) for name, member in state.members.items()}
