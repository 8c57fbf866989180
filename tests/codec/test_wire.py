"""The wire codec: golden bytes, round trips, and what it does with bytes that lie."""

from __future__ import annotations

import random
import re
import struct
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import (
    LIST_MAX,
    NO_VERSION,
    AttributeUpdate,
    Layout,
    WireChunk,
    WireEntry,
    WireFailure,
    WireHead,
    WireKey,
)
from penstock.model.errors import InvalidArgumentError, ProtocolError

W = bytes(range(16))
U = UUID(bytes=W)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
DATA = st.binary(max_size=300)
KEYS = st.builds(WireKey, st.binary(min_size=1, max_size=40), INT64)
ENTRIES = st.builds(WireEntry, st.binary(min_size=1, max_size=40), INT64, DATA)
FIELDS = {
    "q": INT64,
    "i": INT32,
    "b": st.integers(-128, 127),
    "?": st.booleans(),
    "U": st.uuids(),
    "W": st.binary(min_size=16, max_size=16),
    "u": st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    "B": DATA,
    "R": DATA,
    "V": DATA.map(lambda data: struct.pack(">ii", 0, len(data)) + data),
    "K": st.lists(KEYS, max_size=4).map(tuple),
    "E": st.lists(ENTRIES, max_size=4).map(tuple),
    "A": st.lists(st.builds(AttributeUpdate, st.uuids(), st.integers(-128, 127), INT64, INT64), max_size=4).map(tuple),
    "S": st.lists(st.text("abc/#.", max_size=20), max_size=4).map(tuple),
    "Q": st.lists(INT64, max_size=4).map(tuple),
    "H": st.lists(st.builds(WireHead, INT32, INT32, INT64, INT32), max_size=4).map(tuple),
    "F": st.lists(st.builds(WireFailure, INT32, DATA), max_size=4).map(tuple),
    "C": st.lists(st.builds(WireChunk, INT64, INT64, INT64, st.text("ab", max_size=9), st.booleans()), max_size=4).map(
        tuple
    ),
}


def commands():
    def build(spec):
        return st.tuples(*(FIELDS[letter] for letter in spec.layout.text.replace("|", ""))).map(
            lambda values: spec.kind(*values)
        )

    return st.sampled_from(wire.SPECS).flatmap(build)


def body(frame):
    code, length = wire.HEADER.unpack_from(frame)
    assert length == len(frame) - 8
    return code, memoryview(frame)[8:]


def unframed(frame):
    return wire.decode(*body(frame))


@given(commands())
def test_every_command_survives_its_frame(command):
    decoded = unframed(wire.encode(command))
    assert type(decoded) is type(command)
    assert decoded == command


GOLDEN = [
    (c.Hello(17, 5), "ffffff81 00000008 00000011 00000005"),
    (c.KeepAlive(), "00000064 00000000"),
    (
        c.SetupAppend(1, W, "s/t/0", ""),
        "00000001 00000021 0000000000000001 000102030405060708090a0b0c0d0e0f 0005 732f742f30 0000",
    ),
    (
        c.AppendSetup(2, "a", W, -(1 << 63)),
        "00000002 00000023 0000000000000002 0001 61 000102030405060708090a0b0c0d0e0f 8000000000000000",
    ),
    (
        c.AppendSetup(2, "a", W, 5, 7),
        "00000002 00000027 0000000000000002 0001 61 000102030405060708090a0b0c0d0e0f 0000000000000005 00000007",
    ),
    (
        c.AppendMany(9, (WireHead(7, 1, 6, 3), WireHead(8, 2, 1, 2)), b"xyzab"),
        "000003e9 00000039 0000000000000009 00000002 00000007 00000001 0000000000000006 00000003"
        "00000008 00000002 0000000000000001 00000002 78797a 6162",
    ),
    (
        c.ManyAppended(9, (100, -1), (WireFailure(1, b"why"),)),
        "000003ea 0000002b 0000000000000009 00000002 0000000000000064 ffffffffffffffff 00000001 00000001 00000003 776879",
    ),
    (c.AppendBlock(W, b"xyz"), "00000003 00000013 000102030405060708090a0b0c0d0e0f 78797a"),
    (
        c.AppendBlockEnd(W, 3, b"xyz", 1, 7, 9),
        "00000004 0000002f 000102030405060708090a0b0c0d0e0f 00000003 00000003 78797a 00000001"
        "0000000000000007 0000000000000009",
    ),
    (
        c.ConditionalAppend(W, 7, 8, b"\0\0\0\0\0\0\0\1z", 9),
        "00000005 00000031 000102030405060708090a0b0c0d0e0f 0000000000000007 0000000000000008"
        "00000000 00000001 7a 0000000000000009",
    ),
    (
        c.DataAppended(W, 7, 6, 9, 100),
        "00000007 00000030 000102030405060708090a0b0c0d0e0f 0000000000000007 0000000000000006"
        "0000000000000009 0000000000000064",
    ),
    (
        c.ReadSegment("a", 5, 1024, "", 9),
        "00000009 00000019 0001 61 0000000000000005 00000400 0000 0000000000000009",
    ),
    (
        c.SegmentRead("a", 5, True, False, b"zz", 9),
        "0000000a 0000001b 0001 61 0000000000000005 01 00 00000002 7a7a 0000000000000009",
    ),
    (
        t.UpdateTableEntries(1, "t", "", (WireEntry(b"k", -1, b"vv"),), -1),
        "0000004a 00000034 0000000000000001 0001 74 0000 00000001"
        "0000000d 00000001 6b ffffffffffffffff 00000006 00000002 7676 ffffffffffffffff",
    ),
    (c.NoSuchSegment(1, "a", "", -1), "00000035 00000015 0000000000000001 0001 61 0000 ffffffffffffffff"),
]


