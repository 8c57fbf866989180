"""Many small files written with one wait for the disk: what is shared, what fails, what a cancelled caller leaves."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import CorruptDataError, StorageFullError
from penstock.ports.chunks import ChunkWrite
from penstock.ports.files import FileWrite
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.machine import batched_write as real_batched_write
from penstock.storage.machine.batched_write import SHARED_MIN_FILES, OpenFileLimit, OpenPolicy, SyncPolicy
from penstock.storage.machine.calls import may_be_synced_as_a_whole
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload

Body = Callable[[RealFiles, Path], Awaitable[None]]


def with_files(directory: Path, body: Body, **options: Any) -> None:
    async def run() -> None:
        async with ThreadOffload() as offload:
            files = RealFiles(directory, offload, **options)
            await files.make_dir("0")
            await body(files, directory)

    asyncio.run(run())


def writes(count: int, offset: int = 0) -> Sequence[FileWrite]:
    return [FileWrite(path=f"0/{number}", offset=offset, parts=[b"some", b"thing"]) for number in range(count)]


class Syncs:
    """Counts syncs of files and of whole file systems; ``fails`` is what the latter meet."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files = self.shared = 0
        self.fails: OSError | None = None
        self._fdatasync = os.fdatasync
        patch.setattr(os, "fdatasync", self._file)
        patch.setattr(real_batched_write, "sync_file_system", self._all)
        patch.setattr(real_batched_write, "may_be_synced_as_a_whole", lambda descriptor: True)

    def _file(self, descriptor: int) -> None:
        self.files += 1
        self._fdatasync(descriptor)

    def _all(self, descriptor: int) -> bool:
        self.shared += 1
        if self.fails is not None:
            raise self.fails
        return True


@pytest.mark.parametrize("placement", ["inline", "thread", "auto"])
def test_files_are_written_and_cut_off_whatever_the_place(placement: str, tmp_path: Path) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        assert not any(await files.write_together(writes(50)))
        (root / "0" / "7").write_bytes(b"somethingthat a failed attempt left")
        assert not any(await files.write_together(writes(50, offset=9)))
        for number in range(50):
            assert (root / "0" / str(number)).read_bytes() == b"somethingsomething"
            assert (root / "0" / str(number)).stat().st_mode & 0o777 == 0o600

    with_files(tmp_path, body, placement=placement)


def test_large_ones_go_past_the_cache_and_small_ones_beside_them_do_not(tmp_path: Path) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        large = bytes(range(256)) * 2048
        given = [FileWrite(path="0/large", offset=0, parts=[large[:1000], large[1000:]]), *writes(40)]
        for offset in (0, len(large)):
            given[0] = FileWrite(path="0/large", offset=offset, parts=[large[:1000], large[1000:]])
            assert not any(await files.write_together(given))
        assert (root / "0" / "large").read_bytes() == large * 2
        assert (root / "0" / "7").read_bytes() == b"something"

    with_files(tmp_path, body)


def test_many_share_one_sync_and_few_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        syncs = Syncs(monkeypatch)
        await files.write_together(writes(SHARED_MIN_FILES - 1))
        assert (syncs.files, syncs.shared) == (SHARED_MIN_FILES - 1, 0)
        await files.write_together(writes(SHARED_MIN_FILES))
        assert (syncs.files, syncs.shared) == (SHARED_MIN_FILES - 1, 1)

    with_files(tmp_path, body)


def test_a_file_system_that_nobody_has_looked_at_is_not_synced_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        syncs = Syncs(monkeypatch)
        monkeypatch.setattr(real_batched_write, "may_be_synced_as_a_whole", lambda descriptor: False)
        assert not any(await files.write_together(writes(40)))
        assert (syncs.files, syncs.shared) == (40, 0)

    with_files(tmp_path, body)
    with Path("/proc/self/status").open("rb") as known_to_nobody:
        assert not may_be_synced_as_a_whole(known_to_nobody.fileno())


def test_no_more_files_are_open_than_the_process_can_spare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (160, 160))

    async def body(files: RealFiles, root: Path) -> None:
        opened, most = set(), 0
        really_open, really_close = os.open, os.close

        def open_(path: Any, flags: int, mode: int = 0o777) -> int:
            nonlocal most
            descriptor = really_open(path, flags, mode)
            if not flags & os.O_DIRECTORY:
                opened.add(descriptor)
                most = max(most, len(opened))
            return descriptor

        def close(descriptor: int) -> None:
            opened.discard(descriptor)
            really_close(descriptor)

        monkeypatch.setattr(os, "open", open_)
        monkeypatch.setattr(os, "close", close)
        given = [
            FileWrite(path=f"0/{call}-{number}", offset=0, parts=[b"x"]) for call in range(4) for number in range(90)
        ]
        outcomes = await asyncio.gather(*(files.write_together(given[at : at + 90]) for at in range(0, 360, 90)))
        assert [outcome for part in outcomes for outcome in part] == [None] * 360
        assert len(list((root / "0").iterdir())) == 360
        assert (most, opened) == (40, set())

    with_files(tmp_path, body)


def test_room_that_was_waited_for_in_vain_is_nobodys() -> None:
    async def body() -> None:
        room = OpenFileLimit(3)

        async def use(count: int) -> None:
            async with room.taken(count):
                await asyncio.sleep(3600)

        held, waits = asyncio.create_task(use(2)), asyncio.create_task(use(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits])
        held.cancel()
        await asyncio.wait([held])
        async with room.taken(3):
            pass

    asyncio.run(body())


