"""The driver's side of a read: facts of a stream gathered from the store, made into shares for tasks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from uuid import UUID

from penstock.model.cuts import StreamCut
from penstock.model.errors import InternalError, SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.segment_service import SegmentInfo
from penstock.spark.connect import Services
from penstock.spark.options import CutChoice, ReadOptions
from penstock.spark.plan import Piece, Share, pack, pieces_of
from penstock.spark.positions import Positions, from_cut

_ASKED_AT_ONCE = 128

log = logging.getLogger("penstock.spark")


def now_ms() -> int:
    """Wall clock, for leases only."""
    return time.time_ns() // 1_000_000


async def resolve(services: Services, stream: StreamName, choice: CutChoice | None, default: CutChoice) -> StreamCut:
    """The cut that a user chose, as it stands now. "Unbounded" is the default's end of the stream."""
    chosen = default if choice in (None, "unbounded") else choice
    if chosen == "earliest":
        return await services.controller.head(stream)
    if chosen == "latest":
        return await services.controller.tail(stream)
    if not isinstance(chosen, StreamCut):
        raise InternalError("default of a cut is unbounded", stream=stream)
    return chosen


async def positions_of(services: Services, cut: StreamCut) -> Positions:
    """Positions of a cut, see ``positions.from_cut``."""
    waiting = any(offset < 0 for offset in cut.positions.values())
    ranges = await services.controller.segment_ranges(cut.stream, sorted(cut.positions)) if waiting else {}
    return from_cut(cut, ranges)


async def infos(
    services: Services, stream: StreamName, segments: Sequence[SegmentId]
) -> dict[SegmentId, SegmentInfo | None]:
    """Durable state of each segment; None where it is gone."""
    found: dict[SegmentId, SegmentInfo | None] = {}
    for first in range(0, len(segments), _ASKED_AT_ONCE):
        some = segments[first : first + _ASKED_AT_ONCE]
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(_info(services, segment_name(stream, segment))) for segment in some]
        found |= {segment: task.result() for segment, task in zip(some, asked, strict=True)}
    return found


async def _info(services: Services, name: str) -> SegmentInfo | None:
    try:
        return await services.segments.info(name)
    except SegmentNotFoundError:
        return None


async def batch_ranges(
    services: Services, stream: StreamName, start: StreamCut, end: StreamCut
) -> list[tuple[SegmentId, int, int]]:
    """All of the stream between two cuts: (segment, from, to), oldest segment first. Raises InvalidCutError."""
    ranges: list[tuple[SegmentId, int, int]] = []
    for segment in sorted(await services.controller.segments_between(stream, start, end)):
        low = max(0, start.positions.get(segment, 0))
        high = end.positions.get(segment)
        if high is None:
            # Behind the start and before the end, hence sealed: all that it holds.
            high = (await services.segments.info(segment_name(stream, segment))).length
        if low < high:
            ranges.append((segment, low, high))
    return ranges


async def without_lost(
    services: Services, stream: StreamName, ranges: Sequence[tuple[SegmentId, int, int]], *, fail: bool
) -> list[tuple[SegmentId, int, int]]:
    """The ranges as far as they still exist. Raises TruncatedError where some do not and ``fail``; else logs them."""
    kept: list[tuple[SegmentId, int, int]] = []
    known = await infos(services, stream, [segment for segment, _, _ in ranges])
    for segment, low, high in ranges:
        info = known[segment]
        begin = high if info is None else info.start_offset
        if begin > low:
            lost_data(stream, segment, low, min(begin, high), fail=fail)
        if max(begin, low) < high:
            kept.append((segment, max(begin, low), high))
    return kept


def lost_data(stream: StreamName, segment: SegmentId, start: int, begin: int, *, fail: bool) -> None:
    """Raise TruncatedError, or log: what was to be read from ``start`` on is gone, data begins at ``begin`` now."""
    if fail:
        raise TruncatedError(
            "data was truncated before it was read; fail_on_data_loss=false skips what is gone",
            stream=stream,
            segment=segment,
            offset=start,
            start_offset=begin,
        )
    log.warning(
        "skipping truncated data", extra={"stream": str(stream), "segment": segment, "start": start, "begin": begin}
    )


async def plan_shares(
    services: Services,
    options: ReadOptions,
    ranges: Sequence[tuple[SegmentId, int, int]],
    *,
    lease: UUID,
) -> Sequence[Share]:
    """Shares that cover the ranges, in order. Chunks are leased before they are listed, so that none goes between."""
    until_ms = now_ms() + options.lease_ms
    total = sum(high - low for _, low, high in ranges)
    goal = max(1, min(options.target_partition_bytes, -(-total // options.min_partitions)))
    pieces: list[Piece] = []
    for segment, low, high in ranges:
        name = segment_name(options.stream, segment)
        if options.direct:
            await services.segments.lease_chunks(name, lease, until_ms=until_ms)
            chunks = await services.segments.chunk_ranges(name, low, high)
        else:
            chunks = ()
        for piece in pieces_of(segment, low, high, chunks, direct=options.direct):
            pieces += [piece] if piece.location else await _split_untiered(services, name, piece, goal)
    packed = pack(pieces, target_bytes=options.target_partition_bytes, min_shares=options.min_partitions)
    held = lease if options.direct else None
    return [Share(stream=options.stream, pieces=part, lease=held, lease_until_ms=until_ms) for part in packed]


async def _split_untiered(services: Services, name: str, piece: Piece, goal_bytes: int) -> list[Piece]:
    """Cut what has no chunk at event boundaries that the store knows, into parts of at least ``goal_bytes``."""
    parts: list[Piece] = []
    at = piece.start
    while piece.end - at > goal_bytes + goal_bytes // 2:
        boundary = await services.segments.next_event_boundary(name, at + goal_bytes)
        if not at < boundary < piece.end:
            break
        parts.append(Piece(segment=piece.segment, start=at, end=boundary))
        at = boundary
    return [*parts, Piece(segment=piece.segment, start=at, end=piece.end)]