@pytest.mark.parametrize("token", ["", "t" * 300], ids=["kept decoded", "too long to keep"])
def test_reads_that_differ_in_one_field_only_are_told_apart(token):
    read = c.ReadSegment("a", 5, 1024, token, 9)
    others = [
        read._replace(rid=-1),
        read._replace(offset=6),
        read._replace(suggested_bytes=8),
        read._replace(segment="b"),
    ]
    for command in [read, *others, read._replace(token=token + "x"), read]:
        frame = wire.encode(command)
        assert unframed(frame) == command
        for size in range(len(frame) - 8):
            with pytest.raises(ProtocolError):
                wire.decode(9, memoryview(frame)[8 : 8 + size])
        assert wire.decode(9, memoryview(frame + b"behind")[8:]) == command


@pytest.mark.parametrize(("command", "text"), GOLDEN, ids=lambda item: type(item).__name__)
def test_golden_bytes(command, text):
    frame = bytes.fromhex(text)
    assert wire.encode(command) == frame
    assert unframed(frame) == command


def test_payloads_are_views_of_the_frame():
    frame = bytearray(wire.encode(c.AppendBlockEnd(W, 3, b"xyz", 1, 7, 9)))
    view = unframed(frame).data
    frame[32:35] = b"abc"
    assert bytes(view) == b"abc"


@given(writer=FIELDS["W"], data=DATA, count=INT32, number=INT64, offset=INT64, rid=INT64)
def test_frames_in_parts_are_the_same_bytes(writer, data, count, number, offset, rid):
    end = wire.append_block_end_parts(writer, data, count, number, rid)
    assert b"".join(end) == wire.encode(c.AppendBlockEnd(writer, len(data), data, count, number, rid))
    conditional = wire.conditional_block_end_parts(writer, data, number, offset, rid)
    assert b"".join(conditional) == wire.encode(c.ConditionalBlockEnd(writer, number, offset, data, rid))
    read = wire.segment_read_parts("é/ü", offset, True, False, [data[:3], data[3:]])
    assert b"".join((*read, wire.RID.pack(rid))) == wire.encode(c.SegmentRead("é/ü", offset, True, False, data, rid))
    heads = [wire.many_head(index, count, number, len(data)) for index in range(2)]
    many = wire.append_many_parts(rid, heads, [data, data])
    said = tuple(WireHead(index, count, number, len(data)) for index in range(2))
    assert b"".join(many) == wire.encode(c.AppendMany(rid, said, data * 2))
    assert wire.decode_many(body(b"".join(many))[1]) == (rid, list(said), 52)
    reply = wire.many_appended(rid, [number, offset], [(count, data)])
    assert reply == wire.encode(c.ManyAppended(rid, (number, offset), (WireFailure(count, data),)))
    acked = wire.data_appended(writer, number, offset, rid, offset)
    assert acked == wire.encode(c.DataAppended(writer, number, offset, rid, offset))
    assert wire.acknowledged_number(acked) == number
    renamed = wire.encode(c.ConditionalCheckFailed(writer, number, rid))
    for other in (b"", acked[:-1], acked + b"\0", renamed, b"\0\0\0\x08" + acked[4:]):
        assert wire.acknowledged_number(other) is None


