"""A Spark query as a subscriber: what it has committed is what retention may release."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import uuid4

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
from penstock.model.segments import SegmentId
from penstock.ports.controller_service import ReaderGroupConfig
from penstock.spark.connect import Services
from penstock.spark.planning import positions_of
from penstock.spark.positions import Positions, raise_to

log = logging.getLogger("penstock.spark")


class Subscription:
    """A registered subscriber and the cut it has published last. Holds no connection."""

    def __init__(self, group: ReaderGroupConfig, cut: StreamCut, published: Positions) -> None:
        self.group = group
        self.cut = cut
        self._published = published

    async def publish(self, services: Services, positions: Mapping[SegmentId, int]) -> None:
        """Tell the controller that everything before ``positions`` is committed. Never moves back.

        Raises: SubscriberNotFoundError: someone removed the subscriber; its data is held no more.
        """
        target = await self._joined(services, positions)
        if target == self._published:
            return
        try:
            await self._told(services, target, positions)
        except (SubscriberNotFoundError, ReaderGroupNotFoundError):
            raise SubscriberNotFoundError(
                "the subscriber was removed while the query ran, and its data is held no more; start the query again to "
                "register it anew at what is committed",
                subscriber=self.group.full_name,
                stream=self.cut.stream,
            ) from None

    async def _told(self, services: Services, target: Positions, positions: Mapping[SegmentId, int]) -> None:
        try:
            await self._update(services, target)
        except GenerationMismatchError:
            self.group = await services.controller.get_reader_group(self.group.scope, self.group.name)
            await self._update(services, target)
        except InvalidCutError:
            # Retention may have moved the subscriber on by force; then what it published last is not what is stored.
            stored = await _stored_cut(services, self.cut.stream, self.group)
            self._published = await positions_of(services, stored)
            target = await self._joined(services, positions)
            if target == self._published:
                log.warning("subscriber was moved on by retention", extra={"subscriber": self.group.full_name})
                return
            await self._update(services, target)

    async def covers(self, services: Services, cut: StreamCut) -> bool:
        """Whether all that lies behind the cut is held: at no key has the subscriber passed it."""
        start = await positions_of(services, cut)
        return await self._joined(services, start) == start

    async def _update(self, services: Services, target: Positions) -> None:
        await services.controller.update_subscriber_cut(
            self.group.full_name,
            group_id=self.group.id,
            generation=self.group.generation,
            cut=StreamCut(self.cut.stream, target),
        )
        self._published = target

    async def _joined(self, services: Services, positions: Mapping[SegmentId, int]) -> Positions:
        """The later of what is published and ``positions``, at every key."""
        involved = sorted(self._published.keys() | positions.keys())
        ranges = (
            await services.controller.segment_ranges(self.cut.stream, involved)
            if _differ(self._published, positions)
            else {}
        )
        return raise_to(self._published, positions, ranges)[0]


def _differ(first: Mapping[SegmentId, int], second: Mapping[SegmentId, int]) -> bool:
    return first.keys() != second.keys()


async def subscribe(services: Services, stream: StreamName, name: str, cut: StreamCut | None) -> Subscription:
    """Register subscriber ``name`` of the stream's scope, or find it registered; then it is as it was.

    A new one holds the stream from ``cut`` on (None: from its tail) in the very act of registering.
    Raises: InvalidArgumentError (a reader group of that name does something else).
    """
    try:
        group = await services.controller.get_reader_group(stream.scope, name)
    except ReaderGroupNotFoundError:
        start = cut or await services.controller.tail(stream)
        group = await services.controller.create_reader_group(
            ReaderGroupConfig(
                scope=stream.scope,
                name=name,
                id=uuid4(),
                retention=ReaderGroupRetention.MANUAL,
                start_cuts={stream: start},
            )
        )
    if group.retention is not ReaderGroupRetention.MANUAL or stream not in group.start_cuts:
        raise InvalidArgumentError(
            "option subscriber names a reader group that is no manual subscriber of this stream; choose another name",
            subscriber=group.full_name,
            stream=stream,
            retention=group.retention.name,
        )
    stored = await _stored_cut(services, stream, group)
    if not await services.controller.is_cut_valid(stream, stored):
        raise of_another(group.full_name, stream)
    subscription = Subscription(group, stored, await positions_of(services, stored))
    if cut is not None and not await subscription.covers(services, cut):
        log.warning(
            "the query begins before what its subscriber has committed: nothing holds the data between. subscriber=%s",
            group.full_name,
        )
    return subscription


def of_another(subscriber: str, stream: StreamName) -> InvalidCutError:
    """What is raised for a subscriber whose stream was deleted, where another one has its name."""
    return InvalidCutError(
        f"the subscriber belongs to a stream that was deleted and made again; remove it with penstock group delete "
        f"{subscriber}, and use a new checkpoint location",
        subscriber=subscriber,
        stream=stream,
    )


async def _stored_cut(services: Services, stream: StreamName, group: ReaderGroupConfig) -> StreamCut:
    """What the controller holds for the subscriber; the group's start where it has not published anything."""
    for item in (await services.controller.describe_stream(stream)).subscribers:
        if item.name == group.full_name and item.cut is not None:
            return item.cut
    start = group.start_cuts[stream]
    return start if not start.is_unbounded else await services.controller.head(stream)
