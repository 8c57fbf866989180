"""How a range of a stream is divided among Spark's tasks. Pure decisions.

Tiered bytes are read from chunk files, which are split only at starts of blocks, because those are event boundaries. Other
bytes are read from the store. Shares are packed by size, not by segment: a task costs more than reading a megabyte.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field, replace
from operator import itemgetter
from typing import TypeAlias, overload
from uuid import UUID

from penstock.codec.columns import Records, column
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.chunks import ChunkRange
from penstock.spark.connect import Connector

SHARE_MIN_BYTES = 8 << 20
"""Shares are not made smaller than this to keep all cores busy."""

Times: TypeAlias = Sequence[tuple[int, int | None]]
"""For a run of bytes, in order: (end offset of a part, append time of the part in milliseconds). None: not known."""

_UNKNOWN = -(1 << 63)  # a time in a column, where none is known
_end_of_time = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Block:
    """A run of appends with its checksum; offsets are of the segment. ``begins``: an event begins at ``start``. If not,
    the block continues a large event."""

    start: int
    end: int
    crc32c: int
    begins: bool = True


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
    blocks: Sequence[Block] = ()
    times: Times = ()

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


class Pieces(Sequence[Piece]):
    """Pieces in order, as columns: a plan can hold millions of blocks. A piece is made when it is asked for.

    Takes 21 bytes for a block, 16 for a time, and for a piece 40 and the name of its file.
    """

    __slots__ = ("_columns", "_heads", "_names", "size_bytes")

    def __init__(self, pieces: Iterable[Piece] = ()) -> None:
        self._columns = _Columns()
        # Files lie in few directories: the first part of a location is kept once, the rest end to end.
        self._heads: dict[str, int] = {}
        self._names = bytearray()
        self.size_bytes = 0
        """Bytes of all pieces."""
        for piece in pieces:
            self.append(piece)

    def append(self, piece: Piece) -> None:
        """Add a piece at the end."""
        columns = self._columns
        head, slash, name = (piece.location or "").rpartition("/")
        found = self._heads.setdefault(head + slash, len(self._heads)) if piece.location is not None else -1
        self._names += name.encode()
        columns.add_blocks(piece.blocks)
        columns.time_ends.extend(end for end, _ in piece.times)
        columns.times_ms.extend(_UNKNOWN if at is None else at for _, at in piece.times)
        row = (piece.segment, piece.start, piece.end, piece.chunk_start, found)
        columns.rows.extend((*row, len(self._names), len(columns.block_ends), len(columns.time_ends)))
        self.size_bytes += piece.size_bytes

    def __len__(self) -> int:
        return len(self._columns.rows) // _ROW

    @overload
    def __getitem__(self, index: int) -> Piece: ...
    @overload
    def __getitem__(self, index: slice) -> Pieces: ...
    def __getitem__(self, index: int | slice) -> Piece | Pieces:
        if isinstance(index, slice):
            return Pieces(self[number] for number in range(*index.indices(len(self))))
        place = range(len(self))[index]
        return self._piece(place, tuple(self._heads))

    def __iter__(self) -> Iterator[Piece]:
        heads = tuple(self._heads)
        for place in range(len(self)):
            yield self._piece(place, heads)

    def _piece(self, place: int, heads: Sequence[str]) -> Piece:
        columns, at = self._columns, place * _ROW
        segment, start, end, chunk_start, head, *upto = columns.rows[at : at + _ROW]
        since = columns.rows[at - _ENDS : at] if place else (0,) * _ENDS
        (name, block, time), (names, blocks, times) = since, upto
        unknown = columns.times_ms[time:times]
        return Piece(
            segment=SegmentId(segment),
            start=start,
            end=end,
            location=heads[head] + self._names[name:names].decode() if head >= 0 else None,
            chunk_start=chunk_start,
            blocks=columns.blocks(block, blocks),
            times=tuple(
                (upto_ms, None if at_ms == _UNKNOWN else at_ms)
                for upto_ms, at_ms in zip(columns.time_ends[time:times], unknown, strict=True)
            ),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


_ROW = 8
"""Numbers of a piece: segment, start, end, start of the chunk, place of the directory, and the ends of the rest."""

_ENDS = 3
"""The last of them: where the name, the blocks and the times of the piece end."""


class _Columns:
    """The numbers of ``Pieces``."""

    __slots__ = ("block_begins", "block_ends", "block_starts", "block_sums", "rows", "time_ends", "times_ms")

    def __init__(self) -> None:
        self.rows = array("q")
        self.block_starts, self.block_ends, self.block_sums = array("q"), array("q"), array("I")
        self.block_begins = array("b")
        self.time_ends, self.times_ms = array("q"), array("q")

    def add_blocks(self, blocks: Sequence[Block]) -> None:
        self.block_starts.extend(column(blocks, "start"))
        self.block_ends.extend(column(blocks, "end"))
        self.block_sums.extend(column(blocks, "crc32c"))
        self.block_begins.extend(column(blocks, "begins"))

    def blocks(self, start: int, end: int) -> Sequence[Block]:
        if start == end:
            return ()
        return Records(
            Block,
            {
                "start": self.block_starts[start:end],
                "end": self.block_ends[start:end],
                "crc32c": self.block_sums[start:end],
                "begins": [item != 0 for item in self.block_begins[start:end]],
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one task reads, in this order. The lease keeps its chunk files until that wall time. ``only_direct``: fail
    if the files cannot be read, instead of reading the bytes from the store. ``part``: the number of this task, from 0,
    and the number of tasks under the lease; None: the lease is released elsewhere. ``more``: what the same task reads
    behind it, of other streams. ``time_bound_us``: of column ``event_time_bound``, microseconds since the Unix epoch;
    None: unknown, or not asked for. ``access``: how the task connects to the store; None: as its environment says.
    ``trace``: the ``traceparent`` of the plan; empty: it has none."""

    stream: StreamName
    pieces: Sequence[Piece]
    lease: UUID | None
    lease_until_ms: int
    only_direct: bool = False
    part: tuple[int, int] | None = None
    more: tuple[Share, ...] = ()
    time_bound_us: int | None = None
    access: Connector | None = field(default=None, repr=False)
    trace: str = ""

    @property
    def size_bytes(self) -> int:
        """Bytes of this share alone."""
        return sum(piece.size_bytes for piece in self.pieces)


