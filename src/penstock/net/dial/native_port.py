"""What a remote store offers beyond Pravega's wire protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from penstock.ports.data.chunks import ChunkRange
from penstock.ports.data.segments import SegmentInfo
from penstock.ports.data.space import DiskSpace, SegmentSpace


class NativePort(Protocol):
    """The calls of ``SegmentService`` that the wire has no words for, with the same laws and errors."""

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]: ...

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]: ...

    async def lease_chunks(self, name: str, lease: UUID, *, until_ms: int, holder: str = "") -> None: ...

    async def release_lease(self, lease: UUID) -> None: ...

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None: ...

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]: ...

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]: ...

    async def count_events(self, name: str, start: int, end: int) -> int: ...

    async def disk(self) -> DiskSpace: ...
