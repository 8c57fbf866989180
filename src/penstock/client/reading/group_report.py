"""Describe a reader group: its readers, what each of them reads, and how far behind the group is. It changes nothing.

Groups of other clients and of Spark queries are described too, by what they have acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from penstock.client.lag import readable_from, unread_after
from penstock.client.moments import Services
from penstock.client.reading.group_state import GroupState, SegmentKey
from penstock.client.reading.group_streams import has_java_state
from penstock.client.reading.group_table import GroupTable
from penstock.client.retry import retrying
from penstock.core.planner_json.stream import encode_cut
from penstock.core.streams.query_source import is_made_by_query, owner_in_words
from penstock.model.answers.groups import GroupDescription, GroupMember, GroupProgress
from penstock.model.answers.plan import Offsets
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, ReaderGroupNotFoundError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import SegmentId
from penstock.ports.clock import Clock
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.ports.rng import Rng

_RETENTION_WORDS = {
    ReaderGroupRetention.NONE: "none",
    ReaderGroupRetention.MANUAL: "manual",
    ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT: "automatic",
}


class GroupReport:
    """Describes one group. The services are borrowed."""

    def __init__(self, services: Services, config: ReaderGroupConfig, clock: Clock, rng: Rng) -> None:
        self._services = services
        self._controller = services.controller
        self._config = config
        self._clock = clock
        self._rng = rng

    async def make(self) -> GroupDescription:
        """See ``AsyncStore.describe_reader_group``."""
        config = self._config
        state = await self._state()
        is_java = state is None and await has_java_state(self._controller, self._rng, config)
        streams: list[GroupProgress] = []
        query = ""
        for stream in sorted(config.start_cuts):
            try:
                info = await self._subscription(stream)
                query = query or ("" if info is None else info.query)
                position = await self._position(stream, state, info, is_java=is_java)
                streams.append(await self._progress(stream, position, info))
            except StreamNotFoundError:
                streams.append(_unknown(stream))
        return GroupDescription(
            group=config.full_name,
            id=str(config.id),
            generation=config.generation,
            retention=_RETENTION_WORDS[config.retention],
            owner=owner_in_words(query, config.id, is_java=is_java),
            members=_members(state),
            unassigned={} if state is None else _by_stream(state.free),
            streams=streams,
        )

    async def _state(self) -> GroupState | None:
        """None if the group has no readers of ours, and had none."""
        config = self._config
        table = GroupTable(self._services, self._rng, config)
        try:
            return await table.load()
        except ReaderGroupNotFoundError:
            return None

    async def _subscription(self, stream: StreamName) -> SubscriberInfo | None:
        if self._config.retention is ReaderGroupRetention.NONE:
            return None
        found = await retrying(partial(self._controller.subscribers.describe, stream), self._rng)
        return next((item for item in found if item.name == self._config.full_name), None)

    async def _position(
        self, stream: StreamName, state: GroupState | None, info: SubscriberInfo | None, *, is_java: bool
    ) -> StreamCut | None:
        if state is not None:
            return state.cuts().get(stream)  # None: an earlier stream of the name was deleted.
        if info is not None and info.cut is not None:
            return info.cut
        if is_java or is_made_by_query(self._config.id):
            return None
        start = self._config.start_cuts[stream]
        return await retrying(partial(self._controller.cuts.head, stream), self._rng) if start.is_unbounded else start

    async def _progress(
        self, stream: StreamName, position: StreamCut | None, info: SubscriberInfo | None
    ) -> GroupProgress:
        if position is None:
            return _unknown(stream, info)
        try:
            start = await retrying(partial(readable_from, self._controller, position), self._rng)
            unread = await retrying(partial(unread_after, self._services, start), self._rng)
        except InvalidCutError:
            return _unknown(stream, info)  # The position is of an earlier stream of the name.
        if unread.bytes == 0:
            lag_ms: int | None = 0
        else:
            lag_ms = None if unread.oldest_ms is None else max(0, self._clock.now_ms() - unread.oldest_ms)
        return GroupProgress(
            stream=str(stream),
            position=encode_cut(position.positions),
            acknowledged=_acknowledged(info),
            lag_bytes=unread.bytes,
            lag_events=unread.events,
            lag_ms=lag_ms,
        )


def _acknowledged(info: SubscriberInfo | None) -> Offsets | None:
    return None if info is None or info.cut is None else encode_cut(info.cut.positions)


def _unknown(stream: StreamName, info: SubscriberInfo | None = None) -> GroupProgress:
    return GroupProgress(
        stream=str(stream),
        position=None,
        acknowledged=_acknowledged(info),
        lag_bytes=None,
        lag_events=None,
        lag_ms=None,
    )


def _members(state: GroupState | None) -> list[GroupMember]:
    if state is None:
        return []
    return [GroupMember(name=name, segments=_by_stream(item.held)) for name, item in sorted(state.members.items())]


def _by_stream(positions: Mapping[SegmentKey, int]) -> dict[str, Offsets]:
    streams: dict[str, dict[SegmentId, int]] = {}
    for (stream, segment), offset in sorted(positions.items()):
        streams.setdefault(str(stream), {})[segment] = offset
    return {stream: encode_cut(found) for stream, found in streams.items()}