class Cover:
    """Covers a range of a segment with pieces, without gap or overlap, in order, from parts of its chunks.

    Pieces begin and end between events. So a large event in several chunks is read from the store, and so are bytes
    without a readable file.
    """

    def __init__(self, segment: SegmentId, start: int, end: int) -> None:
        self._pending = Piece(segment=segment, start=start, end=start)
        self._times: list[tuple[int, int | None]] = []
        self._end = end

    @property
    def at(self) -> int:
        """The end of the chunks that were added."""
        return self._pending.end

    @property
    def is_open(self) -> bool:
        """Whether the range goes on behind a chunk, so that it must be known whether an event begins there."""
        return self._pending.location is not None and self.at < self._end

    def add(self, chunks: Sequence[ChunkRange], times: Times = ()) -> Iterator[Piece]:
        """Add the next chunks, in order, with the append times of their bytes. Returns the pieces that are known by now."""
        self._times += times
        for chunk in chunks:
            low, high = max(self.at, chunk.start_offset), min(self._end, chunk.end_offset)
            if low >= high:
                continue
            if low > self.at:
                yield from self._join(self._stored(self.at, low), first=self.at)
            blocks = _blocks_of(chunk, low, high)
            part = replace(
                self._stored(low, high), location=chunk.location, chunk_start=chunk.start_offset, blocks=blocks
            )
            begins = column(blocks, "begins")
            if not begins or blocks[0].start > low or begins[0]:
                yield from self._join(part, first=low)
            else:
                place = next((number for number, item in enumerate(begins) if item), None)
                yield from self._join(part, first=None if place is None else blocks[place].start)

    def finish(self, *, begins: bool, times: Times = ()) -> Iterator[Piece]:
        """The remaining pieces. ``begins``: an event begins at ``at``; ``times``: of the bytes that are in no chunk."""
        self._times += times
        if self.at < self._end:
            yield from self._join(self._stored(self.at, self._end), first=self.at if begins else None)
        yield from self._known(self._pending)

    def _stored(self, start: int, end: int) -> Piece:
        return Piece(segment=self._pending.segment, start=start, end=end)

    def _join(self, part: Piece, *, first: int | None) -> Iterator[Piece]:
        """Add a part; ``first``: where the first event in it begins."""
        before = self._pending
        if first == part.start and (before.location is not None or part.location is not None):
            yield from self._known(before)
            self._pending = part
            return
        cut = before.start
        if first != part.start and before.location is not None:
            cut = max(event_starts(before.blocks), default=cut)
            yield from self._known(_part(before, before.start, cut))
        stored = self._stored(cut, part.end if first is None or part.location is None else first)
        self._pending = stored
        if stored.end < part.end:
            yield from self._known(stored)
            self._pending = _part(part, stored.end, part.end)

    def _known(self, piece: Piece) -> Iterator[Piece]:
        if piece.start >= piece.end:
            return
        if not self._times:
            yield piece
            return
        yield timed(piece, self._times)
        self._times = self._times[bisect_right(self._times, piece.end, key=_end_of_time) :]


