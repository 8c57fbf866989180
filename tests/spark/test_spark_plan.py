from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.segments import SegmentId
from penstock.ports.data.chunks import HOLDER_MAX_BYTES, ChunkBlock, ChunkRange
from penstock.spark.options import parse_read
from penstock.spark.reading.plan import SHARE_MIN_BYTES, Piece, pack, pieces_of, share_count, split
from penstock.spark.reading.planning import holder_of

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
    shares = pack(pieces, shares=data.draw(st.integers(1, 200)))
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
    assert len(pack(pieces, shares=1)) == 1
    assert len(pack(pieces, shares=4)) == 4


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


def test_the_holder_of_a_lease_is_never_told_in_more_words_than_a_store_takes() -> None:
    scope, stream, group = "s" * 255, "t" * 250, "g" * 250
    options = parse_read({"scope": scope, "stream": stream, "subscriber": group, "application": "é" * 100})
    assert holder_of(options, "query").startswith("Spark query of éé")
    assert len(holder_of(options, "query").encode()) <= HOLDER_MAX_BYTES
