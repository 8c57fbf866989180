from __future__ import annotations

import asyncio
import gc
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.segments import SegmentId
from penstock.ports.data.chunks import HOLDER_MAX_BYTES, ChunkBlock, ChunkRange
from penstock.spark.options import parse_read
from penstock.spark.reading.plan import SHARE_MIN_BYTES, Cover, Piece, Pieces, pack, share_count, split
from penstock.spark.reading.planning import holder_of
from penstock.spark.reading.segment_reads import chunk_pages

SEGMENT = SegmentId(7)


@st.composite
def tiered(draw: st.DrawFn) -> tuple[list[ChunkRange], int]:
    """Chunks back to back from 0, some without a file, and the segment's length behind them."""
    at, chunks = 0, []
    for number in range(draw(st.integers(0, 4))):
        start, blocks = at, []
        for _ in range(draw(st.integers(1, 5))):
            size = draw(st.integers(1, 50))
            blocks.append(ChunkBlock(start_offset=at, end_offset=at + size, crc32c=1, event_count=1))
            at += size
        location = draw(st.sampled_from([f"/chunk{number}", None]))
        chunks.append(
            ChunkRange(name=str(number), location=location, start_offset=start, end_offset=at, blocks=tuple(blocks))
        )
    return chunks, at + draw(st.integers(0, 60))


def pieces_of(segment: SegmentId, start: int, end: int, chunks: list[ChunkRange], *, direct: bool) -> list[Piece]:
    cover = Cover(segment, start, end)
    return [*cover.add(chunks if direct else ()), *cover.finish(begins=True)]


def covered(pieces: list[Piece]) -> list[tuple[int, int]]:
    return [(piece.start, piece.end) for piece in pieces]


@settings(deadline=None)
@given(layout=tiered(), data=st.data(), direct=st.booleans())
def test_every_byte_of_a_range_is_in_exactly_one_share_and_in_order(
    layout: tuple[list[ChunkRange], int], data: st.DataObject, direct: bool
) -> None:
    chunks, length = layout
    start = data.draw(st.integers(0, length))
    end = data.draw(st.integers(start, length))
    pieces = pieces_of(SEGMENT, start, end, chunks, direct=direct)
    shares = pack(pieces, end - start, shares=data.draw(st.integers(1, 200)))
    parts = [part for share in shares for part in share]
    at = start
    for part in parts:
        assert part.start == at
        assert part.end > at
        at = part.end
    assert at == end
    assert all(share for share in shares)
    assert direct or all(part.location is None for part in parts)


@settings(deadline=None)
@given(layout=tiered(), goal=st.integers(1, 100))
def test_files_are_cut_where_blocks_begin_and_keep_their_checksums(
    layout: tuple[list[ChunkRange], int], goal: int
) -> None:
    chunks, length = layout
    blocks = {item.start_offset: item for chunk in chunks for item in chunk.blocks}
    for piece in pieces_of(SEGMENT, 0, length, chunks, direct=True):
        if piece.location is None:
            continue
        parts = split(piece, goal)
        for part in parts:
            assert part.start in blocks
            assert [item.start for item in part.blocks] == [s for s in sorted(blocks) if part.start <= s < part.end]
            assert part.size_bytes <= goal or len(part.blocks) == 1
        assert parts[0].start == piece.start
        assert parts[-1].end == piece.end


def test_many_small_segments_share_a_task() -> None:
    pieces = [Piece(segment=SegmentId(item), start=0, end=1000) for item in range(100)]
    assert len(pack(pieces, 100_000, shares=1)) == 1
    assert len(pack(pieces, 100_000, shares=4)) == 4