def test_fields_that_older_or_other_clients_leave_out_take_their_defaults():
    def shortened(command, dropped):
        code, payload = body(wire.encode(command))
        return wire.decode(code, payload[: len(payload) - dropped])

    assert shortened(c.CreateSegment(1, "a", 0, 0, "", 77), 8) == c.CreateSegment(1, "a", 0, 0, "", 0)
    assert shortened(c.MergeSegments(1, "a", "b", "", ()), 4) == c.MergeSegments(1, "a", "b", "", ())
    assert shortened(t.CreateTableSegment(1, "a", "", True, 4, 5), 13) == t.CreateTableSegment(1, "a")
    keys = t.ReadTableKeys(1, "a", "", 10, b"tok", 0, b"x", b"y")
    assert shortened(keys, 14) == t.ReadTableKeys(1, "a", "", 10, b"tok")
    assert shortened(c.InvalidEventNumber(W, 1, "", 5), 8) == c.InvalidEventNumber(W, 1, "", -1)
    assert shortened(c.AppendBlockEnd(W, 1, b"x", 1, 2, 3), 8) == c.AppendBlockEnd(W, 1, b"x", 1, 2, -1)
    assert shortened(c.AppendSetup(1, "a", W, 2, 3), 4) == c.AppendSetup(1, "a", W, 2, None)
    assert shortened(c.DataAppended(W, 1, 2, 3, 4), 8) == c.DataAppended(W, 1, 2, 3, -1)


def test_surplus_bytes_are_ignored():
    code, payload = body(wire.encode(c.SealSegment(1, "a", "")))
    assert wire.decode(code, memoryview(bytes(payload) + b"later")) == c.SealSegment(1, "a", "")


def test_names_that_are_not_utf8_are_repeated_byte_for_byte():
    modified = b"\xed\xa0\xbd\xed\xb8\x80"
    payload = struct.pack(">qH", 1, len(modified)) + modified + b"\0\0"
    command = wire.decode(28, memoryview(payload))
    assert wire.encode(command)[8:] == payload


def test_an_empty_key_travels_without_its_version():
    frame = wire.encode(t.ReadTable(1, "t", "", (WireKey(b"", 5), WireKey(b"k", 6))))
    assert unframed(frame).keys == (WireKey(b"", NO_VERSION), WireKey(b"k", 6))


LIES = [
    (4, W + struct.pack(">ii", 0, 1 << 30)),
    (4, W + struct.pack(">ii", 0, -1) + bytes(20)),
    (10, struct.pack(">H1sq??i", 1, b"a", 0, 0, 0, 1 << 30)),
    (74, struct.pack(">qHHi", 1, 0, 0, (1 << 31) - 1)),
    (74, struct.pack(">qHHi", 1, 0, 0, -5)),
    (78, struct.pack(">qHHi", 1, 0, 0, 1) + struct.pack(">ii", 1000, 1000)),
    (78, struct.pack(">qHHi", 1, 0, 0, 1) + struct.pack(">ii", 99, 1) + bytes(9)),
    (75, struct.pack(">qi", 1, 1 << 28)),
    (90, struct.pack(">qHi", 1, 0, 1 << 30)),
    (58, struct.pack(">qHHHi", 1, 0, 0, 0, 1 << 26)),
    (28, struct.pack(">qH", 1, 0xFFFF) + b"short"),
    (5, W + struct.pack(">qqii", 1, 2, 7, 0) + bytes(8)),
    (5, W + struct.pack(">qqii", 1, 2, 0, 99) + bytes(8)),
    (3, b"short"),
    (7, b"short"),
    (9, b""),
    (999, b""),
    (1001, struct.pack(">qi", 1, 1 << 28)),
    (1001, struct.pack(">qi", 1, 2) + bytes(20)),
    (1002, struct.pack(">qi", 1, 1 << 28)),
    (1002, struct.pack(">qi", 1, -1) + bytes(20)),
    (1002, struct.pack(">qiqi", 1, 1, 5, 1 << 30)),
    (1002, struct.pack(">qiqiii", 1, 1, 5, 1, 0, 99)),
    (1002, struct.pack(">qiqiii", 1, 1, 5, 1, 0, -8)),
    (1002, b"short"),
]


@pytest.mark.parametrize(("code", "payload"), LIES)
def test_lengths_and_counts_that_lie_are_protocol_errors(code, payload):
    with pytest.raises(ProtocolError):
        wire.decode(code, memoryview(payload))


@pytest.mark.parametrize("length", [-1, wire.FRAME_MAX_BYTES + 1, 0x7FFFFFFF])
def test_headers_out_of_range_are_refused(length):
    with pytest.raises(ProtocolError):
        wire.check_header(1, length, wire.REQUEST_CODES)


