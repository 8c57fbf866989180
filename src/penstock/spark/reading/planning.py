"""The driver's part of a read: gather facts of a stream from the store, and make shares for tasks from them."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

from penstock.client.moments import cut_at, from_cut
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    InternalError,
    InvalidCutError,
    SegmentNotFoundError,
    ThrottledError,
    TruncatedError,
    UnsupportedError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.chunks import HOLDER_MAX_BYTES, ChunkRange
from penstock.ports.data.segments import SegmentInfo
from penstock.spark.connect import Services
from penstock.spark.options import CutChoice, Moment, ReadOptions
from penstock.spark.reading.losses import explained, say
from penstock.spark.reading.plan import Cover, Piece, Pieces, Share, pack, share_count, timed
from penstock.spark.reading.positions import Loss, Positions
from penstock.spark.reading.pruning import Wanted
from penstock.spark.reading.segment_reads import chunk_pages, lease_segments, segment_infos
from penstock.spark.reading.times import times_of

log = logging.getLogger("penstock.spark")

T = TypeVar("T")

_SEGMENTS_AT_ONCE = 16

_DIRECT_MIN_BYTES = 1 << 20
"""If a micro-batch reads many segments, fewer bytes of one come from the store. They are in its cache, and the listings
are two calls for each segment."""


def now_ms() -> int:
    """Wall clock, for leases only."""
    return time.time_ns() // 1_000_000


def holder_of(options: ReadOptions, kind: str) -> str:
    """The owner of chunk leases in the store's report of its space: the user's name for it, else its process and
    host."""
    who = options.application or f"process {os.getpid()} on {platform.node()}"
    as_subscriber = f" as subscriber {options.stream.scope}/{options.subscriber}" if options.subscriber else ""
    # Names can be long, and the store refuses a lease with a longer holder.
    return f"Spark {kind} of {who}{as_subscriber}".encode()[:HOLDER_MAX_BYTES].decode(errors="ignore")


async def resolve(
    services: Services, stream: StreamName, choice: CutChoice | None, default: CutChoice, *, end: bool = False
) -> StreamCut:
    """The cut that a user chose, as it stands now, to begin or ``end`` at. "Unbounded" is the default's end of the stream."""
    chosen = default if choice in (None, "unbounded") else choice
    if isinstance(chosen, Moment):
        return await cut_at(services, stream, chosen.time_ms, end=end)
    if chosen == "earliest":
        return await services.controller.cuts.head(stream)
    if chosen == "latest":
        return await services.controller.cuts.tail(stream)
    if not isinstance(chosen, StreamCut):
        raise InternalError("default of a cut is unbounded", stream=stream)
    return chosen


async def positions_of(services: Services, cut: StreamCut) -> Positions:
    """Positions of a cut, see ``moments.from_cut``."""
    waiting = any(offset < 0 for offset in cut.positions.values())
    ranges = await services.controller.layout.ranges(cut.stream, sorted(cut.positions)) if waiting else {}
    return from_cut(cut, ranges)


async def infos(
    services: Services, stream: StreamName, segments: Sequence[SegmentId]
) -> dict[SegmentId, SegmentInfo | None]:
    """Durable state of each segment; None if it is deleted."""
    names = {segment: segment_name(stream, segment) for segment in segments}
    found = await segment_infos(services.segments, list(names.values()))
    return {segment: found.get(name) for segment, name in names.items()}


async def batch_ranges(
    services: Services, stream: StreamName, start: StreamCut, end: StreamCut
) -> list[tuple[SegmentId, int, int]]:
    """All of the stream between two cuts: (segment, from, to), oldest segment first. Raises InvalidCutError."""
    ranges: list[tuple[SegmentId, int, int]] = []
    between = sorted(await services.controller.cuts.segments_between(stream, start, end))
    # Those that the end does not name lie before it, hence are sealed: all of them is read.
    whole = [segment for segment in between if segment not in end.positions]
    known = await infos(services, stream, whole)
    for segment in between:
        low = max(0, start.positions.get(segment, 0))
        high = end.positions.get(segment)
        if high is None:
            info = known[segment]
            if info is None:
                raise SegmentNotFoundError("segment was deleted while the read was planned", segment=segment)
            high = info.length
        if low < high:
            ranges.append((segment, low, high))
    return ranges


async def left_of(
    services: Services, stream: StreamName, ranges: Sequence[tuple[SegmentId, int, int]], *, fail: bool
) -> tuple[list[tuple[SegmentId, int, int]], tuple[Loss, ...]]:
    """The ranges as far as they still exist, and the lost ones. Raises TruncatedError if data is lost and ``fail``,
    InvalidCutError where a range ends after its segment."""
    kept: list[tuple[SegmentId, int, int]] = []
    lost: list[Loss] = []
    known = await infos(services, stream, [segment for segment, _, _ in ranges])
    check_reached(stream, {segment: high for segment, _, high in ranges}, known)
    for segment, low, high in ranges:
        info = known[segment]
        begin = high if info is None else min(high, info.start_offset)
        if begin > low:
            check_loss(stream, segment, low, begin, fail=fail)
            lost.append(Loss(segment=segment, start=low, end=begin))
        if max(begin, low) < high:
            kept.append((segment, max(begin, low), high))
    if not lost:
        return kept, ()
    return kept, await explained(services, stream, {item.segment: item.start for item in lost}, lost)


