"""What only real files and threads can get wrong: paths, modes, full disks, cancelled calls, placement."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from penstock.model.errors import InternalError, InvalidArgumentError, StorageFullError
from penstock.storage.machine import files as real_files
from penstock.storage.machine.calls import replace_file
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.machine.serial import Serial
from penstock.storage.objects.file_objects import FileObjects


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a b", "a\n", "a\0b", "über", "a;b", "~/x*"])
def test_paths_not_made_by_us_are_refused(path: str, tmp_path: Path) -> None:
    async def run() -> None:
        files = RealFiles(tmp_path / "root", ThreadOffload())
        with pytest.raises(InternalError):
            await files.open(path, create=True)
        with pytest.raises(InternalError):
            await files.unlink(path)
        with pytest.raises(InternalError):
            files.location(path)

    asyncio.run(run())


def test_directories_and_files_are_private_and_links_are_not_followed(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(tmp_path / "root", offload)
            await files.make_dir("a/b")
            await (await files.open("a/b/f", create=True)).close()
            for name, mode in (("", 0o700), ("a", 0o700), ("a/b", 0o700), ("a/b/f", 0o600)):
                assert (tmp_path / "root" / name).stat().st_mode & 0o777 == mode
            (tmp_path / "root" / "link").symlink_to(tmp_path / "root" / "a" / "b" / "f")
            with pytest.raises(OSError, match="link"):
                await files.open("link")
            assert files.location("a/b/f") == str(tmp_path / "root" / "a" / "b" / "f")
            assert await files.free_bytes() > 0

    asyncio.run(run())


@pytest.mark.parametrize("read_only", [False, True])
def test_a_directory_is_no_file(read_only: bool, tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            (tmp_path / "a" / "empty").mkdir(parents=True)
            (tmp_path / "a" / "f").write_bytes(b"x")
            files = RealFiles(tmp_path, offload, read_only=read_only)
            with pytest.raises(IsADirectoryError):
                await files.open("a/empty")
            assert await FileObjects(files).list("a") == {"a/f": 1}

    asyncio.run(run())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_full_disk_has_its_own_error(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    async def run() -> None:
        async with ThreadOffload() as offload:
            file = await RealFiles(tmp_path, offload).open("f", create=True)
            monkeypatch.setattr(os, "pwritev", refuse)
            with pytest.raises(StorageFullError):
                await file.write_at(0, [b"x"])
            monkeypatch.setattr(os, "fdatasync", refuse)
            with pytest.raises(OSError, match=os.strerror(number)):
                await file.sync()
            await file.close()

    asyncio.run(run())


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: real(fd, [memoryview(parts[0])[:3]], offset))

    async def run() -> None:
        async with ThreadOffload() as offload:
            file = await RealFiles(tmp_path, offload).open("f", create=True)
            await file.write_at(2, [b"0123456789", b"", b"ab", bytearray(b"cdefg")])
            assert await file.read_at(0, 99) == b"\0\x000123456789abcdefg"
            await file.close()

    asyncio.run(run())


def test_commits_in_place_are_whole_after_short_writes_and_fail_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, parts = os.pwritev, [b"0123456789", memoryview(b""), b"ab", memoryview(b"cdefg")]

    def refuse(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def run() -> None:
        async with ThreadOffload() as offload:
            file = await RealFiles(tmp_path, offload, placement="inline").open("f", create=True)
            assert file.commit_in_place(2, parts)
            monkeypatch.setattr(os, "pwritev", lambda fd, given, at: real(fd, [memoryview(given[0])[:3]], at))
            assert file.commit_in_place(19, parts)
            assert await file.read_at(0, 99) == b"\0\0" + 2 * b"0123456789abcdefg"
            monkeypatch.setattr(os, "pwritev", refuse)
            with pytest.raises(StorageFullError):
                file.commit_in_place(0, parts)
            await file.close()

    asyncio.run(run())


def test_small_batches_move_into_the_loop_once_the_disk_proves_fast_and_large_ones_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: list[bool] = []
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: places.append(threading.current_thread() is threading.main_thread())
    )

    async def run() -> None:
        async with ThreadOffload() as offload:
            file = await RealFiles(tmp_path, offload).open("f", create=True)
            for size in (10, 10, 10, 10, 10, real_files.INLINE_BYTES_MAX + 1, 10):
                await file.write_at(0, [bytes(size)])
                await file.sync()
            await file.close()

    asyncio.run(run())
    assert places == [False, False, False, True, True, False, True]


def test_slow_disk_keeps_syncs_out_of_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meter = real_files._SyncMeter()
    for seconds in (0.0001, 0.0001, 0.0001):
        meter.record(seconds, in_place=False)
    assert meter.fast
    for seconds in (0.0001, 0.0001, 0.1):
        meter.record(seconds, in_place=True)
    assert meter.fast
    for _ in range(15):
        meter.record(0.002, in_place=True)
    assert not meter.fast


def test_a_fast_disk_is_found_fast_through_threads_that_wait_for_the_interpreter() -> None:
    meter = real_files._SyncMeter()
    for seconds in (0.006, 0.0055, 0.007, 0.0001, 0.006, 0.0002, 0.0051, 0.0001):
        meter.record(seconds, in_place=False)
    assert meter.fast
    for _ in range(8):
        meter.record(0.0007, in_place=True)
    assert not meter.fast


def test_slow_syncs_of_chunks_leave_those_of_the_log_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    places: dict[str, list[bool]] = {"wal": [], "chunks": []}

    def sync(descriptor: int) -> None:
        nonlocal now_s
        directory = Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name
        now_s += 0.05 if directory == "chunks" else 0.0001
        places[directory].append(threading.current_thread() is threading.main_thread())

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(real_files, "time", SimpleNamespace(perf_counter=lambda: now_s))

    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(tmp_path, offload)
            for directory in places:
                await files.make_dir(directory)
            opened = [await files.open(f"{directory}/f", create=True) for directory in places]
            for number in range(10):
                for file in opened:
                    await file.write_at(number, [b"x"])
                    await file.sync()
            for file in opened:
                await file.close()

    asyncio.run(run())
    assert places == {"wal": [False] * 3 + [True] * 7, "chunks": [False] * 10}


def test_cancelled_write_ends_before_the_next_call_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, go_on = threading.Event(), threading.Event()
    real = os.pwritev

    def slow(descriptor: int, parts: list[memoryview], offset: int) -> int:
        if bytes(parts[0]) == b"old":
            started.set()
            assert go_on.wait(10)
        return real(descriptor, parts, offset)

    monkeypatch.setattr(os, "pwritev", slow)

    async def run() -> None:
        async with ThreadOffload() as offload:
            file = await RealFiles(tmp_path, offload).open("f", create=True)
            write = asyncio.ensure_future(file.write_at(0, [b"old"]))
            while not started.is_set():
                await asyncio.sleep(0)
            write.cancel()
            await asyncio.gather(write, return_exceptions=True)
            newer = asyncio.ensure_future(file.write_at(0, [b"new"]))
            await asyncio.sleep(0)
            go_on.set()
            await newer
            assert await file.read_at(0, 9) == b"new"
            await file.close()
            with pytest.raises(InternalError):
                await file.read_at(0, 1)

    asyncio.run(run())


def test_abandoned_open_leaks_no_descriptor(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(tmp_path, offload)
            await (await files.open("f", create=True)).close()
            before = len(os.listdir("/proc/self/fd"))
            for turns in range(8):
                task = asyncio.ensure_future(files.open("f"))
                for _ in range(turns % 4):
                    await asyncio.sleep(0)
                task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if not isinstance(outcome, BaseException):
                    await outcome.close()
        assert len(os.listdir("/proc/self/fd")) <= before

    asyncio.run(run())


def test_offload_is_bounded_and_close_waits() -> None:
    async def run() -> None:
        gate = threading.Event()
        done: list[int] = []
        offload = ThreadOffload(threads=2, queue=1)

        def work(number: int) -> int:
            assert gate.wait(10)
            done.append(number)
            return number

        tasks = [asyncio.ensure_future(offload.run(lambda number=number: work(number))) for number in range(6)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert offload._running == 3
        tasks[0].cancel()
        gate.set()
        assert await asyncio.gather(*tasks[1:]) == [1, 2, 3, 4, 5]
        await offload.close()
        assert sorted(done) == list(range(6))
        with pytest.raises(InternalError):
            await offload.run(lambda: None)

    asyncio.run(run())


def test_offload_passes_errors_on() -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            with pytest.raises(ZeroDivisionError):
                await offload.run(lambda: 1 // 0)
            serial = Serial(offload)
            with pytest.raises(ZeroDivisionError):
                await serial.run(lambda: 1 // 0)
            assert await serial.run(lambda: 5) == 5

    asyncio.run(run())


def test_replaced_file_is_whole_and_private(tmp_path: Path) -> None:
    replace_file(tmp_path / "f", b"one")
    replace_file(tmp_path / "f", b"two!")
    assert (tmp_path / "f").read_bytes() == b"two!"
    assert [item.name for item in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o600


def test_placement_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        RealFiles(tmp_path, ThreadOffload(), placement="sideways")  # type: ignore[arg-type]


def test_clock_and_randomness_are_of_this_world() -> None:
    assert abs(RealClock().now_ms() - int(__import__("time").time() * 1000)) < 5_000
    rng = RealRng()
    assert rng.uuid() != rng.uuid()
    assert {rng.randrange(2) for _ in range(200)} == {0, 1}
    assert all(0 <= rng.random() < 1 for _ in range(100))


def test_a_large_file_is_removed_with_all_of_its_space(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(tmp_path, offload)
            for size in (0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5 << 20):
                (tmp_path / "large").write_bytes(b"x" * size)
                with (tmp_path / "large").open("rb") as reader:
                    await files.unlink("large")
                    assert not (tmp_path / "large").exists()
                    # Its space is freed even while somebody has it open.
                    assert os.fstat(reader.fileno()).st_size <= 1 << 20
            await files.unlink("large")

    asyncio.run(run())


def test_a_removal_succeeds_where_the_file_system_refuses_to_shorten_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def run() -> None:
        async with ThreadOffload() as offload:
            (tmp_path / "f").write_bytes(bytes(3 << 20))
            monkeypatch.setattr(os, "ftruncate", refuse)
            await RealFiles(tmp_path, offload).unlink("f")
            assert list(tmp_path.iterdir()) == []

    asyncio.run(run())


def test_the_removal_of_one_name_leaves_the_bytes_to_the_others(tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(tmp_path, offload)
            data = os.urandom(3 << 20)
            (tmp_path / "file").write_bytes(data)
            os.link(tmp_path / "file", tmp_path / "second")
            os.symlink(tmp_path / "second", tmp_path / "link")
            os.mkfifo(tmp_path / "pipe")
            for name in ("file", "link", "pipe"):
                await files.unlink(name)
            assert [path.name for path in tmp_path.iterdir()] == ["second"]
            assert (tmp_path / "second").read_bytes() == data
            (tmp_path / "directory").mkdir()
            with pytest.raises(OSError, match="directory"):
                await files.unlink("directory")

    asyncio.run(run())


@pytest.mark.parametrize(("start", "end"), [(0, 5 << 20), (4096, (2 << 20) + 4096), (1 << 20, 1 << 20)])
def test_a_hole_has_exactly_the_bounds_that_were_asked_for(start: int, end: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(tmp_path, offload)
            data = os.urandom(6 << 20)
            file = await files.open("file", create=True)
            await file.write_at(0, [data])
            await file.sync()
            await file.punch(start, end)
            await file.close()
            assert (tmp_path / "file").read_bytes() == data[:start] + bytes(end - start) + data[end:]
            used = (tmp_path / "file").stat().st_blocks * 512
            assert used <= len(data) - (end - start) + (64 << 10)

    asyncio.run(run())


@pytest.mark.parametrize("turns", [0, 1, 3, 10, 30])
def test_a_removal_that_is_cancelled_frees_all_of_the_space(turns: int, tmp_path: Path) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(tmp_path, offload)
            (tmp_path / "large").write_bytes(bytes(32 << 20))
            before = len(os.listdir("/proc/self/fd"))
            removal = asyncio.create_task(files.unlink("large"))
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            removal.cancel()
            with suppress(asyncio.CancelledError):
                await removal
        # What ran in a thread has ended with the pool: no descriptor is left that keeps the space.
        assert len(os.listdir("/proc/self/fd")) <= before
        if turns:
            assert list(tmp_path.iterdir()) == []

    asyncio.run(run())