@settings(deadline=None)
@given(
    total=st.integers(0, 1 << 40),
    target=st.integers(1 << 20, 1 << 30),
    least=st.integers(1, 99),
    cores=st.integers(1, 64),
)
def test_shares_fill_whole_rounds_of_the_cores_unless_they_would_be_small(
    total: int, target: int, least: int, cores: int
) -> None:
    count = share_count(total, target_bytes=target, min_shares=least, cores=cores)
    needed = share_count(total, target_bytes=target, min_shares=least, cores=1)
    assert needed == max(least, -(-total // target), 1)
    assert needed <= count < needed + cores
    assert count % cores == 0 or count == needed or total < (count + 1) * SHARE_MIN_BYTES


def test_blocks_that_are_read_in_part_are_not_verified() -> None:
    blocks = tuple(ChunkBlock(start_offset=at, end_offset=at + 10, crc32c=1, event_count=1) for at in range(0, 30, 10))
    chunk = ChunkRange(name="c", location="/c", start_offset=0, end_offset=30, blocks=blocks)
    (piece,) = pieces_of(SEGMENT, 4, 26, [chunk], direct=True)
    assert (piece.start, piece.end, [item.start for item in piece.blocks]) == (4, 26, [10])


class Paper:
    """A segment that exists only as the list of its chunks: ``chunks`` of 16 blocks, of ``block_bytes`` each."""

    def __init__(self, chunks: int, block_bytes: int) -> None:
        self.block, self.chunk, self.length = block_bytes, 16 * block_bytes, 16 * chunks * block_bytes
        self.answers: list[int] = []

    async def chunk_ranges(self, name: str, start: int, end: int) -> list[ChunkRange]:
        found = [self._chunk(at) for at in range(start - start % self.chunk, min(end, self.length), self.chunk)]
        self.answers.append(16 * len(found))
        return found

    def _chunk(self, at: int) -> ChunkRange:
        starts = range(at, at + self.chunk, self.block)
        blocks = [ChunkBlock(start_offset=s, end_offset=s + self.block, crc32c=s % 997, event_count=9) for s in starts]
        location = f"/tier/two/chunks/{at:x}"
        return ChunkRange(name=str(at), location=location, start_offset=at, end_offset=at + self.chunk, blocks=blocks)


@pytest.mark.parametrize("block_bytes", [1000, 1 << 20, 64 << 20])
def test_chunks_are_listed_whole_in_answers_of_bounded_size(block_bytes: int) -> None:
    paper = Paper(4000, block_bytes)
    low, high = 5 * paper.block, paper.length - 3 * paper.block

    async def listed() -> list[ChunkRange]:
        return [chunk async for page in chunk_pages(paper, "s", low, high) for chunk in page]  # type: ignore[arg-type]

    found = asyncio.run(listed())
    assert [item.start_offset for item in found] == list(range(0, paper.length, paper.chunk))
    if block_bytes >= 1 << 20:
        assert max(paper.answers) <= 8192 + 16
        assert len(paper.answers) <= 40


def test_a_plan_takes_few_bytes_for_each_block_and_no_object() -> None:
    paper = Paper(1000, 1 << 20)
    chunks = asyncio.run(paper.chunk_ranges("s", 0, paper.length))
    pieces = Pieces(pieces_of(SEGMENT, 0, paper.length, chunks, direct=True))
    packed = pack(pieces, paper.length, shares=100)
    assert [piece for share in packed for piece in share] == list(pieces)
    assert pickle.loads(pickle.dumps(packed)) == packed
    assert len(pickle.dumps(packed)) / 16_000 < 40
    assert max(len(pickle.dumps(share)) for share in packed) < 6000
    gc.collect()
    before = len(gc.get_objects())
    kept = Pieces(pieces)
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert kept == pieces


@settings(deadline=None)
@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=12), data=st.data())
def test_pieces_begin_and_end_between_events(sizes: list[int], data: st.DataObject) -> None:
    """Events of any size in blocks of at most ten bytes, in chunks of any number of blocks, the last ones untiered."""
    bounds, blocks = [0], []
    for size in sizes:
        for start in range(0, size, 10):
            at = bounds[-1] + start
            end = bounds[-1] + min(size, start + 10)
            blocks.append(ChunkBlock(start_offset=at, end_offset=end, crc32c=at, event_count=int(start == 0)))
        bounds.append(bounds[-1] + size)
    tiered = blocks[: data.draw(st.integers(0, len(blocks)))]
    chunks = []
    while tiered:
        part = tiered[: data.draw(st.integers(1, 6))]
        tiered = tiered[len(part) :]
        location = data.draw(st.sampled_from(["/c", "/c", None]))
        start, end = part[0].start_offset, part[-1].end_offset
        chunks.append(ChunkRange(name="c", location=location, start_offset=start, end_offset=end, blocks=part))
    low, high = sorted(data.draw(st.lists(st.sampled_from(bounds), min_size=2, max_size=2)))
    cover, found, given = Cover(SEGMENT, low, high), [], list(chunks)
    times = [(end, end) for end in range(low + 1, high + 1)]
    while given:
        page = given[: data.draw(st.integers(1, 3))]
        given = given[len(page) :]
        found += cover.add(page)
    found += cover.finish(begins=cover.at in bounds, times=times)
    shares = pack(found, high - low, shares=data.draw(st.integers(1, 9)))
    parts = [part for share in shares for part in share]
    assert [part.start for part in parts] == [low, *(part.end for part in parts)][: len(parts)]
    assert low == high or parts[-1].end == high
    for part in parts:
        assert {part.start, part.end} <= {*bounds}
        if part.location is not None:
            inside = [item for item in blocks if part.start <= item.start_offset and item.end_offset <= part.end]
            assert [item.crc32c for item in part.blocks] == [item.crc32c for item in inside]


def test_the_holder_of_a_lease_is_never_told_in_more_words_than_a_store_takes() -> None:
    scope, stream, group = "s" * 255, "t" * 250, "g" * 250
    options = parse_read({"scope": scope, "stream": stream, "subscriber": group, "application": "é" * 100})
    assert holder_of(options, "query").startswith("Spark query of éé")
    assert len(holder_of(options, "query").encode()) <= HOLDER_MAX_BYTES
