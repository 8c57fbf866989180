"""The WAL's bytes: golden records, the byte tables of the document, and damage at every bit."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store import wal
from penstock.model.errors import InternalError, VersionTooNewError

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "wal.md"
LAYOUTS = {
    "Free mark": (wal.FREE_MARK, wal.FREE_MAGIC),
    "File header": (wal.FILE_HEADER, wal.FILE_MAGIC),
    "Frame": (wal.FRAME_HEADER, wal.FRAME_MAGIC),
    "Epoch file": (wal.EPOCH_RECORD, wal.EPOCH_MAGIC),
}
U64 = st.integers(0, (1 << 64) - 1)
U32 = st.integers(0, (1 << 32) - 1)
HEADER = wal.FileHeader(
    epoch=3, incarnation=3 << 32 | 7, first_sequence=1000, durable_sequence=999, file_bytes=16 << 20
)


@pytest.mark.parametrize("section", LAYOUTS)
def test_byte_table_of_the_document_is_the_layout_of_the_codec(section: str) -> None:
    layout, magic = LAYOUTS[section]
    text = DOCUMENT.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (.+?) \|$", text, re.MULTILINE)
    letters = {"magic": "4s", "padding": "2x"}
    codes = {1: "B", 4: "I", 8: "Q"}
    form, end = ">", 0
    for offset, size, field in rows:
        assert int(offset) == end
        form += letters.get(field) or codes[int(size)]
        end += int(size)
    assert form == layout.format
    assert end == layout.size
    assert f"Magic `{magic.decode()}`" in text


def test_places_in_the_document_are_those_of_the_codec() -> None:
    text = " ".join(DOCUMENT.read_text().split())
    assert f"| {wal.HEADER_AT} | {wal.BLOCK_BYTES} | file header" in text
    assert f"| {wal.FRAMES_AT} | to the end | frames" in text
    assert f"Byte {wal.FENCE_AT} is the fence" in text
    assert f"Format version: {wal.FORMAT_VERSION}." in text


def frame(payload: bytes, *, seed: int = 5, flags: int = 0) -> bytes:
    parts = wal.encode_frame(
        [payload[:3], payload[3:]],
        payload_bytes=len(payload),
        incarnation=HEADER.incarnation,
        sequence=1000,
        durable_sequence=999,
        seed=seed,
        flags=flags,
    )
    return b"".join(parts)


def test_golden_records_decode_for_ever() -> None:
    assert wal.encode_file_header(HEADER).rstrip(b"\0").hex() == (
        "5073574c010000000000000000000003000000030000000700000000000003e800000000000003e700000000010000007d7291ec"
    )
    assert wal.encode_free_mark(9).rstrip(b"\0").hex() == "50735758010000000000000000000009ed4bb760"
    record = wal.EpochRecord(epoch=4, seed=0xDEADBEEF)
    assert wal.encode_epoch(record).rstrip(b"\0").hex() == "50735745010000000000000000000004deadbeefc9d4863a"
    assert frame(b"payload").rstrip(b"\0").hex() == (
        "50735746010000000000000700000000000000030000000300000007"
        "00000000000003e800000000000003e7f4e36970238345957061796c6f6164"
    )


@given(payload=st.binary(max_size=2000), seed=U32, sequence=U64, durable=U64, flags=st.integers(0, 255))
def test_frames_come_back_as_they_were(payload: bytes, seed: int, sequence: int, durable: int, flags: int) -> None:
    data = b"".join(
        wal.encode_frame(
            [payload],
            payload_bytes=len(payload),
            incarnation=HEADER.incarnation,
            sequence=sequence,
            durable_sequence=durable,
            seed=seed,
            flags=flags,
        )
    )
    assert len(data) == wal.frame_bytes(len(payload))
    assert len(data) % wal.BLOCK_BYTES == 0
    header = wal.decode_frame_header(data, seed=seed)
    assert header is not None
    assert (header.sequence, header.durable_sequence, header.flags) == (sequence, durable, flags)
    assert header.size_bytes == len(data)
    assert wal.frame_payload(header, data) == payload
    assert wal.decode_frame_header(data, seed=seed ^ 1) is None


def test_flipped_bit_anywhere_in_a_frame_is_seen() -> None:
    whole = frame(b"some payload")
    for position in range(len(whole)):
        for bit in (1, 128):
            damaged = bytearray(whole)
            damaged[position] ^= bit
            header = wal.decode_frame_header(bytes(damaged), seed=5)
            assert header is None or wal.frame_payload(header, bytes(damaged)) is None


def test_flipped_bit_anywhere_in_a_header_is_seen() -> None:
    whole = wal.encode_file_header(HEADER)
    assert wal.decode_file_header(whole) == HEADER
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 16
        assert wal.decode_file_header(bytes(damaged)) is None


def test_marks_and_epochs_come_back_or_are_refused() -> None:
    assert wal.decode_free_mark(wal.encode_free_mark(77)) == 77
    assert wal.decode_free_mark(bytes(512)) == 0
    record = wal.EpochRecord(epoch=12, seed=34)
    data = bytearray(wal.encode_epoch(record))
    data[wal.FENCE_AT] = 1
    assert wal.decode_epoch(bytes(data)) == record
    for position in range(wal.EPOCH_RECORD.size):
        damaged = bytearray(data)
        damaged[position] ^= 2
        assert wal.decode_epoch(bytes(damaged)) is None
    assert wal.decode_epoch(bytes(data)[:-1]) is None


def test_later_versions_are_named_as_such_and_not_taken_for_damage() -> None:
    def later(data: bytes, layout: struct.Struct, seed: int = 0) -> bytes:
        body = data[:4] + b"\x02" + data[5 : layout.size - 4]
        return body + wal.crc32c(body, seed).to_bytes(4, "big") + data[layout.size :]

    with pytest.raises(VersionTooNewError):
        wal.decode_file_header(later(wal.encode_file_header(HEADER), wal.FILE_HEADER))
    with pytest.raises(VersionTooNewError):
        wal.decode_free_mark(later(wal.encode_free_mark(1), wal.FREE_MARK))
    with pytest.raises(VersionTooNewError):
        wal.decode_epoch(later(wal.encode_epoch(wal.EpochRecord(epoch=1, seed=1)), wal.EPOCH_RECORD))
    with pytest.raises(VersionTooNewError):
        wal.decode_frame_header(later(frame(b"x"), wal.FRAME_HEADER, seed=5), seed=5)


def test_incarnations_order_by_epoch_then_use() -> None:
    made = [wal.make_incarnation(epoch, count) for epoch in (1, 2, 9) for count in (0, 1, 5)]
    assert made == sorted(set(made))
    for epoch, count in ((0, 1), (1 << 32, 0), (1, -1), (1, 1 << 32)):
        with pytest.raises(InternalError):
            wal.make_incarnation(epoch, count)


@given(st.lists(st.binary(max_size=9000), max_size=40))
def test_joined_buffers_are_the_same_bytes_in_no_more_buffers(buffers: list[bytes]) -> None:
    joined = wal.join_small(buffers)
    assert b"".join(joined) == b"".join(buffers)
    assert len(joined) <= len(buffers)
