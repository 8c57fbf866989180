"""Writes past the page cache: the same bytes as any other write, wherever they begin and end, and where they are refused."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.errors import StorageFullError
from penstock.storage.machine import direct as real_direct
from penstock.storage.machine.direct import BOUNCE_BYTES, DIRECT_MIN_BYTES, PAGE_BYTES
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload

_BLOB = os.urandom(BOUNCE_BYTES * 2 + 3 * PAGE_BYTES)


@pytest.fixture
def taken(tmp_path: Path) -> None:
    """Skips where the file system of the tests takes no direct writes at all."""
    try:
        os.close(os.open(tmp_path / "asked", os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o600))
    except OSError:
        pytest.skip("the file system takes no direct writes")


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch, taken: None) -> list[int]:
    """Sizes of the writes that went past the cache."""
    sizes: list[int] = []
    real = os.pwrite

    def counted(descriptor: int, data: memoryview, offset: int) -> int:
        sizes.append(len(data))
        return real(descriptor, data, offset)

    monkeypatch.setattr(real_direct.os, "pwrite", counted)
    return sizes


Writes = list[tuple[int, int, int]]


async def written(directory: Path, writes: Writes) -> tuple[bytes, int]:
    """The file after all writes (offset, size, number of parts), read back, and its size on disk."""
    async with ThreadOffload() as offload:
        files = RealFiles(directory, offload)
        file = await files.open("f", create=True, direct=True)
        for offset, size, parts in writes:
            step = max(1, -(-size // parts))
            await file.write_at(offset, [memoryview(_BLOB)[at : min(at + step, size)] for at in range(0, size, step)])
        await file.sync()
        found = await file.read_at(0, 1 << 30)
        await file.close()
        return found, os.stat(directory / "f").st_size


def expected(writes: Writes) -> bytes:
    content = bytearray()
    for offset, size, _ in writes:
        content += bytes(max(0, offset + size - len(content)))
        content[offset : offset + size] = _BLOB[:size]
    return bytes(content)


_SIZES = st.one_of(
    st.integers(1, 3 * PAGE_BYTES),
    st.integers(DIRECT_MIN_BYTES - 2, DIRECT_MIN_BYTES + 2 * PAGE_BYTES),
    st.integers(BOUNCE_BYTES - PAGE_BYTES, 2 * BOUNCE_BYTES + 2 * PAGE_BYTES),
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from((0, PAGE_BYTES, BOUNCE_BYTES)), st.integers(0, 2 * BOUNCE_BYTES)),
            _SIZES,
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_any_writes_leave_what_plain_writes_leave(writes: Writes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        found, size = asyncio.run(written(Path(directory), writes))
    assert found == expected(writes)
    assert size == len(found), "no page is padded"


def test_whole_pages_go_past_the_cache_and_nothing_else(tmp_path: Path, pieces: list[int]) -> None:
    writes = [(0, 100, 1), (100, BOUNCE_BYTES + PAGE_BYTES, 3), (100 + BOUNCE_BYTES + PAGE_BYTES, 5, 1)]
    found, _ = asyncio.run(written(tmp_path, writes))
    assert found == expected(writes)
    assert pieces == [BOUNCE_BYTES], "up to the page boundary behind the first bytes, and from the last one on: plainly"


@pytest.mark.parametrize("refusal", ["no such flag", "open", "write", "short"])
def test_what_a_file_system_refuses_is_written_plainly(
    refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_open, real_write = os.open, os.pwrite

    def opened(path: str, flags: int, *mode: int) -> int:
        if str(path).startswith("/proc/self/fd"):
            raise OSError(errno.EINVAL, "refused")
        return real_open(path, flags, *mode)

    def wrote(descriptor: int, data: memoryview, offset: int) -> int:
        if refusal == "short":
            return real_write(descriptor, data[:PAGE_BYTES], offset)
        raise OSError(errno.EINVAL, "refused")

    if refusal == "no such flag":
        monkeypatch.setattr(real_direct, "_O_DIRECT", 0)
    elif refusal == "open":
        monkeypatch.setattr(real_direct.os, "open", opened)
    else:
        monkeypatch.setattr(real_direct.os, "pwrite", wrote)
    writes = [(7, 2 * BOUNCE_BYTES, 2), (7 + 2 * BOUNCE_BYTES, DIRECT_MIN_BYTES + 2 * PAGE_BYTES, 1)]
    found, _ = asyncio.run(written(tmp_path, writes))
    assert found == expected(writes)


@pytest.mark.usefixtures("taken")
def test_a_full_disk_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(real_direct.os, "pwrite", full)
    with pytest.raises(StorageFullError):
        asyncio.run(written(tmp_path, [(0, BOUNCE_BYTES, 1)]))


def test_a_closed_file_holds_no_descriptor(tmp_path: Path, pieces: list[int]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        asyncio.run(written(tmp_path / str(number), [(0, BOUNCE_BYTES, 1)]))
    assert pieces
    assert len(os.listdir("/proc/self/fd")) <= before
