"""What a remote store offers beside the wire protocol: its chunks, for readers that go straight to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from penstock.net.dial.grpc_connection import CALL_S, PATIENCE_S, GrpcConnection
from penstock.net.grpc import native_mapping as own
from penstock.net.grpc.mapping import make
from penstock.net.proto import native_pb2 as native
from penstock.ports.data.chunks import ChunkRange
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.integrity import ScrubPage


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreInfo:
    """Who answers: its version, the id of the store, and the native calls that it knows."""

    version: str
    store_id: str
    capabilities: Sequence[str]


class NativeSegments:
    """The calls of ``SegmentService`` that the wire protocol lacks, with the same promises and errors."""

    def __init__(self, connection: GrpcConnection) -> None:
        """The connection is borrowed."""
        self._connection = connection

    async def info(self) -> StoreInfo:
        reply: native.InfoResponse = await self._connection.native("Info", native.InfoRequest())
        return StoreInfo(version=reply.version, store_id=reply.store_id, capabilities=tuple(reply.capabilities))

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        """The tiered part of ``start <= offset < end``, in order; what lies behind the last range is not tiered yet."""
        request = make(native.ChunkRangesRequest, segment=name, start=start, end=end)
        reply: native.ChunkRangesResponse = await self._connection.native("ChunkRanges", request)
        return tuple(own.chunk_of(item) for item in reply.ranges)

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        """What was erased of ``start <= offset < end``. See ``SegmentService.erased_ranges``."""
        request = make(native.ErasedRangesRequest, segment=name, start=start, end=end)
        reply: native.ErasedRangesResponse = await self._connection.native("ErasedRanges", request)
        return own.bounds_of(reply)

    async def lease_chunks(self, name: str, lease: UUID, *, until_ms: int, holder: str = "") -> None:
        """Keep the segment's chunks on disk until that wall time. Repeating extends."""
        request = make(native.LeaseChunksRequest, segment=name, lease=str(lease), until_ms=until_ms, holder=holder)
        await self._connection.native("LeaseChunks", request)

    async def release_lease(self, lease: UUID) -> None:
        await self._connection.native("ReleaseLease", native.ReleaseLeaseRequest(lease=str(lease)))

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        """Note that one task under the lease is done; after the last one, the lease ends. Raises UnsupportedError (a
        server of an earlier version)."""
        request = make(native.FinishLeasePartRequest, lease=str(lease), part=part, parts=parts)
        await self._connection.native("FinishLeasePart", request)

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        """What each existing segment takes; absent ones are left out."""
        reply: native.SpacesResponse = await self._connection.native(
            "Spaces", make(native.SpacesRequest, segments=names)
        )
        return {item.segment: own.space_of(item) for item in reply.spaces}

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        """State of each existing segment. Raises UnsupportedError (a server of an earlier version)."""
        reply: native.SegmentInfosResponse = await self._connection.native(
            "SegmentInfos", make(native.SegmentInfosRequest, segments=names)
        )
        return {item.segment: own.info_of(item) for item in reply.infos}

    async def count_events(self, name: str, start: int, end: int) -> int:
        """How many events lie in ``start <= offset < end``, exactly."""
        request = make(native.CountEventsRequest, segment=name, start=start, end=end)
        reply: native.CountEventsResponse = await self._connection.native("CountEvents", request)
        return reply.events

    async def disk(self) -> DiskSpace:
        """The space of the disk below the store, as of now."""
        return own.disk_of(await self._connection.native("Disk", native.DiskRequest()))

    async def grant_import(self, name: str) -> ImportGrant:
        """See ``ports.data.imports.ChunkImports``."""
        reply: native.ImportGrant = await self._connection.native(
            "GrantImport", make(native.GrantImportRequest, segment=name)
        )
        return own.grant_of(name, reply)

    async def adopt_chunks(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """See ``ports.data.imports.ChunkImports``."""
        request = make(
            native.AdoptChunksRequest,
            segment=name,
            offset=offset,
            chunks=[own.imported_message(chunk) for chunk in chunks],
        )
        reply: native.AdoptChunksResponse = await self._connection.native("AdoptChunks", request)
        return reply.length

    async def scrub(self, cursor: str | None, max_bytes: int) -> ScrubPage:
        """See ``ports.integrity.Scrubbable``."""
        reply: native.ScrubResponse = await self._connection.native(
            "Scrub", make(native.ScrubRequest, cursor=cursor, max_bytes=max_bytes)
        )
        return own.scrub_of(reply)


@asynccontextmanager
async def dial_native(
    address: str, *, patience_s: float = PATIENCE_S, call_s: float = CALL_S
) -> AsyncIterator[NativeSegments]:
    """Open a connection of its own for the native calls on segments. See ``dial_controller``."""
    async with GrpcConnection(address, patience_s=patience_s, call_s=call_s) as connection:
        yield NativeSegments(connection)
