"""The streams of a reader group: whether they were deleted, and whether the group still subscribes to them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from functools import partial

from penstock.client.reading.group_state import SegmentKey
from penstock.client.retry import retrying
from penstock.model.errors import (
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import READER_GROUP_PREFIX, StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import SegmentId, number_of
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.plane import ControlPlane
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)


async def is_deleted(controller: ControlPlane, rng: Rng, stream: StreamName, segments: Iterable[SegmentId]) -> bool:
    """Whether the stream that has, or had, these segments was deleted. Another stream may have its name now.

    Raises: SegmentNotFoundError if the stream that exists should have had them; CorruptDataError, UnavailableError.
    """
    wanted = list(segments)
    try:
        try:
            await retrying(lambda: controller.layout.ranges(stream, wanted), rng)
        except SegmentNotFoundError:
            first = await retrying(lambda: controller.layout.of_epoch(stream, 0), rng)
            # Streams of one name never share a number: those of an earlier stream are all lower.
            lowest = min(number_of(item.segment) for item in first)
            if any(number_of(segment) < lowest for segment in wanted):
                return True
            raise
    except (ScopeNotFoundError, StreamNotFoundError):
        return True
    return False


def log_departure(group: str, stream: StreamName, unread: Mapping[SegmentKey, int]) -> None:
    """Log that a deleted stream has left the group; a warning if some of its segments were not read to their end."""
    if not unread:
        log.info("deleted stream left its reader group", extra={"group": group, "stream": str(stream)})
        return
    # The segment may end at the last position: then everything was read, but not reported.
    log.warning(
        "stream was deleted before its reader group had reported all of it as read; data after the positions is lost",
        extra={"group": group, "stream": str(stream), "positions": {key[1]: at for key, at in sorted(unread.items())}},
    )


async def check_subscribed(controller: ControlPlane, rng: Rng, config: ReaderGroupConfig) -> None:
    """Raises SubscriberNotFoundError if a rule or a person has ended the group's subscription to one of its streams."""
    if config.retention is ReaderGroupRetention.NONE:
        return
    for stream in sorted(config.start_cuts):
        try:
            names = await retrying(partial(controller.subscribers.list, stream), rng)
        except StreamNotFoundError:
            continue  # A read of the stream reports the error.
        if config.full_name not in names:
            raise SubscriberNotFoundError(
                "the group's subscription was removed, or was idle for too long, and no longer holds data; create "
                "the group again to register the subscription again",
                subscriber=config.full_name,
                stream=str(stream),
            )


async def has_java_state(controller: ControlPlane, rng: Rng, config: ReaderGroupConfig) -> bool:
    """Whether Pravega's Java client keeps the positions of the group's readers, in the stream with the group's name."""
    state = StreamName(config.scope, READER_GROUP_PREFIX + config.name)
    try:
        end = await retrying(partial(controller.cuts.tail, state), rng)
    except StreamNotFoundError:
        return False
    return any(offset > 0 for offset in end.positions.values())