def test_a_shared_sync_that_fails_is_believed_of_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        syncs = Syncs(monkeypatch)
        syncs.fails = OSError(errno.EIO, "lost")
        outcomes = await files.write_together([*writes(40), FileWrite(path="0/none", offset=3, parts=[b"x"])])
        assert [type(outcome) for outcome in outcomes] == [OSError] * 40 + [FileNotFoundError]
        assert syncs.files == 0, "the kernel has forgotten by now what was lost: asked again it would say all is well"

    with_files(tmp_path, body)


def test_a_file_system_that_others_keep_busy_is_not_synced_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(real_batched_write.time, "monotonic", lambda: now)
    policy = SyncPolicy(reports_errors=True)
    policy.record(0.2, 256)
    assert policy.is_worthwhile
    policy.record(8.0, 256)
    assert not policy.is_worthwhile
    now += 100
    assert policy.is_worthwhile
    policy.record(2.0, 256)
    policy.record_single(1.9, 256)
    assert not policy.is_worthwhile, "one by one is faster"
    policy.record_single(0.1, 1)
    assert not policy.is_worthwhile, "a single file says little"
    policy.record_single(2.1, 256)
    assert policy.is_worthwhile, "one by one is slower"
    assert not SyncPolicy(reports_errors=False).is_worthwhile, "a kernel that hides what was lost is not asked"


def test_files_that_open_slowly_are_left_to_threads_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(real_batched_write.time, "monotonic", lambda: now)
    policy = OpenPolicy()
    policy.record(0.002, 5)
    assert policy.quick, "one stall says nothing"
    for _ in range(5):
        policy.record(0.002, 5)
    assert not policy.quick
    now += 60
    assert policy.quick
    for _ in range(50):
        policy.record(0.002, 40)
    assert policy.quick


def test_each_file_has_its_own_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        (root / "0" / "1").write_bytes(b"ab")
        (root / "0" / "2").symlink_to(root / "0" / "1")
        pwritev = os.pwritev

        def fills_up(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
            if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/3"):
                raise OSError(errno.ENOSPC, "full")
            return pwritev(descriptor, buffers, offset)

        monkeypatch.setattr(os, "pwritev", fills_up)
        given = [*writes(5)]
        given[1] = FileWrite(path="0/1", offset=3, parts=[b"x"])
        outcomes = await files.write_together(given)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], CorruptDataError)
        assert isinstance(outcomes[2], OSError)
        assert isinstance(outcomes[3], StorageFullError)
        assert outcomes[4] is None
        assert (root / "0" / "1").read_bytes() == b"ab"
        assert not [name for name in os.listdir("/proc/self/fd") if _is_below(name, root)], "all are closed"

    with_files(tmp_path, body)


def _is_below(descriptor: str, root: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(root))
    except FileNotFoundError:
        return False


def chunk_writes(offset: int) -> Sequence[ChunkWrite]:
    return [ChunkWrite(name=f"0/{number}", offset=offset, parts=[b"0123456789"]) for number in range(3)]


def test_a_chunk_that_failed_to_sync_is_written_again_from_where_it_was_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        chunks = FileChunks(files)
        assert not any(await chunks.append_together(chunk_writes(0)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", _fails)
            assert all(await chunks.append_together(chunk_writes(10)))
        for name in ("0/0", "0/1", "0/2"):
            with pytest.raises(OSError, match="failed to sync"):
                await chunks.sync(name)
        assert all(await chunks.append_together(chunk_writes(20))), "those bytes may be gone"
        assert not any(await chunks.append_together(chunk_writes(10)))
        assert not any(await chunks.append_together(chunk_writes(20)))
        assert await chunks.read("0/1", 0, 99) == b"0123456789" * 3
        await chunks.close()

    with_files(tmp_path, body)


def _fails(descriptor: int) -> None:
    raise OSError(errno.EIO, "lost")


def test_names_that_cannot_be_made_durable_fail_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        chunks = FileChunks(files)

        async def fails(directory: str) -> None:
            raise OSError(errno.EIO, "lost")

        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_dir", fails)
            assert all(await chunks.append_together(chunk_writes(0)))
        assert not any(await chunks.append_together(chunk_writes(0)))
        await chunks.close()

    with_files(tmp_path, body)


def test_a_cancelled_call_keeps_its_files_until_it_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a later call would write, or delete, a file that the earlier one still writes."""
    may_end, begun = threading.Event(), threading.Event()
    fdatasync = os.fdatasync

    def slow(descriptor: int) -> None:
        begun.set()
        assert may_end.wait(30)
        fdatasync(descriptor)

    async def body(files: RealFiles, root: Path) -> None:
        chunks = FileChunks(files)
        monkeypatch.setattr(os, "fdatasync", slow)
        task = asyncio.create_task(chunks.append_together(chunk_writes(0)))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        deleting = asyncio.create_task(chunks.delete("0/1"))
        await asyncio.sleep(0.01)
        assert not deleting.done()
        may_end.set()
        await deleting
        assert list(await chunks.list()) == ["0/0", "0/2"]
        await chunks.close()

    with_files(tmp_path, body, placement="thread")


def test_calls_with_the_same_chunks_in_another_order_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    async def body(files: RealFiles, root: Path) -> None:
        chunks = FileChunks(files)
        names = ["0/a", "1/b"]
        parts = [ChunkWrite(name=name, offset=0, parts=[b"x"]) for name in names]
        # The directory of the second is made when the lock of the first is held: the other call gets in between.
        calls = asyncio.gather(chunks.append_together(parts), chunks.append_together(parts[::-1]))
        outcomes = await asyncio.wait_for(calls, 20)
        assert outcomes == [[None, None], [None, None]]
        assert [await chunks.read(name, 0, 9) for name in names] == [b"x", b"x"]
        await chunks.close()

    with_files(tmp_path, body)
