"""A Spark query as a subscriber: retention may release the data that it has committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID, uuid4, uuid5

from penstock.client.reading.liveness import renewal_s
from penstock.core.streams.query_source import check_subscriber, is_made_by_query
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    GenerationMismatchError,
    InvalidArgumentError,
    InvalidCutError,
    ReaderGroupNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.queries import QuerySource
from penstock.model.segments import SegmentId
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.spark.connect import Services
from penstock.spark.reading.following import later
from penstock.spark.reading.planning import positions_of
from penstock.spark.reading.positions import Positions

log = logging.getLogger("penstock.spark")

_TRIES = 8  # times that others may change a group during one registration
_MADE_BY_QUERY = UUID("6f1d5a52-7d1c-4e35-9a43-1f0b6e3c5d27")


class Subscription:
    """A registered subscriber and its last published cut. Holds no connection.

    ``by_hand``: it was registered before, and not by a query. ``begins_early``: the query begins before its cut.
    """

    def __init__(self, group: ReaderGroupConfig, cut: StreamCut, published: Positions, *, by_hand: bool) -> None:
        self.by_hand = by_hand
        self.begins_early = False
        self.group = group
        self.cut = cut
        self._published = published
        self._renew_at = 0.0
        self._source: QuerySource | None = None
        self._is_known = False

    async def publish(
        self, services: Services, positions: Mapping[SegmentId, int], source: QuerySource | None = None
    ) -> None:
        """Publish that everything before ``positions`` is committed. Never moves back.

        Raises: SubscriberNotFoundError: the subscriber was removed and no longer holds data. WriterInUseError: it
        belongs to another query than ``source``, or a later run of it has published.
        """
        self._source = source
        target = await self._joined(services, positions)
        # Each run publishes once, even if nothing is new, so that earlier runs and other queries are refused from then on.
        if target != self._published or (source is not None and not self._is_known):
            await self._send(services, target, positions)

    async def renew(self, services: Services) -> None:
        """Publish again from time to time if the query has read and committed everything, so that the subscriber stays.

        Raises as ``publish``.
        """
        now = asyncio.get_running_loop().time()
        if now < self._renew_at:
            return
        idle_ms = (await services.controller.policies.effective(self.cut.stream)).subscriber_idle_ms
        if idle_ms is not None:
            await self._send(services, self._published, self._published)
        self._renew_at = now + renewal_s(idle_ms)

    async def _send(self, services: Services, target: Positions, positions: Mapping[SegmentId, int]) -> None:
        try:
            await self._publish_target(services, target, positions)
        except (SubscriberNotFoundError, ReaderGroupNotFoundError):
            raise SubscriberNotFoundError(
                "the subscriber was removed while the query ran, and its data is no longer held; start the query again "
                "to register it at its committed position",
                subscriber=self.group.full_name,
                stream=self.cut.stream,
            ) from None

    async def _publish_target(self, services: Services, target: Positions, positions: Mapping[SegmentId, int]) -> None:
        try:
            await self._update(services, target)
        except GenerationMismatchError:
            found = await services.controller.groups.get(self.group.scope, self.group.name)
            if found.id != self.group.id:
                raise SubscriberNotFoundError(
                    "another reader group has the subscriber's name", subscriber=found.full_name
                ) from None
            self.group = found
            await self._update(services, target)
        except InvalidCutError:
            # Retention may have moved the subscriber forward; then the stored cut is not the one that it published
            # last.
            stored, _ = await _stored_cut(services, self.cut.stream, self.group)
            self._published = await positions_of(services, stored)
            target = await self._joined(services, positions)
            if target == self._published:
                log.warning("subscriber was moved forward by retention", extra={"subscriber": self.group.full_name})
                return
            await self._update(services, target)

    async def check(self, services: Services, source: QuerySource) -> None:
        """Return if the source may read as the subscriber, and log if it begins before it. Raises: WriterInUseError."""
        _, query = await _stored_cut(services, self.cut.stream, self.group)
        check_subscriber(query, source, subscriber=self.group.full_name, by_hand=self.by_hand)
        self.report_start()

    def report_start(self) -> None:
        """Log once if the query begins before the subscriber's cut. Called when the query is known to be allowed."""
        if self.begins_early:
            self.begins_early = False
            log.warning(
                "the query begins before the position of its subscriber: nothing holds the data between. subscriber=%s",
                self.group.full_name,
            )

    async def covers(self, services: Services, cut: StreamCut) -> bool:
        """Whether all data after the cut is held: the subscriber has not passed it at any key."""
        start = await positions_of(services, cut)
        return await self._joined(services, start) == start

    async def _update(self, services: Services, target: Positions) -> None:
        await services.controller.subscribers.publish(
            self.group.full_name,
            group_id=self.group.id,
            generation=self.group.generation,
            cut=StreamCut(self.cut.stream, target),
            source=self._source,
        )
        self._is_known = self._source is not None
        self._published = target

    async def _joined(self, services: Services, positions: Mapping[SegmentId, int]) -> Positions:
        """The later of the published cut and ``positions``, at every key."""
        published = self._published
        if published.keys() == positions.keys() and min(*published.values(), *positions.values()) >= 0:
            return {item: max(published[item], positions[item]) for item in sorted(published)}
        return (await later(services.controller, self.cut.stream, published, dict(positions)))[0]


