"""Headers with the number of a schema, pinned by the bytes of Confluent's and Pravega's documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.schema_ids import IdStyle, decode_header, decode_indexes, encode_header
from penstock.model.errors import DecodeError, InvalidArgumentError

CONFLUENT, PRAVEGA = IdStyle.CONFLUENT, IdStyle.PRAVEGA


@pytest.mark.parametrize(
    ("style", "number", "indexes", "data"),
    [
        (CONFLUENT, 1, None, "0000000001"),
        (CONFLUENT, 0xFFFFFFFF, None, "00ffffffff"),
        (CONFLUENT, 256, [0], "000000010000"),
        (CONFLUENT, 256, [1, 0], "0000000100040200"),
        (CONFLUENT, 256, [100, 1], "000000010004c80102"),
        (PRAVEGA, 258, None, "0100000102"),
        (PRAVEGA, 258, [1, 0], "0100000102"),
    ],
)
def test_headers_have_the_bytes_of_their_documents(style, number, indexes, data):
    assert encode_header(style, number, indexes).hex() == data
    found, at = decode_header(style, bytes.fromhex(data))
    assert (found, at) == (number, 5)
    if indexes is not None and style is CONFLUENT:
        assert decode_indexes(bytes.fromhex(data), at) == (tuple(indexes), len(data) // 2)


@given(st.sampled_from(IdStyle), st.integers(0, 2**31 - 1), st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=9))
def test_headers_come_back_before_any_payload(style, number, indexes):
    data = encode_header(style, number, indexes)
    assert decode_header(style, data + b"payload") == (number, 5)
    if style is CONFLUENT:
        assert decode_indexes(data + b"payload", 5) == (tuple(indexes), len(data))


@given(st.sampled_from(IdStyle), st.binary(max_size=12))
def test_other_bytes_are_refused(style, data):
    try:
        number, at = decode_header(style, data)
        decode_indexes(data, at)
    except DecodeError:
        return
    assert data[0] == (0 if style is CONFLUENT else 1)
    assert number >= 0


@pytest.mark.parametrize("data", ["", "00", "00000000", "0100000001", "7b7d", "02000000012a"])
def test_what_has_no_header_of_confluent_is_refused(data):
    with pytest.raises(DecodeError):
        decode_header(CONFLUENT, bytes.fromhex(data))


@pytest.mark.parametrize("data", ["", "80", "ffffffffff01", "8001", "01", "0201", "04020180"])
def test_places_that_are_torn_or_impossible_are_refused(data):
    with pytest.raises(DecodeError):
        decode_indexes(bytes.fromhex(data), 0)


@pytest.mark.parametrize(("style", "number"), [(CONFLUENT, 1 << 32), (CONFLUENT, -1), (PRAVEGA, 1 << 31)])
def test_numbers_beyond_the_header_are_refused(style, number):
    with pytest.raises(InvalidArgumentError):
        encode_header(style, number)
    with pytest.raises(DecodeError):
        decode_header(PRAVEGA, bytes.fromhex("01ffffffff"))