async def without_lost(
    services: Services, stream: StreamName, ranges: Sequence[tuple[SegmentId, int, int]], *, fail: bool
) -> list[tuple[SegmentId, int, int]]:
    """The same as ``left_of``, and logs the losses."""
    kept, lost = await left_of(services, stream, ranges, fail=fail)
    say(stream, lost)
    return kept


def check_reached(
    stream: StreamName, positions: Mapping[SegmentId, int], known: Mapping[SegmentId, SegmentInfo | None]
) -> None:
    """Raise InvalidCutError if a position is past the end of its segment. ``known`` has the state of the segments.

    Durable data does not become shorter. So the store was created again under this name, or restored from an older copy.
    """
    for segment, offset in positions.items():
        info = known.get(segment)
        if info is not None and offset > info.length:
            raise InvalidCutError(
                "the stream ends before this position: its store was set up anew, or from an older copy; use a new "
                "checkpoint location, or another cut",
                stream=stream,
                segment=segment,
                offset=offset,
                length=info.length,
            )


def check_loss(stream: StreamName, segment: SegmentId, start: int, begin: int, *, fail: bool) -> None:
    """Raise TruncatedError if ``fail``: data was to be read from ``start``, and now begins at ``begin``."""
    if fail:
        raise TruncatedError(
            "data was truncated before it was read; fail_on_data_loss=false skips what was deleted",
            stream=stream,
            segment=segment,
            offset=start,
            start_offset=begin,
        )


def shares_for(options: ReadOptions, total_bytes: int) -> int:
    """The approximate number of tasks for a read of this size. In local mode it uses the cores of this machine, and takes
    the same number for a small cluster."""
    return share_count(
        total_bytes,
        target_bytes=options.target_partition_bytes,
        min_shares=options.min_partitions,
        cores=os.cpu_count() or 1,
    )


