"""Freed files of a log are kept up to its budget, within one opening; a later opening removes them, durably, before it
frees a file."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from local_log_kit import LIMITS, ROOMY, Frames, die, images, opened, real, recovered
from log_crashes import crash_at_write, ended

from penstock.model.errors import ContainerOfflineError, StorageFullError
from penstock.ports.durable_log import LogAddress
from penstock.storage.log.limits import LogLimits
from penstock.storage.log.pool import SPARES_AHEAD, SPARES_KEPT
from penstock.testing.conformance.faults import CHANGES, FaultyFiles
from penstock.testing.simulation.machine.files import NodeCrashed, SimDisk, SimFiles
from penstock.testing.simulation.machine.loop import SimLoop

FRAME = bytes(7000)
"""Two of them fill a log file."""
FILES = LIMITS.budget_bytes // LIMITS.segment_bytes
FEWER = LogLimits(segment_bytes=16_384, budget_bytes=5 * 16_384, max_frame_bytes=8_000)


async def with_freed_files(path: Path, count: int, limits: LogLimits = LIMITS) -> Frames:
    """A log whose process died with ``count`` freed files. Returns the frames that are left."""
    log, _ = await opened(real(path), limits)
    written = [(int(await log.append([FRAME])), FRAME) for _ in range(2 * count + 1)]
    await log.truncate(LogAddress(2 * count))
    await die(log)
    return written[-1:]


def test_a_log_that_has_used_its_budget_once_makes_and_removes_no_more_files(tmp_path: Path) -> None:
    async def run() -> None:
        done: Counter[str] = Counter()
        files = FaultyFiles(real(tmp_path), lambda operation, path: done.update([operation]))
        log, _ = await opened(files)
        for turn in range(6):
            for _ in range(2 * (FILES - 3)):
                last = await log.append([FRAME])
            assert len(images(tmp_path)) <= FILES
            await log.truncate(last)
            if turn == 0:
                made = done["create"]
        # EPOCH is created too.
        assert done["create"] <= max(made, FILES) + 2
        assert done["unlink"] == 0
        assert len(images(tmp_path)) <= FILES
        await log.close()

    asyncio.run(run())


def test_a_log_shrinks_to_a_smaller_budget_as_it_is_truncated(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path), ROOMY)
        for _ in range(60):
            last = await log.append([FRAME])
        await die(log)
        log, _ = await opened(real(tmp_path), FEWER)
        assert len(images(tmp_path)) > 30
        await log.truncate(last)
        for _ in range(20):
            await log.truncate(await log.append([FRAME]))
        assert len(images(tmp_path)) <= 5
        await log.close()

    asyncio.run(run())


def test_an_append_above_a_smaller_budget_waits_for_one_freed_file_alone(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path), ROOMY)
        for _ in range(60):
            await log.append([FRAME])
        await die(log)
        log, _ = await opened(real(tmp_path), FEWER)
        more = [asyncio.ensure_future(log.append([FRAME])) for _ in range(20)]
        await asyncio.wait(more, timeout=0.1)
        assert not all(item.done() for item in more)
        async with asyncio.timeout(10):
            # Each pair of frames is one file: it becomes the next one, or the wait would last until all are freed.
            for upto in range(2, 60, 2):
                await log.truncate(LogAddress(upto))
                if all(item.done() for item in more):
                    break
                await asyncio.sleep(0.01)
            assert upto < 40
            await asyncio.gather(*more)
        await log.close()

    asyncio.run(run())


def test_an_opening_neither_waits_for_freed_files_nor_reads_more_than_their_first_blocks(tmp_path: Path) -> None:
    async def run() -> None:
        left = await with_freed_files(tmp_path, 20, ROOMY)
        done: Counter[str] = Counter()
        files = FaultyFiles(real(tmp_path), lambda operation, path: done.update([operation]))
        before = len(images(tmp_path))
        log, frames = await opened(files, ROOMY)
        assert frames == left
        assert done["unlink"] == 0
        # Of each file the first blocks; of the one in use its frames, twice.
        assert done["read"] <= before + 8
        await log.append([b"goes on"])
        await log.truncate(left[-1][0])
        assert done["unlink"] == 20
        assert len(images(tmp_path)) <= 3 + SPARES_AHEAD
        await log.close()

    asyncio.run(run())


def test_a_full_disk_gets_the_room_of_freed_files_before_that_of_cut_ones(tmp_path: Path) -> None:
    async def run() -> None:
        left = await with_freed_files(tmp_path, 3)
        wal = tmp_path / "wal"
        for path in wal.glob("*.log"):
            data = path.read_bytes()
            if not any(data):
                path.unlink()
        cut = wal / "00000077.log"
        cut.touch()
        room = len(images(tmp_path)) - 1

        def before(operation: str, path: str) -> None:
            if operation == "create" and path.endswith(".log") and len(images(tmp_path)) > room:
                raise StorageFullError("disk is full", path=path)

        log, frames = await opened(FaultyFiles(real(tmp_path), before))
        assert frames == left
        assert cut.exists()
        await die(log)

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("power", [True, False])
def test_a_crash_at_any_change_while_freed_files_are_removed_leaves_a_log_without_gaps(seed: int, power: bool) -> None:
    async def filled(disk: SimDisk) -> Frames:
        log, _ = await opened(SimFiles(disk), ROOMY)
        written = [(int(await log.append([frame])), frame) for frame in (b"%04d" % n * 1700 for n in range(24))]
        truncation = asyncio.ensure_future(log.truncate(LogAddress(16)))
        # The process dies between some mark and its sync: the mark may be in the page cache alone.
        marks = seed

        def is_mark(path: str) -> bool:
            nonlocal marks
            marks -= path.endswith(".log")
            return marks < 0

        await crash_at_write(disk, power=False, matches=is_mark)
        await ended(truncation)
        return written

    async def attempt(step: int) -> bool:
        disk = SimDisk(random.Random(seed * 1000 + step))
        written = await filled(disk)
        left = step

        def before(operation: str, path: str) -> None:
            nonlocal left
            left -= operation in CHANGES
            if left == -1:
                disk.crash(power=power)

        async def life() -> None:
            log, _ = await opened(FaultyFiles(SimFiles(disk), before), ROOMY)
            try:
                await log.truncate(LogAddress(20))
                written.append((int(await log.append([b"more"])), b"more"))
            finally:
                with suppress(NodeCrashed):
                    await log.close()

        work = asyncio.ensure_future(life())
        await asyncio.wait({work})
        finished, error = left >= 0, work.exception()
        assert error is None or (not finished and isinstance(error, NodeCrashed | ContainerOfflineError))
        if finished:
            disk.crash(power=power)
        await ended(work)
        frames = await recovered(SimFiles(disk), ROOMY)
        kept = [item for item in written if item[0] > 20]
        assert [item for item in frames if item in kept] == kept, step
        assert [address for address, _ in frames] == list(range(frames[0][0], frames[-1][0] + 1))
        return finished

    async def run() -> None:
        step = 0
        while not await attempt(step):
            step += 1
        assert step > 8

    SimLoop(seed).run(run())


def test_a_roll_does_not_wait_for_the_removal_of_freed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        left = await with_freed_files(tmp_path, 20, ROOMY)
        for path in (tmp_path / "wal").glob("*.log"):
            if not any(path.read_bytes()):
                path.unlink()
        files, removed, turns = real(tmp_path), Counter[str](), asyncio.Semaphore(0)
        unlink = files.unlink

        async def slow(path: str) -> None:
            await turns.acquire()
            await unlink(path)
            removed.update([path])

        monkeypatch.setattr(files, "unlink", slow)
        log, frames = await opened(files, ROOMY)
        assert frames == left
        async with asyncio.timeout(10):
            for _ in range(2 * SPARES_KEPT):
                turns.release()
                await log.append([FRAME])
        assert removed.total() <= 2 * SPARES_KEPT
        for _ in range(20):
            turns.release()
        await log.truncate(left[-1][0])
        assert removed.total() == 20
        await log.close()

    asyncio.run(run())
