"""How a range of a stream is divided among Spark's tasks. Pure decisions.

Tiered bytes are read from chunk files, which are split only at starts of blocks, because those are event boundaries. Other
bytes are read from the store. Shares are packed by size, not by segment: a task costs more than reading a megabyte.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.ports.data.chunks import ChunkRange

SHARE_MIN_BYTES = 8 << 20
"""Shares are not made smaller than this to keep all cores busy."""

Times: TypeAlias = tuple[tuple[int, int | None], ...]
"""For a run of bytes, in order: (end offset of a part, append time of the part in milliseconds). None: not known."""


@dataclass(frozen=True, slots=True)
class Block:
    """A run of whole events with its checksum; offsets are of the segment."""

    start: int
    end: int
    crc32c: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Whole events of one segment: ``start <= offset < end``.

    ``location=None``: ask the store. Else a file, or the URL of an object, whose first byte is the segment's
    ``chunk_start``; ``blocks`` are the blocks entirely inside it, in order, which can be verified. ``times``: append
    times of the piece, or of more; empty if not needed.
    """

    segment: SegmentId
    start: int
    end: int
    location: str | None = None
    chunk_start: int = 0
    blocks: tuple[Block, ...] = ()
    times: Times = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one task reads, in this order. The lease keeps its chunk files until that wall time. ``only_direct``: fail
    if the files cannot be read, instead of reading the bytes from the store. ``part``: the number of this task, from 0,
    and the number of tasks under the lease; None: the lease is released elsewhere. ``more``: what the same task reads
    behind it, of other streams. ``time_bound_us``: of column ``event_time_bound``, microseconds since the Unix epoch;
    None: unknown, or not asked for."""

    stream: StreamName
    pieces: tuple[Piece, ...]
    lease: UUID | None
    lease_until_ms: int
    only_direct: bool = False
    part: tuple[int, int] | None = None
    more: tuple[Share, ...] = ()
    time_bound_us: int | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of this share alone."""
        return sum(piece.size_bytes for piece in self.pieces)


def pieces_of(
    segment: SegmentId, start: int, end: int, chunks: Sequence[ChunkRange], *, direct: bool
) -> Sequence[Piece]:
    """Cover ``start <= offset < end`` of a segment without gap or overlap, in order.

    ``chunks`` is the tiered part, in order. Bytes without a readable file are read from the store, as are all bytes
    without ``direct``.
    """
    found: list[Piece] = []
    at = start
    for chunk in chunks if direct else ():
        low, high = max(at, chunk.start_offset), min(end, chunk.end_offset)
        if low >= high or chunk.location is None:
            continue
        if at < low:
            found.append(Piece(segment=segment, start=at, end=low))
        blocks = tuple(
            Block(item.start_offset, item.end_offset, item.crc32c)
            for item in chunk.blocks
            if low <= item.start_offset and item.end_offset <= high
        )
        found.append(
            Piece(
                segment=segment,
                start=low,
                end=high,
                location=chunk.location,
                chunk_start=chunk.start_offset,
                blocks=blocks,
            )
        )
        at = high
    if at < end:
        found.append(Piece(segment=segment, start=at, end=end))
    return found


def timed(piece: Piece, times: Times) -> Piece:
    """The piece with the part of the times that it needs; ``times`` are of at least its bytes."""
    ends = [end for end, _ in times]
    first, last = bisect_right(ends, piece.start), bisect_left(ends, piece.end)
    return replace(piece, times=times[first : last + 1])


def split(piece: Piece, goal_bytes: int) -> Sequence[Piece]:
    """Split a piece at the starts of blocks, into parts of about ``goal_bytes``; a block is never split."""
    parts: list[Piece] = []
    start, kept = piece.start, 0
    for index, block in enumerate(piece.blocks):
        if block.start > start and block.end - start > goal_bytes:
            parts.append(replace(piece, start=start, end=block.start, blocks=piece.blocks[kept:index]))
            start, kept = block.start, index
    return [*parts, replace(piece, start=start, blocks=piece.blocks[kept:])]


def share_count(total_bytes: int, *, target_bytes: int, min_shares: int, cores: int) -> int:
    """The number of shares: each has about ``target_bytes`` at most, and all ``cores`` stay busy to the end.

    With three shares for two cores, one core is idle in the second round. So the number is a multiple of ``cores``, as long
    as each share has 8 MiB.
    """
    count = max(min_shares, -(-total_bytes // target_bytes), 1)
    rounds = -(-count // cores)
    return max(count, min(rounds * cores, total_bytes // SHARE_MIN_BYTES))


def pack(pieces: Iterable[Piece], *, shares: int) -> Sequence[tuple[Piece, ...]]:
    """Divide the pieces, in order, into about this many shares of about equal size.

    Every byte is in exactly one share. There are fewer shares if too few event boundaries are known.
    """
    pieces = list(pieces)
    goal = max(1, -(-sum(piece.size_bytes for piece in pieces) // shares))
    packed: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    filled = 0
    for part in (part for piece in pieces for part in split(piece, goal)):
        # A part goes into the next share if more than half of it would exceed the goal of this one.
        if current and filled + part.size_bytes // 2 > goal:
            packed.append(tuple(current))
            current, filled = [], 0
        current.append(part)
        filled += part.size_bytes
    return [*packed, tuple(current)] if current else packed


def together(shares: Sequence[Share], *, goal_bytes: int) -> Sequence[Share]:
    """Let one task read several small shares of different streams, up to about ``goal_bytes``. Order and bytes stay.

    Each task costs 23 ms, and a batch of many streams often has only a few events of each.
    """
    found: list[list[Share]] = []
    filled = 0
    for share in shares:
        if found and filled + share.size_bytes // 2 <= goal_bytes and share.stream != found[-1][-1].stream:
            found[-1].append(share)
            filled += share.size_bytes
        else:
            found.append([share])
            filled = share.size_bytes
    return [replace(first, more=tuple(rest)) if rest else first for first, *rest in found]