async def subscribe(
    services: Services, stream: StreamName, name: str, cut: StreamCut | None, source: QuerySource | None = None
) -> Subscription:
    """Register subscriber ``name`` of the stream's scope. If it is already registered, it is not changed.

    A subscription that was ended by a rule or a user is registered again, at its start or the head. A new one holds the
    stream from ``cut`` on (None: from its tail) as soon as it is registered. Without a source, ``Subscription.check``
    decides whether a query may read as it.

    Raises: InvalidArgumentError (a reader group of that name does something else), WriterInUseError (it belongs to
    another query than ``source``, or was created without a query).
    """
    return await _subscription(services, await _group(services, stream.scope, name, {stream: cut}), stream, cut, source)


async def subscribe_all(
    services: Services, name: str, cuts: Mapping[StreamName, StreamCut | None], source: QuerySource | None = None
) -> dict[StreamName, Subscription]:
    """As ``subscribe`` for several streams: one subscriber of this name in each of their scopes.

    A subscriber that a query has made takes more streams; streams that were deleted leave it. Raises as ``subscribe``.
    """
    found: dict[StreamName, Subscription] = {}
    for scope in sorted({stream.scope for stream in cuts}):
        of_scope = {stream: cuts[stream] for stream in sorted(cuts) if stream.scope == scope}
        group = await _extended(services, await _group(services, scope, name, of_scope), of_scope)
        for stream, cut in of_scope.items():
            found[stream] = await _subscription(services, group, stream, cut, source)
    return found


async def _group(
    services: Services, scope: str, name: str, cuts: Mapping[StreamName, StreamCut | None]
) -> ReaderGroupConfig:
    """The reader group of that name, created if there is none."""
    try:
        return await services.controller.groups.get(scope, name)
    except ReaderGroupNotFoundError:
        return await services.controller.groups.create(
            ReaderGroupConfig(
                scope=scope,
                name=name,
                id=uuid5(_MADE_BY_QUERY, uuid4().hex),
                retention=ReaderGroupRetention.MANUAL,
                start_cuts=await _starts(services, cuts),
            )
        )


async def _starts(services: Services, cuts: Mapping[StreamName, StreamCut | None]) -> dict[StreamName, StreamCut]:
    return {stream: cut or await services.controller.cuts.tail(stream) for stream, cut in cuts.items()}


async def _extended(
    services: Services, group: ReaderGroupConfig, cuts: Mapping[StreamName, StreamCut | None]
) -> ReaderGroupConfig:
    """The group, registered with all these streams, unless it was made by hand or does something else."""
    controller = services.controller
    for _ in range(_TRIES):
        if group.retention is not ReaderGroupRetention.MANUAL or not is_made_by_query(group.id):
            break
        known = {stream: group.full_name in await controller.subscribers.list(stream) for stream in cuts}
        missing = {stream: cut for stream, cut in cuts.items() if stream not in group.start_cuts or not known[stream]}
        if not missing:
            break
        there = {stream: cut for stream, cut in group.start_cuts.items() if await controller.streams.exists(stream)}
        wanted = replace(group, start_cuts=there | await _starts(services, missing))
        try:
            return replace(wanted, generation=await controller.groups.update(wanted))
        except GenerationMismatchError:
            # Another query with this subscriber, or a person, has changed the group meanwhile.
            group = await controller.groups.get(group.scope, group.name)
    return group


async def _subscription(
    services: Services, group: ReaderGroupConfig, stream: StreamName, cut: StreamCut | None, source: QuerySource | None
) -> Subscription:
    registered = False
    if group.retention is not ReaderGroupRetention.MANUAL or stream not in group.start_cuts:
        raise InvalidArgumentError(
            "option subscriber names a reader group that is not a manual subscriber of this stream; use another name",
            subscriber=group.full_name,
            stream=stream,
            retention=group.retention.name,
        )
    if group.full_name not in await services.controller.subscribers.list(stream):
        # A rule or a user has ended the subscription: the group exists, but holds nothing.
        log.warning("subscriber is registered again. subscriber=%s", group.full_name)
        group = await services.controller.groups.create(group)
        registered = True
    by_hand = not registered and not is_made_by_query(group.id)
    stored, query = await _stored_cut(services, stream, group)
    if source is not None:
        check_subscriber(query, source, subscriber=group.full_name, by_hand=by_hand)
    if not await services.controller.cuts.is_valid(stream, stored):
        raise of_another(group.full_name, stream)
    subscription = Subscription(group, stored, await positions_of(services, stored), by_hand=by_hand)
    subscription.begins_early = cut is not None and not await subscription.covers(services, cut)
    if source is not None:
        subscription.report_start()
    return subscription


def of_another(subscriber: str, stream: StreamName) -> InvalidCutError:
    """The error for a subscriber whose stream was deleted, if another stream has its name."""
    return InvalidCutError(
        f"the subscriber belongs to a stream that was deleted and created again; remove it with penstock group delete "
        f"{subscriber}, and use a new checkpoint location",
        subscriber=subscriber,
        stream=stream,
    )


async def _stored_cut(services: Services, stream: StreamName, group: ReaderGroupConfig) -> tuple[StreamCut, str]:
    """The controller's cut of the subscriber (the start of a group that has published nothing), and its query."""
    query = ""
    for item in (await services.controller.streams.describe(stream)).subscribers:
        if item.name == group.full_name:
            query = item.query
            if item.cut is not None:
                return item.cut, query
    start = group.start_cuts[stream]
    return (start if not start.is_unbounded else await services.controller.cuts.head(stream)), query
