"""Pravega's form of watermarks, pinned by bytes that its Java client reads (tests/compat/test_java_client.py)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.watermarks import StoredMark, decode_mark, encode_mark
from penstock.model.errors import CorruptDataError
from penstock.model.segments import KeyRange, SegmentRange, even_ranges, make_segment_id

ONE = StoredMark(
    lower_ms=5, upper_ms=9, cut={SegmentRange(segment=make_segment_id(1, 2), keys=KeyRange(low=0.0, high=1.0)): 77}
)
GOLDEN = (
    "0000010000000039"  # header and length; then lower and upper bound, and the number of segments
    "0000000000000005000000000000000901"
    "0000010000000018"  # header and length of a segment; then its id and range, and the offset
    "000000010000000200000000000000003ff0000000000000"
    "000000000000004d"
)


def test_a_watermark_has_the_bytes_that_pravega_reads() -> None:
    assert encode_mark(ONE).hex() == GOLDEN
    assert decode_mark(bytes.fromhex(GOLDEN)) == ONE


@pytest.mark.parametrize("count", [1, 127, 128, 20_000])
def test_cuts_of_any_size_come_back(count: int) -> None:
    cut = {
        SegmentRange(segment=make_segment_id(0, number), keys=keys): number - 1
        for number, keys in enumerate(even_ranges(count))
    }
    mark = StoredMark(lower_ms=-1, upper_ms=1 << 62, cut=cut)
    assert decode_mark(encode_mark(mark)) == mark
    assert mark.positions[make_segment_id(0, 0)] == -1


@given(st.binary(max_size=80))
def test_other_bytes_are_refused_as_damage(data: bytes) -> None:
    try:
        decode_mark(data)
    except CorruptDataError:
        return
    assert data[:2] == b"\0\0"


@pytest.mark.parametrize("size", range(0, 65, 5))
def test_a_torn_watermark_is_refused(size: int) -> None:
    with pytest.raises(CorruptDataError):
        decode_mark(bytes.fromhex(GOLDEN)[:size])