def test_replies_are_not_requests():
    wire.check_header(9, 10, wire.REQUEST_CODES)
    with pytest.raises(ProtocolError):
        wire.check_header(10, 10, wire.REQUEST_CODES)
    with pytest.raises(ProtocolError):
        wire.check_header(9, 10, wire.REPLY_CODES)


def test_mutated_frames_decode_or_raise_protocol_errors():
    rng = random.Random(20240711)
    seeds = [wire.encode(command) for command, _ in GOLDEN] + [
        wire.encode(t.ReadTableEntries(1, "t", "", 5, b"abc", 0, b"d", b"e")),
        wire.encode(c.MergeSegments(1, "a", "b", "", (AttributeUpdate(U, 1, 2, 3),))),
        wire.encode(c.StorageChunksListed(1, (WireChunk(1, 2, 3, "n", True),))),
        wire.encode(c.SegmentsBatchMerged(1, "a", ("b", "c"), (1, 2))),
    ]
    outcomes = {"decoded": 0, "refused": 0}
    for _ in range(20_000):
        frame = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            frame[rng.randrange(8, max(9, len(frame))) % len(frame)] = rng.choice(
                (0, 1, 127, 128, 255, rng.randrange(256))
            )
        payload = memoryview(frame)[8 : rng.randint(8, len(frame))] if rng.random() < 0.3 else memoryview(frame)[8:]
        code = struct.unpack_from(">i", rng.choice(seeds))[0]
        try:
            wire.decode(code, payload)
            outcomes["decoded"] += 1
        except ProtocolError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 1000


def test_what_does_not_fit_is_an_invalid_argument():
    with pytest.raises(InvalidArgumentError):
        wire.encode(c.SealSegment(1, "x" * 70_000, ""))
    with pytest.raises(InvalidArgumentError):
        wire.encode(c.SealSegment(1 << 63, "x", ""))
    with pytest.raises(InvalidArgumentError):
        wire.encode(c.SegmentRead("a", 0, False, False, bytes(wire.FRAME_MAX_BYTES), 1))
    with pytest.raises(InvalidArgumentError):
        wire.append_block_end_parts(W, bytes(wire.FRAME_MAX_BYTES), 1, 1, 1)


def test_block_trailers():
    whole = b"\0\0\0\0\0\0\0\1a"
    assert bytes(wire.block_trailer(memoryview(whole), 9)) == b""
    cut = whole + struct.pack(">ii", -2, 3) + b"abc"
    assert bytes(wire.block_trailer(memoryview(cut), 9)) == b"abc"
    padded = whole + struct.pack(">ii", -1, 5) + bytes(5)
    assert bytes(wire.block_trailer(memoryview(padded), 9)) == b""
    for block, size in (
        (whole, 10),
        (whole, -1),
        (whole + b"abc", 9),
        (whole + struct.pack(">ii", -2, 4) + b"abc", 9),
        (whole + struct.pack(">ii", -2, -4) + b"abc", 9),
        (whole + struct.pack(">ii", 0, 3) + b"abc", 9),
    ):
        with pytest.raises(ProtocolError):
            wire.block_trailer(memoryview(block), size)


def test_the_page_of_the_format_says_what_the_codec_does():
    page = Path(__file__).parents[2] / "docs" / "formats" / "wire.md"
    rows = re.findall(r"^\| (-?\d+) \| (\w+) \| `([^`]*)` \| (request|reply|both) \|$", page.read_text(), re.MULTILINE)
    said = {(int(code), name, layout.replace("\\", "")) for code, name, layout, _ in rows}
    assert said == {(spec.code, spec.kind.__name__, spec.layout.text) for spec in wire.SPECS}
    for code, _, _, direction in rows:
        expected = {"request": (True, False), "reply": (False, True), "both": (True, True)}[direction]
        assert (int(code) in wire.REQUEST_CODES, int(code) in wire.REPLY_CODES) == expected


@pytest.mark.parametrize(("letter", "item_bytes"), [("S", 2), ("K", 8), ("E", 16), ("A", 33)])
def test_a_list_of_more_items_than_a_request_has_is_refused_before_one_is_read(letter, item_bytes):
    # Each item is as small as the wire allows: a frame would hold millions, for seconds of the loop and a gigabyte.
    layout = Layout(letter)
    item = {"K": struct.pack(">ii", 4, 0), "E": struct.pack(">iiii", 4, 0, 4, 0)}.get(letter, bytes(item_bytes))
    assert len(layout.read(memoryview(struct.pack(">i", LIST_MAX) + item * LIST_MAX))[0]) == LIST_MAX
    with pytest.raises(ProtocolError, match="too many items"):
        layout.read(memoryview(struct.pack(">i", LIST_MAX + 1) + item * (LIST_MAX + 1)))
