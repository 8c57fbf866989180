"""The pages under docs/formats against the codecs, and golden bytes that every later version must decode."""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.dictionary import Layout
from penstock.codec.store import catalogue, chunk_index, layouts
from penstock.codec.store import operation_frames as frames
from penstock.codec.store import operations as codec
from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError, VersionTooNewError

FORMATS = Path(__file__).parents[2] / "docs" / "formats"
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i64": "q"}


def layout(page: str, heading: str) -> struct.Struct:
    """The fixed part of a byte table as a struct: up to the first field of length ``n``."""
    text = (FORMATS / page).read_text()
    section = re.search(rf"^## {re.escape(heading)}(?:,[^\n]*)?\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    assert section is not None, heading
    code = ">"
    for size, kind, _field in re.findall(r"^\| (\w+) \| (\w+) \| (.*?) \|$", section[1], re.M):
        if size in ("n", "bytes"):
            continue
        field = CODES.get(kind, f"{size}s")
        assert struct.calcsize(">" + field) == int(size)
        code += field
    return struct.Struct(code)


@pytest.mark.parametrize(
    ("page", "heading", "used"),
    [
        ("operations.md", "Frame header", frames.FRAME),
        ("operations.md", "CREATE", codec.CREATE),
        ("operations.md", "APPEND", codec.APPEND),
        ("operations.md", "SEAL", codec.SEAL),
        ("operations.md", "TRUNCATE", codec.TRUNCATE),
        ("operations.md", "DELETE", codec.DELETE),
        ("operations.md", "KEEP", codec.KEEP),
        ("operations.md", "RELEASE", codec.RELEASE),
        ("operations.md", "RESTORE", codec.RESTORE),
        ("operations.md", "ATTRIBUTE", codec.ATTRIBUTE),
        ("operations.md", "MERGE", codec.MERGE),
        ("operations.md", "TABLE", codec.TABLE),
        ("operations.md", "TABLE ITEM", codec.TABLE_ITEM),
        ("operations.md", "ADOPT", codec.ADOPT),
        ("operations.md", "ADOPT CHUNK", codec.ADOPT_CHUNK),
        ("operations.md", "ADOPT BLOCK", codec.ADOPT_BLOCK),
        ("chunk-index.md", "RECORD", chunk_index.RECORD),
        ("catalogue.md", "OBJECT", catalogue.OBJECT),
        ("catalogue.md", "BATCH", catalogue.BATCH),
        ("catalogue.md", "RANGE", catalogue.RANGE),
        ("catalogue.md", "DELETE", catalogue.DELETE),
        ("catalogue.md", "PUT", catalogue.PUT),
    ],
)
def test_the_page_tells_what_the_codec_writes(page: str, heading: str, used: struct.Struct) -> None:
    assert layout(page, heading).format == used.format


@pytest.mark.parametrize(
    ("layout", "used"),
    [
        (layouts.STORE, ">BH"),
        (layouts.CONTAINER, ">BQQ"),
        (layouts.WRITERS, ">BQq"),
        (layouts.SEGMENT, ">BBBHqqqqqqqq"),
        (layouts.CHUNK, ">BqqIqq"),
        (layouts.BLOCK, ">qqIqq"),
        (layouts.LEASE, ">q"),
        (layouts.FREE, ">Qq"),
        (layouts.FLUSHED, ">Bq"),
        (layouts.CATALOGUE, ">BQQQ"),
        (layouts.ERASED, ">BII"),
        (layouts.ERASED_CHANGE, ">qqq32s32s32sHH"),
    ],
    ids=lambda item: getattr(item, "name", ""),
)
def test_the_layouts_of_rows_are_pinned(layout: Layout, used: str) -> None:
    assert layout.struct().format == used


def test_rows_of_earlier_versions_have_fewer_fields() -> None:
    found = (records._SEGMENT_1, records._CHUNK_2, records._CHUNK_1, records._BLOCK_1)
    assert [item.format for item in found] == [">BBBHqqqqqqq", ">BqqIq", ">BqqI", ">qqI"]


U64 = st.integers(0, (1 << 64) - 1)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
U128 = st.integers(0, (1 << 128) - 1)
DATA = st.binary(max_size=50)
ITEM = st.builds(codec.TableItem, key=DATA, value=st.none() | DATA, previous=I64)
U32 = st.integers(0, (1 << 32) - 1)
ADOPTED = st.builds(
    codec.AdoptedChunk,
    name=st.text(max_size=20),
    blocks=st.lists(st.builds(codec.AdoptedBlock, size_bytes=U32, event_count=U32, crc32c=U32), max_size=3).map(tuple),
)
OPERATION = st.one_of(
    st.builds(
        codec.CreateOperation,
        uid=U64,
        kind=st.integers(0, 255),
        key_bytes=st.integers(0, 65535),
        rollover_bytes=I64,
        name=st.text(max_size=20),
    ),
    st.builds(
        codec.AppendOperation,
        uid=U64,
        offset=I64,
        writer=U128,
        event_number=I64,
        event_count=st.integers(0, (1 << 32) - 1),
        data=DATA.map(memoryview),
    ),
    st.builds(codec.SealOperation, uid=U64),
    st.builds(codec.TruncateOperation, uid=U64, offset=I64),
    st.builds(codec.DeleteOperation, uid=U64),
    st.builds(codec.KeepOperation, uid=U64, offset=I64),
    st.builds(codec.ReleaseOperation, uid=U64, offset=I64),
    st.builds(codec.RestoreOperation, uid=U64, offset=I64),
    st.builds(codec.AttributeOperation, uid=U64, attribute=U128, value=I64),
    st.builds(codec.MergeOperation, uid=U64, source=U64, offset=I64, length=I64),
    st.builds(codec.TableOperation, uid=U64, position=I64, items=st.lists(ITEM, max_size=4).map(tuple)),
    st.builds(codec.AdoptOperation, uid=U64, offset=I64, chunks=st.lists(ADOPTED, max_size=3).map(tuple)),
    st.builds(codec.LeaseOperation, uid=U64, lease=U128, until_ms=I64, holder=st.text(max_size=20)),
    st.builds(codec.ReleaseLeaseOperation, uid=U64, lease=U128),
)
FRAME = st.tuples(st.integers(0, 65535), I64, st.lists(OPERATION, max_size=6))


@given(frame=FRAME)
def test_a_frame_decodes_to_what_was_encoded(frame) -> None:
    container, time_ms, operations = frame
    data = frames.encode_frame(container, time_ms, operations)
    header = frames.FrameHeader(container=container, count=len(operations), time_ms=time_ms)
    assert frames.decode_frame_header(data) == header
    assert list(frames.decode_operations(data)) == operations


@given(frame=FRAME, cut=st.integers(1, 100), tail=st.binary(max_size=3))
def test_a_cut_or_longer_frame_is_damage(frame, cut: int, tail: bytes) -> None:
    data = frames.encode_frame(*frame)
    short = data[: max(0, len(data) - cut)]
    for decode in (frames.decode_operations, frames.decode_runs):
        with pytest.raises(CorruptDataError):
            list(decode(short))
        if tail:
            with pytest.raises(CorruptDataError):
                list(decode(data + tail))


@st.composite
def appends_and_changes(draw) -> list[codec.Operation]:
    """Appends to a few segments, most of which go on where the last one of the segment ended, with other operations between."""
    lengths = [0, 0, 0]
    found: list[codec.Operation] = []
    for _ in range(draw(st.integers(0, 12))):
        uid = draw(st.integers(0, 2))
        if draw(st.integers(0, 5)) == 0:
            found.append(
                draw(st.sampled_from([codec.SealOperation(uid=uid), codec.TruncateOperation(uid=uid, offset=1)]))
            )
            continue
        size = draw(st.sampled_from([0, 1, 5, 5, frames.RUN_BYTES - 8, frames.RUN_BYTES]))
        data = memoryview(bytes([len(found)]) * size)
        lengths[uid] += draw(st.sampled_from([0, 0, 0, 1]))
        found.append(
            codec.AppendOperation(
                uid=uid,
                offset=lengths[uid],
                writer=draw(st.integers(0, 2)),
                event_number=draw(st.integers(0, 9)),
                event_count=draw(st.integers(0, 3)),
                data=data,
            )
        )
        lengths[uid] += len(data)
    return found


def by_segment(items) -> list[object]:
    """What each segment sees, between one change and the next."""
    found: list[object] = [{}]
    for item in items:
        if isinstance(item, codec.AppendOperation | frames.AppendRun):
            found[-1].setdefault(item.uid, []).append(item)
        else:
            found += [item, {}]
    return found


def one_by_one(run: frames.AppendRun) -> list[codec.AppendOperation]:
    offset, found = run.offset, []
    for (_, uid, at, writer, number, events, _), data in zip(run.heads, run.parts, strict=True):
        assert (uid, at) == (run.uid, offset)
        found.append(
            codec.AppendOperation(
                uid=uid,
                offset=at,
                writer=int.from_bytes(writer, "big"),
                event_number=number,
                event_count=events,
                data=data,
            )
        )
        offset += len(data)
    assert offset == run.end
    assert run.data == b"".join(run.parts)
    assert run.event_count == sum(item.event_count for item in found)
    assert run.last_numbers() == {item.writer: item.event_number for item in found}
    for item in reversed(found):
        first = next(other for other in found if other.writer == item.writer)
        assert run.number_before(item.writer) == first.event_number - first.event_count
    assert [(one.offset, one.end, one.parts) for one in run.appends()] == [
        (item.offset, item.offset + len(item.data), [item.data]) for item in found
    ]
    assert len(found) == 1 or run.end - run.offset <= frames.RUN_BYTES
    return found


@given(operations=appends_and_changes())
def test_runs_are_the_appends_of_a_frame_in_the_order_of_each_segment(operations) -> None:
    data = frames.encode_frame(1, 2, operations)
    gathered = by_segment(frames.decode_runs(data))
    apart = [
        {uid: [one for run in runs for one in one_by_one(run)] for uid, runs in item.items()}
        if isinstance(item, dict)
        else item
        for item in gathered
    ]
    assert apart == by_segment(operations)


@given(data=st.binary(max_size=200))
def test_no_bytes_crash_the_decoder(data: bytes) -> None:
    for prefix in (
        b"",
        frames.FRAME.pack(1, 0, 0, 1, 0),
        frames.FRAME.pack(2, 0, 0, 1, 0),
        frames.FRAME.pack(3, 0, 0, 1, 0),
        frames.FRAME.pack(4, 0, 0, 1, 0),
    ):
        try:
            list(frames.decode_operations(prefix + data))
        except (CorruptDataError, VersionTooNewError):
            continue


def test_golden_frame() -> None:
    operations = [
        codec.CreateOperation(uid=7 << 32 | 1, kind=0, key_bytes=0, rollover_bytes=0, name="a/b/0"),
        codec.AppendOperation(
            uid=7 << 32 | 1, offset=0, writer=5, event_number=2, event_count=3, data=memoryview(b"xyz")
        ),
        codec.TableOperation(
            uid=9,
            position=17,
            items=(
                codec.TableItem(key=b"k", value=b"v", previous=-1),
                codec.TableItem(key=b"k", value=None, previous=17),
            ),
        ),
        codec.MergeOperation(uid=1, source=2, offset=3, length=4),
        codec.AttributeOperation(uid=1, attribute=6, value=-(1 << 63)),
    ]
    golden = bytes.fromhex(
        "04000002" "00000005" "0000018bcfe56800"
        "01" "0000000700000001" "00" "0000" "0000000000000000" "0005" "612f622f30"
        "02" "0000000700000001" "0000000000000000" "00000000000000000000000000000005" "0000000000000002" "00000003"
        "00000003" "78797a"
        "08" "0000000000000009" "0000000000000011" "0002"
        "01" "0001" "00000001" "ffffffffffffffff" "6b" "76"
        "02" "0001" "00000000" "0000000000000011" "6b"
        "07" "0000000000000001" "0000000000000002" "0000000000000003" "0000000000000004"
        "06" "0000000000000001" "00000000000000000000000000000006" "8000000000000000"
    )  # fmt: skip
    assert frames.encode_frame(2, 1_700_000_000_000, operations) == golden
    assert list(frames.decode_operations(golden)) == operations
    for version in (b"\1", b"\2", b"\3"):
        assert list(frames.decode_operations(version + golden[1:])) == operations, "as an earlier version wrote it"


def test_golden_frame_of_truncations() -> None:
    operations = [
        codec.TruncateOperation(uid=1, offset=2),
        codec.KeepOperation(uid=3, offset=4),
        codec.ReleaseOperation(uid=5, offset=6),
        codec.RestoreOperation(uid=7, offset=1 << 40),
    ]
    golden = bytes.fromhex(
        "04000001" "00000004" "0000018bcfe56800"
        "04" "0000000000000001" "0000000000000002"
        "09" "0000000000000003" "0000000000000004"
        "0a" "0000000000000005" "0000000000000006"
        "0b" "0000000000000007" "0000010000000000"
    )  # fmt: skip
    assert frames.encode_frame(1, 1_700_000_000_000, operations) == golden
    assert list(frames.decode_operations(golden)) == operations


def test_golden_frame_of_an_adoption() -> None:
    blocks = (codec.AdoptedBlock(size_bytes=7, event_count=2, crc32c=0xDEADBEEF),) * 2
    adopted = codec.AdoptedChunk(name="0/i1-2-3-0", blocks=blocks)
    operations = [
        codec.AdoptOperation(uid=1, offset=5, chunks=(adopted, codec.AdoptedChunk(name="0/i1-2-3-1", blocks=()))),
    ]
    golden = bytes.fromhex(
        "04000001" "00000001" "0000018bcfe56800"
        "0c" "0000000000000001" "0000000000000005" "0002"
        "000a" "00000002" "302f69312d322d332d30" "00000007" "00000002" "deadbeef" "00000007" "00000002" "deadbeef"
        "000a" "00000000" "302f69312d322d332d31"
    )  # fmt: skip
    assert frames.encode_frame(1, 1_700_000_000_000, operations) == golden
    assert list(frames.decode_operations(golden)) == operations
    assert (adopted.size_bytes, adopted.event_count) == (14, 4)


def test_golden_frame_of_leases() -> None:
    operations = [
        codec.LeaseOperation(uid=7, lease=1 << 64 | 2, until_ms=1_700_000_000_000, holder="Zoë"),
        codec.ReleaseLeaseOperation(uid=0, lease=3),
    ]
    golden = bytes.fromhex(
        "04000001" "00000002" "0000018bcfe56800"
        "0d" "0000000000000007" "00000000000000010000000000000002" "0000018bcfe56800" "0004" "5a6fc3ab"
        "0e" "0000000000000000" "00000000000000000000000000000003"
    )  # fmt: skip
    assert frames.encode_frame(1, 1_700_000_000_000, operations) == golden
    assert list(frames.decode_operations(golden)) == operations
    newer = bytes([frames.VERSION + 1]) + golden[1:]
    with pytest.raises(VersionTooNewError):
        list(frames.decode_operations(newer))


def test_golden_rows_of_this_and_earlier_versions() -> None:
    segment = records.SegmentRecord(
        name="a/b/0",
        kind=0,
        key_bytes=0,
        rollover_bytes=1,
        start_offset=2,
        length=3,
        sealed=True,
        modified_ms=4,
        event_count=5,
        freed_bytes=6,
        entry_count=0,
        kept_offset=1,
    )
    numbers = "".join(f"{number:016x}" for number in (1, 2, 3, 4, 5, 6, 0))
    now = bytes.fromhex("0200010000" + numbers + f"{1:016x}" + "612f622f30")
    before = bytes.fromhex("0100010000" + numbers + "612f622f30")
    assert records.encode_segment(segment) == now
    assert records.decode_segment(now) == segment
    assert records.decode_segment(before) == replace(segment, kept_offset=2), "nothing was kept"
    chunk = records.ChunkRecord(name="0/1-2-3", length=10, freed=4, block_count=2, event_count=7)
    sizes = f"{10:016x}{4:016x}{2:08x}"
    now = bytes.fromhex("02" + sizes + f"{7:016x}" + b"0/1-2-3".hex())
    before = bytes.fromhex("01" + sizes + b"0/1-2-3".hex())
    merged = bytes.fromhex("03" + sizes + f"{7:016x}{9:016x}" + b"0/1-2-3".hex())
    assert records.encode_chunk(chunk) == now
    assert records.decode_chunk(now) == chunk
    assert records.decode_chunk(before) == replace(chunk, event_count=None)
    assert records.encode_chunk(replace(chunk, event_count=None)) == before, "what is not known is not made up"
    assert records.encode_chunk(replace(chunk, joined_ms=9)) == merged
    assert records.decode_chunk(merged) == replace(chunk, joined_ms=9)
    block = records.BlockRecord(end=10, event_count=3, crc32c=5, first_ms=6, last_ms=7)
    now = bytes.fromhex(f"{10:016x}{3:016x}{5:08x}{6:016x}{7:016x}")
    assert records.encode_block(block) == now
    assert records.decode_block(now) == block
    assert records.decode_block(now[:20]) == replace(block, first_ms=None, last_ms=None)
    lease = records.LeaseRecord(until_ms=5, holder="me")
    now = bytes.fromhex(f"{5:016x}6d65")
    assert records.encode_lease(lease) == now
    assert records.decode_lease(now) == lease
    assert records.decode_lease(now[:8]) == replace(lease, holder="")
    free = records.FreeRecord(uid=1, size_bytes=2, segment="s")
    now = bytes.fromhex(f"{1:016x}{2:016x}73")
    assert records.encode_free(free) == now
    assert records.decode_free(now) == free
    assert records.decode_free(now[:-1]) == replace(free, segment="")


def test_newer_versions_are_refused() -> None:
    frame = bytearray(frames.encode_frame(0, 0, []))
    frame[0] = frames.VERSION + 1
    with pytest.raises(VersionTooNewError):
        frames.decode_frame_header(bytes(frame))
    row = bytearray(records.encode_container(records.ContainerRecord(epoch=1, complete_upto=2)))
    row[0] = 9
    with pytest.raises(VersionTooNewError):
        records.decode_container(bytes(row))
    chunk = records.ChunkRecord(name="0/1-2-3", length=10, freed=4, block_count=2, event_count=7)
    for data, decode in ((records.encode_chunk(chunk), records.decode_chunk), (bytes(90), records.decode_segment)):
        with pytest.raises(VersionTooNewError):
            decode(b"\4" + data[1:])


@given(
    record=st.builds(
        records.SegmentRecord,
        name=st.text(max_size=10),
        kind=st.integers(0, 2),
        key_bytes=st.integers(0, 65535),
        rollover_bytes=I64,
        start_offset=I64,
        length=I64,
        sealed=st.booleans(),
        modified_ms=I64,
        event_count=I64,
        freed_bytes=I64,
        entry_count=I64,
        kept_offset=I64,
    )
)
def test_segment_rows_round_trip(record: records.SegmentRecord) -> None:
    assert records.decode_segment(records.encode_segment(record)) == record


def test_other_rows_round_trip() -> None:
    container = records.ContainerRecord(epoch=3, complete_upto=1 << 40)
    assert records.decode_container(records.encode_container(container)) == container
    chunk = records.ChunkRecord(name="0/1-2-3", length=10, freed=4, block_count=2, event_count=None)
    assert records.decode_chunk(records.encode_chunk(chunk)) == chunk
    merged = replace(chunk, joined_ms=1 << 41)
    assert records.decode_chunk(records.encode_chunk(merged)) == merged
    block = records.BlockRecord(end=10, event_count=3, crc32c=0xFFFFFFFF)
    assert records.decode_block(records.encode_block(block)) == block
    free = records.FreeRecord(uid=1 << 63, size_bytes=5, segment="näme")
    assert records.decode_free(records.encode_free(free)) == free
    assert records.decode_entry(records.encode_entry(-1, b"value")) == (-1, b"value")
    assert records.decode_int(records.encode_int(-5)) == -5
    assert records.decode_store(records.encode_store(4)) == 4
    assert records.parse_lease_key(records.lease_key(1, 77, 88)) == (77, 88)
    assert records.parse_merged_time_key(records.merged_time_key(1, 5, 6, "name")) == (6, b"name")
    for decode in (records.decode_int, records.decode_block, records.decode_segment, records.decode_chunk):
        for short in (b"", b"\1"):
            with pytest.raises(CorruptDataError):
                decode(short)


@given(prefix=st.binary(min_size=1, max_size=4).filter(lambda data: data.strip(b"\xff")), key=st.binary(max_size=6))
def test_a_range_holds_exactly_the_keys_with_the_prefix(prefix: bytes, key: bytes) -> None:
    start, end = records.range_of(prefix)
    assert (start <= key < end) == key.startswith(prefix)


RECORDS = st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 9), st.integers(0, 2**32 - 1)), max_size=5)


