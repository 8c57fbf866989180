from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.segments import SegmentId
from penstock.ports.segment_service import ChunkBlock, ChunkRange
from penstock.spark.plan import Piece, pack, pieces_of, split

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
    shares = pack(pieces, target_bytes=data.draw(st.integers(1, 200)), min_shares=data.draw(st.integers(1, 9)))
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
    assert len(pack(pieces, target_bytes=1 << 20, min_shares=1)) == 1
    assert len(pack(pieces, target_bytes=1 << 20, min_shares=4)) == 4


def test_blocks_that_are_read_in_part_are_not_verified() -> None:
    blocks = tuple(ChunkBlock(start_offset=at, end_offset=at + 10, crc32c=1, event_count=1) for at in range(0, 30, 10))
    chunk = ChunkRange(name="c", location="/c", start_offset=0, end_offset=30, blocks=blocks)
    (piece,) = pieces_of(SEGMENT, 4, 26, [chunk], direct=True)
    assert (piece.start, piece.end, [item.start for item in piece.blocks]) == (4, 26, [10])