async def plan_shares(
    services: Services,
    options: ReadOptions,
    ranges: Sequence[tuple[SegmentId, int, int]],
    *,
    lease: UUID,
    holder: str = "",
    with_times: bool = False,
    fresh: bool = False,
    wanted: Wanted | None = None,
    in_one: bool = False,
) -> Sequence[Share]:
    """Shares that cover the ranges, in order. Chunks are leased before they are listed, so that none is deleted in between.

    ``wanted``: what can pass the filters; other blocks are left out.
    If the store has no lease left for a segment, it is read through the store; with ``direct=always``, raises
    ThrottledError. ``fresh``: the data was written just now, so there are few chunks. Then a range is leased, and listed
    again, only if it has chunks. Shares without a lease have nothing to release. ``in_one``: one share, so that one task
    reads all of it in order.
    """
    total = sum(high - low for _, low, high in ranges)
    shares = 1 if in_one else shares_for(options, total)
    cover = _Cover(
        services=services,
        options=options,
        lease=lease,
        until_ms=now_ms() + options.lease_ms,
        holder=holder,
        with_times=with_times,
        fresh=fresh,
        direct_min_bytes=_DIRECT_MIN_BYTES if fresh and len(ranges) > _SEGMENTS_AT_ONCE else 0,
        goal_bytes=max(1, -(-total // shares)),
        wanted=wanted,
    )
    await cover.lease_chunks(ranges)
    if with_times:
        # Before the chunks are listed: chunks tiered in between have a later time than the one that is returned.
        cover.infos = await infos(services, options.stream, [segment for segment, _, _ in ranges])
    found = await _each(ranges, cover.pieces)
    if wanted is not None:
        total = sum(pieces.size_bytes for pieces in found)
        shares = 1 if in_one else shares_for(options, total)
    packed = pack((piece for pieces in found for piece in pieces), total, shares=shares)
    held = lease if cover.granted else None
    only = options.only_direct
    return [
        Share(stream=options.stream, pieces=part, lease=held, lease_until_ms=cover.until_ms, only_direct=only)
        for part in packed
    ]


Range: TypeAlias = tuple[SegmentId, int, int]


async def _each(ranges: Sequence[Range], call: Callable[[SegmentId, int, int], Coroutine[Any, Any, T]]) -> list[T]:
    """The answers for all ranges, in their order. A few are asked for at a time."""
    limit = asyncio.Semaphore(_SEGMENTS_AT_ONCE)

    async def answer(item: Range) -> T:
        async with limit:
            return await call(*item)

    async with asyncio.TaskGroup() as running:
        tasks = [running.create_task(answer(item)) for item in ranges]
    return [task.result() for task in tasks]


@dataclass(slots=True, kw_only=True)
class _Cover:
    """Covers ranges of a stream with pieces. See ``plan_shares``. ``granted``: the segments whose chunks are leased;
    ``infos``: their state, for times."""

    services: Services
    options: ReadOptions
    lease: UUID
    until_ms: int
    holder: str
    with_times: bool
    fresh: bool
    direct_min_bytes: int
    goal_bytes: int
    wanted: Wanted | None
    granted: frozenset[str] = frozenset()
    infos: Mapping[SegmentId, SegmentInfo | None] = field(default_factory=dict)

    async def lease_chunks(self, ranges: Sequence[Range]) -> None:
        """Lease the chunks of the ranges, as far as there are any. Raises ThrottledError if chunks must be leased and the
        store has no lease left."""
        segments, stream = self.services.segments, self.options.stream
        if not self.options.direct:
            return
        has_chunks = await _each(ranges, self._has_chunks)
        names = [segment_name(stream, item[0]) for item, has in zip(ranges, has_chunks, strict=True) if has]
        leased = await lease_segments(segments, names, self.lease, until_ms=self.until_ms, holder=self.holder)
        self.granted = frozenset(leased.granted)
        if leased.refused:
            if self.options.only_direct:
                raise ThrottledError(
                    "store has no lease left for chunks", resource="leases", segments=len(leased.refused)
                )
            log.warning(
                "store has no lease left; reading chunks through the store. stream=%s segments=%d",
                stream,
                len(leased.refused),
            )

    async def _has_chunks(self, segment: SegmentId, low: int, high: int) -> bool:
        """Whether to lease the range. A segment deleted since counts as one without chunks."""
        if high - low < self.direct_min_bytes and not self.options.only_direct:
            return False
        if not self.fresh:
            return True
        # Bytes are tiered in order: if the first byte is in no chunk, the others are not either.
        with suppress(TruncatedError, SegmentNotFoundError):
            return bool(
                await self.services.segments.chunk_ranges(segment_name(self.options.stream, segment), low, low + 1)
            )
        return False

    async def pieces(self, segment: SegmentId, low: int, high: int) -> Pieces:
        """Pieces of one range that pass the filters, in order."""
        segments, with_times = self.services.segments, self.with_times
        name = segment_name(self.options.stream, segment)
        found, cover = Pieces(), Cover(segment, low, high)
        modified_ms, at, begins = None, low, False
        # What was deleted since is read from the store by a task, which reports the loss.
        with suppress(*(() if self.options.fail_on_data_loss else (TruncatedError, SegmentNotFoundError))):
            if with_times:
                info = self.infos[segment]
                if info is None:
                    raise SegmentNotFoundError("segment was deleted while the read was planned", segment=segment)
                modified_ms = info.last_modified_ms
            direct = name in self.granted
            if direct or with_times:
                async for chunks in chunk_pages(segments, name, low, high):
                    if self.options.only_direct:
                        _check_locations(name, chunks)
                    upto = min(high, chunks[-1].end_offset)
                    times = times_of(at, upto, chunks, modified_ms) if with_times else ()
                    await self._add(found, name, cover.add(chunks if direct else (), times))
                    at = upto
            begins = not cover.is_open or await segments.next_event_boundary(name, cover.at) == cover.at
        rest = times_of(at, high, (), modified_ms) if with_times else ()
        await self._add(found, name, cover.finish(begins=begins, times=rest))
        return found

    async def _add(self, found: Pieces, name: str, pieces: Iterable[Piece]) -> None:
        """Add what passes the filters."""
        for piece in pieces:
            parts = [piece] if piece.location else await self._split_untiered(name, piece)
            for part in parts:
                kept = part if self.wanted is None else self.wanted.trimmed(part)
                if kept is not None:
                    found.append(kept)

    async def _split_untiered(self, name: str, piece: Piece) -> list[Piece]:
        """Split an untiered piece at event boundaries that the store knows, into parts of at least ``goal_bytes``."""
        parts: list[Piece] = []
        at = piece.start
        with suppress(SegmentNotFoundError):
            while piece.end - at > self.goal_bytes + self.goal_bytes // 2:
                boundary = await self.services.segments.next_event_boundary(name, at + self.goal_bytes)
                if not at < boundary < piece.end:
                    break
                parts.append(replace(piece, start=at, end=boundary))
                at = boundary
        return [timed(part, piece.times) for part in (*parts, replace(piece, start=at))]


def _check_locations(name: str, chunks: Sequence[ChunkRange]) -> None:
    for chunk in chunks:
        if chunk.location is None:
            raise UnsupportedError(
                "the store keeps chunks where no other process can read them; direct=true reads them through the store",
                segment=name,
                chunk=chunk.name,
            )