@given(blocks=RECORDS, torn=st.integers(0, 47))
def test_an_index_gives_its_records_but_a_torn_one(blocks, torn: int) -> None:
    made, position = [], 0
    for index, (size, events, checksum) in enumerate(blocks):
        made.append(
            chunk_index.IndexRecord(
                index=index,
                start=position,
                end=position + size,
                segment_start=100 + position,
                event_count=events,
                crc32c=checksum,
            )
        )
        position += size
    data = b"".join(chunk_index.encode_record(record) for record in made)
    assert len(data) == 48 * len(made)
    extra = chunk_index.encode_record(
        chunk_index.IndexRecord(
            index=len(made), start=position, end=position + 1, segment_start=0, event_count=1, crc32c=0
        )
    )
    assert list(chunk_index.decode_records(data + extra[:torn])) == made
    left = chunk_index.IndexRecord(
        index=len(made), start=position + 1, end=position + 2, segment_start=0, event_count=1, crc32c=0
    )
    assert list(chunk_index.decode_records(data + chunk_index.encode_record(left))) == made


def test_a_flipped_bit_in_an_index_is_damage() -> None:
    record = chunk_index.IndexRecord(index=0, start=0, end=9, segment_start=5, event_count=2, crc32c=77)
    data = bytearray(chunk_index.encode_record(record))
    for position in range(len(data)):
        data[position] ^= 4
        with pytest.raises(CorruptDataError):
            list(chunk_index.decode_records(bytes(data)))
        data[position] ^= 4
