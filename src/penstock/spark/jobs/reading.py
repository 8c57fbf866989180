"""What jobs read of a stream with their own tasks: whole shares, verified, from tier 2 or else from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from penstock.model.errors import CorruptDataError, SegmentNotFoundError, UnavailableError, UnsupportedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.segment_service import READ_MAX_BYTES
from penstock.spark.connect import RETRY_S, Connector, Services, link
from penstock.spark.planning import now_ms
from penstock.spark.scan import Erased, Fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a stream is served. Plain values, for tasks."""

    connector: Connector
    controller: str
    stream: StreamName

    def fetch(self) -> Fetch:
        """Bytes of the stream's segments from the store, for what a task cannot read from tier 2 itself."""
        server = link(self.connector, self.controller)

        def fetch(segment: SegmentId, offset: int, size: int) -> bytes:
            return server.ask(lambda services: _read(services, segment_name(self.stream, segment), offset, size))

        return fetch

    def erased(self) -> Erased:
        """What was erased of the stream's segments: a task leaves it out."""
        server = link(self.connector, self.controller)

        def erased(segment: SegmentId, start: int, end: int) -> Sequence[tuple[int, int]]:
            return server.ask(lambda services: _erased(services, segment_name(self.stream, segment), start, end))

        return erased


async def _erased(services: Services, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
    try:
        return await services.segments.erased_ranges(name, start, end)
    except (SegmentNotFoundError, UnsupportedError):
        # Deleted since: nobody knows any more. Or a store that cannot erase: then the zeros are a writer's.
        return ()


async def _read(services: Services, name: str, offset: int, size: int) -> bytes:
    try:
        async with asyncio.timeout(RETRY_S):
            read = await services.segments.read(name, offset, min(size, READ_MAX_BYTES))
    except TimeoutError:
        raise UnavailableError("store gave no bytes where there must be some", segment=name, offset=offset) from None
    data = b"".join(read.parts)
    if not data:
        raise CorruptDataError("segment ends before the end that was planned", segment=name, offset=offset)
    return data


async def renew(
    services: Services,
    stream: StreamName,
    segments: Sequence[SegmentId],
    lease: UUID,
    *,
    lease_ms: int,
    holder: str,
) -> None:
    """Keep the chunks of these segments that long from now. Those that are gone are left out: no lease brings them back."""
    for segment in segments:
        try:
            await services.segments.lease_chunks(
                segment_name(stream, segment), lease, until_ms=now_ms() + lease_ms, holder=holder
            )
        except SegmentNotFoundError:
            continue
