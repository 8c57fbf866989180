"""The log on a disk without room: what is refused, what is not, what is kept back, and what is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from local_log_kit import LIMITS, Frames, die, images, opened, real

from penstock.model.errors import StorageFullError
from penstock.ports.durable_log import LogAddress
from penstock.storage.log.pool import SPARES_KEPT
from penstock.testing.conformance.faults import FaultyFiles

FRAME = bytes(7000)
"""Two of them fill a log file."""
FILES = LIMITS.budget_bytes // LIMITS.segment_bytes
ROOM = 2 * (FILES - SPARES_KEPT)


class FullDisk(FaultyFiles):
    """A disk that has no room for another log file."""

    def __init__(self, path: Path) -> None:
        super().__init__(real(path), self._before)
        self.full = True

    def _before(self, operation: str, path: str) -> None:
        if self.full and operation == "create" and path.endswith(".log"):
            raise StorageFullError("disk is full", path=path)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def run(test: Callable[[], object]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await test()

    asyncio.run(bounded())


def test_frames_that_lead_to_space_take_a_file_that_others_may_not(tmp_path: Path) -> None:
    async def test() -> None:
        log, _ = await opened(real(tmp_path))
        for _ in range(ROOM):
            await log.append([FRAME])
        log.refuse_waits(StorageFullError("tier 2 is full"))
        with pytest.raises(StorageFullError):
            await log.append([FRAME])
        assert await log.append([FRAME], vital=True) == ROOM + 1
        await log.append([FRAME], vital=True)
        with pytest.raises(StorageFullError):
            await log.append([FRAME], vital=True)
        await die(log)
        # The last file is for recovery alone.
        log, frames = await opened(FullDisk(tmp_path))
        assert [address for address, _ in frames] == list(range(1, ROOM + 3))
        await die(log)

    run(test)


def test_waiting_appends_are_refused_once_no_truncation_will_come_and_go_on_when_it_may(tmp_path: Path) -> None:
    async def test() -> None:
        log, _ = await opened(real(tmp_path))
        for _ in range(ROOM):
            await log.append([FRAME])
        waiting = asyncio.ensure_future(log.append([FRAME]))
        await until(lambda: log._queue.first is None or len(images(tmp_path)) == FILES)
        assert not waiting.done()
        log.refuse_waits(StorageFullError("tier 2 is full", chunk="a"))
        with pytest.raises(StorageFullError) as caught:
            await waiting
        assert caught.value.fields == {"chunk": "a"}
        log.refuse_waits(None)
        waiting = asyncio.ensure_future(log.append([FRAME]))
        await asyncio.wait({waiting}, timeout=0.05)
        assert not waiting.done()
        await log.truncate(LogAddress(ROOM))
        assert await waiting == ROOM + 1
        await log.close()

    run(test)


def test_a_log_recovers_twice_on_a_full_disk_with_the_whole_budget_in_use(tmp_path: Path) -> None:
    async def test() -> None:
        log, _ = await opened(real(tmp_path))
        written: Frames = [(int(await log.append([FRAME])), FRAME) for _ in range(ROOM)]
        await until(lambda: len(images(tmp_path)) == FILES)
        await die(log)
        for _ in range(2):
            log, frames = await opened(FullDisk(tmp_path))
            assert frames == written
            # More than a quarter of a file: the next recovery cannot write it anew in place of it.
            written.append((int(await log.append([FRAME[:5000]])), FRAME[:5000]))
            await die(log)

    run(test)


def test_nothing_is_written_for_a_file_that_has_no_room(tmp_path: Path) -> None:
    async def test() -> None:
        files = FullDisk(tmp_path)
        files.full = False
        log, _ = await opened(files)
        await log.append([b"first"])
        await until(lambda: len(log._pool._spares) > SPARES_KEPT + 1)

        async def nothing_free() -> int:
            return LIMITS.segment_bytes - 1

        files.free_bytes = nothing_free  # type: ignore[method-assign]
        created: list[str] = []
        files.before = lambda operation, path: created.append(path) if operation == "create" else None
        refused: list[object] = []
        for _ in range(ROOM):
            try:
                await log.append([FRAME])
            except StorageFullError as error:
                refused.append(error.fields["free_bytes"])
        assert refused
        assert set(refused) == {LIMITS.segment_bytes - 1}
        assert not created
        await log.close()

    run(test)


def test_a_file_without_its_bytes_is_left_until_the_log_is_used(tmp_path: Path) -> None:
    async def test() -> None:
        log, _ = await opened(real(tmp_path))
        await log.append([b"kept"])
        await log.close()
        cut = tmp_path / "wal" / "00000077.log"
        cut.touch()
        log, _ = await opened(real(tmp_path))
        await log.close()
        assert cut.exists(), "a replay of the log may refuse to start: this is the evidence"
        log, frames = await opened(real(tmp_path))
        assert [frame for _, frame in frames] == [b"kept"]
        await log.append([b"used"])
        await until(lambda: not cut.exists())
        await log.close()

    run(test)
