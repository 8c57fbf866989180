"""Recovery of the local log: torn tails, damage, recycled files, full disks, failing syncs, crashes anywhere."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from local_log_kit import LIMITS, Crash, Frames, die, file_with, images, opened, real, recovered, write_and_die

from penstock.codec.store.wal import FENCE_AT, FRAMES_AT, HEADER_AT, decode_file_header, encode_frame, frame_bytes
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    InvalidArgumentError,
    StorageFullError,
)
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Buffer, File, Files
from penstock.storage.log.limits import LogLimits
from penstock.storage.log.local_log import LocalLog
from penstock.storage.log.pool import SPARES_AHEAD
from penstock.storage.log.scan import read_log
from penstock.testing.conformance.faults import CHANGES, FaultyFiles


def test_torn_tail_is_trimmed_at_every_byte_of_the_last_frame(tmp_path: Path) -> None:
    async def run() -> None:
        written = await write_and_die(tmp_path / "a", [b"first", b"second" * 50, b"last" * 60])
        file, at = file_with(tmp_path / "a", b"lastlast")
        whole = file.read_bytes()
        used = frame_bytes(240)
        for cut in range(used):
            torn = whole[: at + cut] + bytes(used - cut) + whole[at + used :]
            file.write_bytes(torn)
            # Reading alone at every byte, the whole recovery at some: it syncs a dozen times.
            image = await read_log(real(tmp_path / "a"), "wal", epoch=1, seed=0)
            expected = written if torn == whole else written[:2]
            assert image.last == len(expected), cut
            if cut % 32 == 0:
                shutil.copytree(tmp_path / "a", tmp_path / "b")
                assert await recovered(real(tmp_path / "b")) == expected, cut
                shutil.rmtree(tmp_path / "b")

    asyncio.run(run())


def test_flipped_bit_in_an_acknowledged_frame_is_corruption_and_nothing_changes(tmp_path: Path) -> None:
    async def run() -> None:
        await write_and_die(tmp_path, [b"first", b"older" * 250, b"newer", b"newest"])
        file, at = file_with(tmp_path, b"olderolder")
        whole = file.read_bytes()
        for position in range(at, at + frame_bytes(1250), 64):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << (position // 64 % 8)
            file.write_bytes(damaged)
            before = images(tmp_path)
            with pytest.raises(CorruptDataError) as caught:
                await recovered(real(tmp_path))
            assert caught.value.fields["file"].endswith(file.name)
            assert caught.value.fields["offset"] == at
            assert images(tmp_path) == before
        file.write_bytes(whole)
        assert [frame for _, frame in await recovered(real(tmp_path))] == [
            b"first",
            b"older" * 250,
            b"newer",
            b"newest",
        ]

    asyncio.run(run())


def test_damage_to_the_last_frame_is_seen_after_a_clean_close(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        await log.append([b"only frame of its log"])
        await log.close()
        file, at = file_with(tmp_path, b"only frame")
        damaged = bytearray(file.read_bytes())
        damaged[at + 60] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(CorruptDataError):
            await recovered(real(tmp_path))

    asyncio.run(run())


def test_damage_in_an_older_file_and_a_lost_file_are_corruption(tmp_path: Path) -> None:
    async def run() -> None:
        await write_and_die(tmp_path / "a", [b"%04d" % number * 1500 for number in range(8)])
        files = {file_with(tmp_path / "a", b"%04d" % number * 100)[0].name for number in range(8)}
        assert len(files) >= 3
        middle, at = file_with(tmp_path / "a", b"0003" * 100)
        for offset in (at, 520):
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            damaged = bytearray(middle.read_bytes())
            damaged[offset] ^= 4
            (tmp_path / "b" / "wal" / middle.name).write_bytes(damaged)
            before = images(tmp_path / "b")
            with pytest.raises(CorruptDataError):
                await recovered(real(tmp_path / "b"))
            assert images(tmp_path / "b") == before
            shutil.rmtree(tmp_path / "b")
        middle.unlink()
        with pytest.raises(CorruptDataError):
            await recovered(real(tmp_path / "a"))

    asyncio.run(run())


def test_file_that_was_cut_short_is_corruption_even_where_all_frames_before_the_cut_are_sound(tmp_path: Path) -> None:
    async def run() -> None:
        await write_and_die(tmp_path, [b"first", b"second"])
        file, at = file_with(tmp_path, b"second")
        with file.open("r+b") as cut:
            cut.truncate(at)
        before = images(tmp_path)
        with pytest.raises(CorruptDataError, match="cut short"):
            await recovered(real(tmp_path))
        assert images(tmp_path) == before

    asyncio.run(run())


def test_hole_inside_an_unacknowledged_group_is_a_torn_tail(tmp_path: Path) -> None:
    """A crash may keep the end of one unsynced write and lose its middle: that is no corruption."""

    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        await log.append([b"acknowledged"])
        await asyncio.gather(*(log.append([b"group %d" % number]) for number in range(4)))
        await die(log)
        file, at = file_with(tmp_path, b"group 1")
        data = bytearray(file.read_bytes())
        data[at : at + 512] = bytes(512)
        file.write_bytes(data)
        frames = [frame for _, frame in await recovered(real(tmp_path))]
        assert frames == [b"acknowledged", b"group 0"]
        assert [frame for _, frame in await recovered(real(tmp_path))] == frames

    asyncio.run(run())


def test_recovery_is_idempotent_and_restarts_use_up_no_files(tmp_path: Path) -> None:
    async def run() -> None:
        written = await write_and_die(tmp_path, [b"a", b"b" * 5000, b"c"])
        for number in range(12):
            log, frames = await opened(real(tmp_path))
            assert frames == written
            frame = b"restart %d" % number
            written.append((int(await log.append([frame])), frame))
            await die(log)
        # One in use, two being given back, one being prepared.
        assert len(images(tmp_path)) <= SPARES_AHEAD + 4

    asyncio.run(run())


@pytest.mark.parametrize("frames", [3, 12])
def test_crash_at_any_change_inside_recovery_is_recoverable(tmp_path: Path, frames: int) -> None:
    async def run() -> None:
        written = await write_and_die(tmp_path / "a", [b"%02d" % number * 900 for number in range(frames)])
        step, finished = 0, False
        while not finished:
            copy = tmp_path / f"b{step}"
            shutil.copytree(tmp_path / "a", copy)
            for _ in range(2):
                countdown = step

                def before(operation: str, path: str) -> None:
                    nonlocal countdown
                    if operation in CHANGES:
                        if countdown == 0:
                            raise Crash
                        countdown -= 1

                faulty = FaultyFiles(real(copy), before)
                try:
                    log, seen = await opened(faulty)
                except Crash:
                    continue
                assert seen == written
                faulty.before = lambda operation, path: None
                await die(log)
                finished = True
            assert await recovered(real(copy)) == written, step
            shutil.rmtree(copy)
            step += 1
        assert step > 8

    asyncio.run(run())


@pytest.mark.parametrize("clean", [True, False])
def test_addresses_go_on_when_a_log_that_was_not_rewritten_is_truncated_whole(tmp_path: Path, clean: bool) -> None:
    """A file more than a quarter full, all of it proven, is not rewritten at an opening: nothing but it knows the last
    address."""

    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        for _ in range(4):
            last = await log.append([bytes(2_000)])
        await log.close()
        log, _ = await opened(real(tmp_path))
        await log.truncate(last)
        await (log.close() if clean else die(log))
        log, frames = await opened(real(tmp_path))
        assert log.last == last
        assert await log.append([b"next"]) == last + 1
        await log.truncate(last)
        await log.close()
        assert (await recovered(real(tmp_path)))[-1] == (last + 1, b"next")
        assert frames == [(address, bytes(2_000)) for address in range(1, last + 1)]

    asyncio.run(run())


def test_file_that_was_rolled_to_but_not_written_does_not_count_as_the_newest(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        last = await log.append([b"only"])
        await log._roll()
        await log.truncate(last)
        await die(log)
        log, _ = await opened(real(tmp_path))
        assert await log.append([b"next"]) == last + 1
        await log.close()

    asyncio.run(run())


def test_recycled_files_never_replay_what_they_held_before(tmp_path: Path) -> None:
    async def run() -> None:
        written: Frames = []
        kept = 0
        for generation in range(6):
            log, frames = await opened(real(tmp_path))
            assert frames == [item for item in written if item[0] >= frames[0][0]] if frames else not written
            assert not written or frames[0][0] <= kept + 1
            for number in range(40):
                frame = b"%d/%d " % (generation, number) * 200
                written.append((int(await log.append([frame])), frame))
                if number % 7 == 6:
                    kept = written[-3][0]
                    await log.truncate(LogAddress(kept))
            await die(log)
        assert len(images(tmp_path)) <= LIMITS.budget_bytes // LIMITS.segment_bytes + 1
        assert len(written) * 1200 > 2 * LIMITS.budget_bytes

    asyncio.run(run())


def test_frame_of_another_use_of_the_file_never_replays_even_with_the_next_sequence(tmp_path: Path) -> None:
    async def run() -> None:
        await write_and_die(tmp_path, [b"ours", b"torn"])
        file, at = file_with(tmp_path, b"torn")
        data = bytearray(file.read_bytes())
        header = decode_file_header(bytes(data[HEADER_AT:FRAMES_AT]))
        assert header is not None
        stale = b"".join(
            encode_frame(
                [b"stale"],
                payload_bytes=5,
                incarnation=header.incarnation + 1,
                sequence=2,
                durable_sequence=1,
                seed=0,
            )
        )
        data[at : at + len(stale)] = stale
        file.write_bytes(data)
        assert await recovered(real(tmp_path)) == [(1, b"ours")]

    asyncio.run(run())


def test_failed_sync_takes_the_log_offline_and_a_new_opening_recovers(tmp_path: Path) -> None:
    async def run() -> None:
        failing = False

        def before(operation: str, path: str) -> None:
            if failing and operation == "sync" and path.endswith(".log"):
                raise OSError(errno.EIO, "input/output error")

        log, _ = await opened(FaultyFiles(real(tmp_path), before))
        await log.append([b"durable"])
        failing = True
        outcomes = await asyncio.gather(*(log.append([b"x"]) for _ in range(3)), return_exceptions=True)
        failing = False
        assert all(isinstance(outcome, ContainerOfflineError) for outcome in outcomes)
        with pytest.raises(ContainerOfflineError):
            await log.append([b"y"])
        with pytest.raises(ContainerOfflineError):
            await log.truncate(LogAddress(1))
        await log.close()
        first = await recovered(real(tmp_path))
        assert first[0] == (1, b"durable")
        assert {frame for _, frame in first[1:]} <= {b"x"}
        assert await recovered(real(tmp_path)) == first

    asyncio.run(run())


def test_frame_is_not_acknowledged_when_the_fence_falls_during_its_sync(tmp_path: Path) -> None:
    async def run() -> None:
        armed = False

        def before(operation: str, path: str) -> None:
            if armed and operation == "sync" and path.endswith(".log"):
                with (tmp_path / "wal" / "EPOCH").open("r+b") as epoch:
                    epoch.seek(FENCE_AT)
                    epoch.write(b"\x01")

        log, _ = await opened(FaultyFiles(real(tmp_path), before))
        await log.append([b"ours"])
        armed = True
        with pytest.raises(ContainerOfflineError):
            await log.append([b"too late"])
        await log.close()

    asyncio.run(run())


class GatedFiles(FaultyFiles):
    """Log writes wait until ``gate`` is set, and only then look at their buffers."""

    def __init__(self, inner: Files) -> None:
        super().__init__(inner, lambda operation, path: None)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = asyncio.Event()

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> File:
        file = await super().open(path, create=create, direct=direct)
        write_at = file.write_at

        async def gated(offset: int, parts: Sequence[Buffer]) -> None:
            self.waiting.set()
            await self.gate.wait()
            await write_at(offset, parts)

        file.write_at = gated  # type: ignore[method-assign]
        return file


def test_cancelled_append_keeps_its_parts_until_they_are_written(tmp_path: Path) -> None:
    async def run() -> None:
        files = GatedFiles(real(tmp_path))
        log, _ = await opened(files)
        await log.append([b"before"])
        for _ in range(100):
            await asyncio.sleep(0)
        files.gate.clear()
        files.waiting.clear()
        buffer = bytearray(b"borrowed")
        task = asyncio.ensure_future(log.append([buffer]))
        await files.waiting.wait()
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
        assert not task.done()
        files.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        buffer[:] = b"reused!!"
        await log.append([b"after"])
        await log.close()
        assert [frame for _, frame in await recovered(real(tmp_path))] == [b"before", b"borrowed", b"after"]

    asyncio.run(run())


def test_full_disk_refuses_the_roll_and_the_log_goes_on(tmp_path: Path) -> None:
    async def run() -> None:
        full = False

        def before(operation: str, path: str) -> None:
            if full and operation == "create":
                raise StorageFullError("disk is full", path=path)

        log, _ = await opened(FaultyFiles(real(tmp_path), before))
        written = [(int(await log.append([b"%05d" % 0])), b"00000")]
        # All files that are kept ahead are there before the disk fills up.
        while len(images(tmp_path)) < 1 + SPARES_AHEAD or any(
            len(data) != 16_384 for data in images(tmp_path).values()
        ):
            await asyncio.sleep(0)
        full = True
        refused = 0
        for number in range(1, 40):
            frame = b"%05d" % number * 300
            try:
                written.append((int(await log.append([frame])), frame))
            except StorageFullError:
                refused += 1
        assert refused > 0
        assert len({file_with(tmp_path, frame)[0] for _, frame in written}) == 3
        assert int(await log.append([b"small"])) == written[-1][0] + 1
        full = False
        assert int(await log.append([b"again" * 300])) == written[-1][0] + 2
        await log.close()
        written += [(written[-1][0] + 1, b"small"), (written[-1][0] + 2, b"again" * 300)]
        assert await recovered(real(tmp_path)) == written

    asyncio.run(run())


def test_log_recovers_on_a_disk_that_became_full_with_the_whole_budget_in_use(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        written: Frames = []
        async with asyncio.timeout(10):
            while len(written) < 12:
                written.append((int(await log.append([bytes(7000)])), bytes(7000)))
        await die(log)

        def before(operation: str, path: str) -> None:
            if operation == "create" and path.endswith(".log"):
                raise StorageFullError("disk is full", path=path)

        log, frames = await opened(FaultyFiles(real(tmp_path), before))
        assert frames == written
        async with asyncio.timeout(10):
            await log.truncate(LogAddress(written[-1][0]))
            assert int(await log.append([bytes(7000)])) == written[-1][0] + 1
        await die(log)

    asyncio.run(run())


def test_appends_wait_for_truncation_when_the_budget_is_used_up(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        acked: list[int] = []

        async def fill() -> None:
            while len(acked) < 40:
                acked.append(int(await log.append([bytes(7000)])))

        task = asyncio.ensure_future(fill())
        async with asyncio.timeout(10):
            # Two to a file; the files kept for recovery are not used.
            while len(acked) < 12:
                await asyncio.sleep(0)
            for _ in range(200):
                await asyncio.sleep(0)
            assert len(acked) == 12
            assert len(images(tmp_path)) == 8
            while not task.done():
                await log.truncate(LogAddress(acked[-1]))
                await asyncio.sleep(0)
        await task
        assert acked == list(range(1, 41))
        await log.close()

    asyncio.run(run())


def test_close_refuses_appends_that_wait_for_a_file(tmp_path: Path) -> None:
    async def run() -> None:
        log, _ = await opened(real(tmp_path))
        tasks = [asyncio.ensure_future(log.append([bytes(7000)])) for _ in range(20)]
        async with asyncio.timeout(10):
            while sum(task.done() for task in tasks) < 12:
                await asyncio.sleep(0)
            await log.close()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert outcomes[:12] == list(range(1, 13))
        assert all(isinstance(outcome, ContainerOfflineError) for outcome in outcomes[12:])

    asyncio.run(run())


def test_queue_is_bounded_and_keeps_call_order(tmp_path: Path) -> None:
    async def run() -> None:
        limits = LogLimits(segment_bytes=16_384, budget_bytes=64 * 16_384, max_frame_bytes=8_000, queue_bytes=2_000)
        log, _ = await opened(real(tmp_path), limits)
        tasks = [asyncio.ensure_future(log.append([b"%03d" % number * 300])) for number in range(60)]
        await asyncio.sleep(0)
        assert log._queue.size_bytes <= 2_000
        tasks[30].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(outcomes.pop(30), asyncio.CancelledError)
        assert outcomes == list(range(1, 60))
        await log.close()

    asyncio.run(run())


def test_limits_that_do_not_fit_together_are_refused() -> None:
    wrong: list[Callable[[], LogLimits]] = [
        lambda: LogLimits(segment_bytes=1000),
        lambda: LogLimits(segment_bytes=4096, budget_bytes=1 << 20, max_frame_bytes=4096),
        lambda: LogLimits(segment_bytes=1 << 20, budget_bytes=2 << 20, max_frame_bytes=4096),
        lambda: LogLimits(max_frame_bytes=0),
    ]
    for make in wrong:
        with pytest.raises(InvalidArgumentError):
            make()


def test_damaged_or_missing_epoch_is_corruption(tmp_path: Path) -> None:
    async def run() -> None:
        await write_and_die(tmp_path, [b"x"])
        epoch = tmp_path / "wal" / "EPOCH"
        data = bytearray(epoch.read_bytes())
        data[9] ^= 1
        epoch.write_bytes(data)
        with pytest.raises(CorruptDataError):
            await LocalLog.open(real(tmp_path), limits=LIMITS)
        epoch.unlink()
        with pytest.raises(CorruptDataError):
            await LocalLog.open(real(tmp_path), limits=LIMITS)

    asyncio.run(run())


def test_first_frame_offset_follows_the_format(tmp_path: Path) -> None:
    asyncio.run(write_and_die(tmp_path, [b"needle in the log"]))
    assert file_with(tmp_path, b"needle in the log")[1] == FRAMES_AT
