"""Leases on the chunks of several segments: all of a call, or nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.core.segments.append_rules import fits_int64, is_text
from penstock.model.errors import InvalidArgumentError, PenstockError, SegmentNotFoundError
from penstock.ports.data.chunks import Leased
from penstock.segmentstore.container import Container
from penstock.segmentstore.segment import Segment
from penstock.segmentstore.tiering.leases import HeldLease


async def take(
    containers: Sequence[Container],
    container_of: Callable[[str], Container],
    names: Sequence[str],
    lease: int,
    *,
    until_ms: int,
    holder: str,
) -> Leased:
    """See ``ports.data.chunks.LeasedChunks.lease_chunks``."""
    if not fits_int64(until_ms) or not is_text(holder):
        raise InvalidArgumentError("lease has an end or a holder that cannot be stored", until_ms=until_ms)
    for name in names:
        # A name that is refused must leave no lease on those before it: nobody would know to release them.
        container = container_of(name)
        container.leases.check(until_ms, holder)
        with suppress(SegmentNotFoundError):
            (await container.segments.find_visible(name)).require_plain()
    renewed = any(container.leases.has(lease) for container in containers)
    granted: list[str] = []
    refused: list[str] = []
    before: dict[Container, dict[int, HeldLease | None]] = {}
    taken: dict[Container, list[asyncio.Future[None]]] = {}
    try:
        for name in names:
            container = container_of(name)
            with suppress(SegmentNotFoundError):
                segment = await _find(container, name)
                # No await in between: no merge or deletion may be queued after the segment was found.
                held = container.leases.held(segment.uid, lease)
                durable = container.leases.take(segment.uid, lease, until_ms, holder)
                if durable is None:
                    refused.append(name)
                    continue
                taken.setdefault(container, []).append(durable)
                granted.append(name)
                before.setdefault(container, {}).setdefault(segment.uid, held)
        for container, waiting in taken.items():
            await container.leases.durable(waiting)
    except PenstockError:
        for container, uids in before.items():
            container.leases.put_back(lease, uids)
        raise
    return Leased(granted=tuple(granted), refused=tuple(refused), renewed=renewed)


async def _find(container: Container, name: str) -> Segment:
    """The segment, when no merge or deletion of it is queued: in the log, the lease then comes before any of them. Raises
    SegmentNotFoundError."""
    while True:
        segment = (await container.segments.find_visible(name)).require_plain()
        if not segment.next_gone:
            return segment
        await container.drain()
        container.check_online()
