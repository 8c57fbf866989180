"""Records: the page against the codec, golden bytes that every later version must decode, and events that only look alike."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.codec import records
from penstock.codec.records import MAGIC, decode_record, encode_record
from penstock.model.errors import EventTooLargeError, InvalidArgumentError, NotARecordError, VersionTooNewError
from penstock.model.records import HEADERS_MAX, KEY_MAX_BYTES, Record

PAGE = (Path(__file__).parents[2] / "docs" / "formats" / "record.md").read_text()
CODES = {"u8": "B", "u16": "H", "u32": "I", "i32": "i", "i64": "q"}
GOLDEN = {
    "f7505201258654c207000001994ccb0e800001000000060000000c757365722d370004000000026c616e67656e7b226f72646572223a20317d": Record(
        '{"order": 1}', key="user-7", headers={"lang": "en"}, timestamp_ms=1_757_930_000_000
    ),
}


def texts():
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def drawn_records() -> st.SearchStrategy[Record]:
    blobs = st.none() | st.binary(max_size=40)
    return st.builds(
        lambda value, key, headers, time_ms: Record(value, key=key, headers=headers, timestamp_ms=time_ms),
        blobs,
        blobs,
        st.lists(st.tuples(texts(), blobs), max_size=4),
        st.none() | st.integers(-(2**63), 2**63 - 1),
    )


@pytest.mark.parametrize(("heading", "used"), [("RECORD", records.RECORD), ("HEADER", records.HEADER)])
def test_the_page_tells_what_the_codec_writes(heading, used):
    section = re.search(rf"^## {heading}, (\d+) bytes\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)
    code = ">"
    for size, kind in re.findall(r"^\| (\w+) \| (\w+) \| .*? \|$", section[2], re.M):
        if size not in ("n", "bytes"):
            code += CODES.get(kind, f"{size}s")
            assert struct.calcsize(">" + CODES.get(kind, f"{size}s")) == int(size)
    assert code == used.format
    assert used.size == int(section[1])


@pytest.mark.parametrize(("data", "record"), GOLDEN.items())
def test_golden_records_decode_for_ever(data, record):
    assert decode_record(bytes.fromhex(data)) == record
    assert encode_record(record).hex() == data


@given(drawn_records())
@example(Record(None))
@example(Record(b"", key=b"", headers=[("", b""), ("", None)], timestamp_ms=0))
def test_a_record_comes_back_as_it_was(record):
    assert decode_record(encode_record(record)) == record


@given(st.binary(max_size=60))
@example(MAGIC)
@example(MAGIC + b"\1" + bytes(23))
@example(MAGIC + bytes(40))
def test_plain_events_are_never_taken_for_records(data):
    for event in (data, MAGIC + b"\1" + data):
        with pytest.raises(NotARecordError):
            decode_record(event)


@given(drawn_records(), st.data())
def test_a_record_with_any_changed_or_missing_byte_around_its_value_is_none(record, data):
    event = bytearray(encode_record(record))
    envelope = len(event) - len(record.value or b"")
    place = data.draw(st.integers(0, envelope - 1))
    event[place] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((NotARecordError, VersionTooNewError)) as caught:
        decode_record(bytes(event))
    assert place == 3 or caught.type is NotARecordError
    for torn in (encode_record(record)[:-1], encode_record(record) + b"x"):
        with pytest.raises(NotARecordError):
            decode_record(torn)


def test_a_later_version_is_named():
    event = bytearray(encode_record(Record("x")))
    event[3] = 2
    with pytest.raises(VersionTooNewError) as caught:
        decode_record(bytes(event))
    assert caught.value.fields["version"] == 2


@pytest.mark.parametrize(
    "given",
    [
        {"value": 7},
        {"value": "x", "key": 7},
        {"value": "\ud800"},
        {"value": "x", "headers": [("a",)]},
        {"value": "x", "headers": 7},
        {"value": "x", "headers": {7: "a"}},
        {"value": "x", "headers": [("a", None)] * (HEADERS_MAX + 1)},
        {"value": "x", "timestamp_ms": 1 << 63},
        {"value": "x", "timestamp_ms": 1.5},
        {"value": "x", "timestamp_ms": True},
    ],
)
def test_what_is_no_record_is_refused_at_birth(given):
    with pytest.raises(InvalidArgumentError):
        Record(given.pop("value"), **given)


def test_every_length_has_a_bound():
    assert Record(b"x" * 100, key=b"k" * KEY_MAX_BYTES).key is not None
    for parts in (
        {"key": b"k" * (KEY_MAX_BYTES + 1)},
        {"headers": {"n" * 70_000: ""}},
        {"headers": {"n": b"v" * (1 << 21)}},
    ):
        with pytest.raises(EventTooLargeError):
            Record("x", **parts)


def test_the_routing_key_is_the_key_as_text():
    assert Record("x", key="é").routing_key == "é"
    assert Record("x", key=b"\xff\x00").routing_key == "ÿ\0"
    assert Record("x").routing_key is None
    assert Record("x", headers=[("a", "1"), ("a", "2"), ("b", None)]).header("a") == b"2"
    assert Record("x", headers=[("b", None)]).header("b") is None