def _part(piece: Piece, start: int, end: int) -> Piece:
    """A part of a piece; ``start`` and ``end`` lie between events."""
    blocks = piece.blocks
    kept = blocks[bisect_left(column(blocks, "start"), start) : bisect_right(column(blocks, "end"), end)]
    return replace(piece, start=start, end=end, blocks=kept)


def _blocks_of(chunk: ChunkRange, low: int, high: int) -> Sequence[Block]:
    """The blocks of a chunk that lie entirely in the range."""
    starts, ends = column(chunk.blocks, "start_offset"), column(chunk.blocks, "end_offset")
    first, last = bisect_left(starts, low), bisect_right(ends, high)
    if first >= last:
        return ()
    counts = column(chunk.blocks, "event_count")[first:last]
    return Records(
        Block,
        {
            "start": starts[first:last],
            "end": ends[first:last],
            "crc32c": column(chunk.blocks, "crc32c")[first:last],
            "begins": [count > 0 for count in counts],
        },
    )


def event_starts(blocks: Sequence[Block]) -> list[int]:
    """Where blocks start with an event."""
    pairs = zip(column(blocks, "start"), column(blocks, "begins"), strict=True)
    return [start for start, begins in pairs if begins]


def timed(piece: Piece, times: Times) -> Piece:
    """The piece with the part of the times that it needs; ``times`` are of at least its bytes."""
    first = bisect_right(times, piece.start, key=_end_of_time)
    last = bisect_left(times, piece.end, key=_end_of_time)
    return replace(piece, times=times[first : last + 1])


def split(piece: Piece, goal_bytes: int) -> Sequence[Piece]:
    """Split a piece where events begin at the starts of blocks, into parts of about ``goal_bytes``."""
    if piece.size_bytes <= goal_bytes or not piece.blocks:
        return [piece]
    places = event_starts(piece.blocks)
    parts: list[Piece] = []
    start = piece.start
    while True:
        # The last place within the goal ends the part, or the first place after it.
        index = bisect_right(places, start + goal_bytes)
        index -= index > 0 and places[index - 1] > start
        if piece.end - start <= goal_bytes or index >= len(places):
            return [*parts, _part(piece, start, piece.end)]
        parts.append(_part(piece, start, places[index]))
        start = places[index]


def share_count(total_bytes: int, *, target_bytes: int, min_shares: int, cores: int) -> int:
    """The number of shares: each has about ``target_bytes`` at most, and all ``cores`` stay busy to the end.

    With three shares for two cores, one core is idle in the second round. So the number is a multiple of ``cores``, as long
    as each share has 8 MiB.
    """
    count = max(min_shares, -(-total_bytes // target_bytes), 1)
    rounds = -(-count // cores)
    return max(count, min(rounds * cores, total_bytes // SHARE_MIN_BYTES))


def pack(pieces: Iterable[Piece], total_bytes: int, *, shares: int) -> Sequence[Pieces]:
    """Divide the pieces, in order, into about this many shares of about equal size; together they have ``total_bytes``.

    Every byte is in exactly one share. There are fewer shares if too few event boundaries are known.
    """
    goal = max(1, -(-total_bytes // shares))
    packed: list[Pieces] = []
    for part in (part for piece in pieces for part in split(piece, goal)):
        # A part goes into the next share if more than half of it would exceed the goal of this one.
        if not packed or packed[-1].size_bytes + part.size_bytes // 2 > goal:
            packed.append(Pieces())
        packed[-1].append(part)
    return packed


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
