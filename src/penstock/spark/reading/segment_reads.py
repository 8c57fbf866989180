"""What planning and tasks request from a store: chunks of a segment, bytes in a plan, what was erased since."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from penstock.model.errors import (
    CorruptDataError,
    PenstockError,
    SegmentNotFoundError,
    UnavailableError,
    UnsupportedError,
)
from penstock.ports.data.chunks import ChunkRange, Leased, LeasedChunks
from penstock.ports.data.segments import READ_MAX_BYTES, SegmentInfo, Segments
from penstock.spark.connect import RETRY_S, Services

_PAGE_BYTES = 256 << 20
_PAGE_MAX_BYTES = 1 << 40
_PAGE_BLOCKS = 8192  # of an answer about chunks, at about half of which each next one aims; 200 KB


NAMES_AT_ONCE_SEGMENTS = 5_000
"""Of a call about many segments: a request has at most 4 MiB, and a name at most about 550 bytes."""


async def segment_infos(segments: Segments, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
    """As ``Segments.infos``, for any number of segments."""
    found: dict[str, SegmentInfo] = {}
    for page in _pages(names):
        found.update(await segments.infos(page))
    return found


async def lease_segments(
    segments: LeasedChunks, names: Sequence[str], lease: UUID, *, until_ms: int, holder: str = ""
) -> Leased:
    """As ``LeasedChunks.lease_chunks``, for any number of segments. After an error a new lease holds nothing."""
    granted, refused, renewed = list[str](), list[str](), None
    try:
        for page in _pages(names):
            part = await segments.lease_chunks(page, lease, until_ms=until_ms, holder=holder)
            granted += part.granted
            refused += part.refused
            renewed = part.renewed if renewed is None else renewed
    except PenstockError:
        if renewed is False:
            with suppress(PenstockError):  # The lease ends by time; the first failure says more.
                await segments.release_lease(lease)
        raise
    return Leased(granted=tuple(granted), refused=tuple(refused), renewed=bool(renewed))


def _pages(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), NAMES_AT_ONCE_SEGMENTS):
        yield names[at : at + NAMES_AT_ONCE_SEGMENTS]


async def chunk_pages(segments: LeasedChunks, name: str, low: int, high: int) -> AsyncIterator[Sequence[ChunkRange]]:
    """The tiered part of a range, in order, in answers of a few thousand blocks; see ``LeasedChunks.chunk_ranges``.

    A segment can have millions of blocks, and the store answers no other call while it packs an answer.
    """
    at, step = low, _PAGE_BYTES
    while at < high:
        asked = min(high, at + step)
        found = await segments.chunk_ranges(name, at, asked)
        if not found:
            return
        yield found
        if found[-1].end_offset < asked:
            return  # the rest is not tiered yet
        at = found[-1].end_offset
        blocks = sum(len(chunk.blocks) for chunk in found)
        step = max(1 << 20, step * _PAGE_BLOCKS // (2 * max(1, blocks)), step // 8)
        step = min(step, _PAGE_MAX_BYTES)


async def read_bytes(services: Services, name: str, offset: int, size: int) -> bytes:
    """At least one byte from ``offset`` on, at most ``size``.

    Raises UnavailableError (none came in ``RETRY_S``), CorruptDataError (the segment ends there), and what a read raises.
    """
    # The plan ends at durable data, so waiting is safe; a store that is recovering takes time.
    try:
        async with asyncio.timeout(RETRY_S):
            read = await services.segments.read(name, offset, min(size, READ_MAX_BYTES))
    except TimeoutError:
        raise UnavailableError("store returned no bytes where some must exist", segment=name, offset=offset) from None
    data = b"".join(read.parts)
    if not data:
        raise CorruptDataError("segment ends before the planned end", segment=name, offset=offset)
    return data


async def erased_ranges(services: Services, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
    """Erased ranges of ``start <= offset < end``, which a task skips."""
    try:
        return await services.segments.erased_ranges(name, start, end)
    except (SegmentNotFoundError, UnsupportedError):
        # Either the segment was deleted since, so the ranges are unknown. Or the store cannot erase: then a writer
        # wrote the zeros.
        return ()
