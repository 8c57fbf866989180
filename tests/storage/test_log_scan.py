"""The search for headers of frames looks only where a block begins, and finds what a search of every byte finds."""

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store.wal import BLOCK_BYTES, FRAME_MAGIC, FrameHeader, decode_frame_header, encode_frame
from penstock.storage.log import scan
from penstock.storage.log.scan import FrameReader
from tests.storage.local_log_kit import real

SEED = 7
WINDOW_BYTES = 4 * BLOCK_BYTES


def frame(number: int, payload_bytes: int) -> bytes:
    payload = bytes(payload_bytes)
    parts = encode_frame(
        [payload],
        payload_bytes=payload_bytes,
        incarnation=1 << 32,
        sequence=number,
        durable_sequence=number - 1,
        seed=SEED,
    )
    return b"".join(bytes(part) for part in parts)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """Zeros, whole frames, and bytes that resemble a header at a boundary of blocks and elsewhere; cut anywhere."""
    parts: list[bytes] = []
    for number in range(1, draw(st.integers(0, 12)) + 1):
        match draw(st.sampled_from(("zeros", "frame", "shifted", "magic", "first", "noise"))):
            case "zeros":
                parts.append(bytes(BLOCK_BYTES * draw(st.integers(1, 9))))
            case "frame":
                parts.append(frame(number, draw(st.integers(0, 3000))))
            case "shifted":
                parts.append((bytes(draw(st.integers(1, 600))) + frame(number, 0)).ljust(3 * BLOCK_BYTES, b"\0"))
            case "magic":
                parts.append(FRAME_MAGIC.ljust(BLOCK_BYTES, b"\0"))
            case "first":
                parts.append(FRAME_MAGIC[:1] * BLOCK_BYTES)
            case _:
                parts.append(draw(st.binary(min_size=1, max_size=40)).ljust(BLOCK_BYTES, b"\1"))
    data = b"".join(parts)
    return data[: len(data) - draw(st.integers(0, min(len(data), 700)))]


def expected(data: bytes, offset: int) -> Iterable[tuple[int, FrameHeader]]:
    """Try every byte at which the magic stands."""
    at = data.find(FRAME_MAGIC, offset)
    while at >= 0:
        header = decode_frame_header(data[at:], seed=SEED)
        if at % BLOCK_BYTES == 0 and header is not None and at + header.size_bytes <= len(data):
            yield at, header
        at = data.find(FRAME_MAGIC, at + 1)


async def found(data: bytes, offset: int) -> list[tuple[int, FrameHeader]]:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "0.log").write_bytes(data)
        file = await real(Path(directory)).open("0.log")
        try:
            reader = FrameReader(file, end=len(data), seed=SEED)
            return [item async for item in reader.headers_with_offsets(offset)]
        finally:
            await file.close()


@given(data=files(), offset=st.integers(0, 3000))
def test_a_search_for_headers_finds_what_a_search_of_every_byte_finds(data: bytes, offset: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_WINDOW_BYTES", WINDOW_BYTES)
        assert asyncio.run(found(data, offset)) == list(expected(data, offset))


def test_a_search_finds_each_of_many_small_frames_in_several_windows() -> None:
    data = b"".join(frame(number, 10) for number in range(1, 40)) + bytes(20 * BLOCK_BYTES) + frame(40, 2000)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_WINDOW_BYTES", WINDOW_BYTES)
        assert [header.sequence for _, header in asyncio.run(found(data, 0))] == list(range(1, 41))
