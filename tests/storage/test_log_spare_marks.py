"""What an opening reads of the log's files may be in the page cache alone: it makes durable what it builds on."""

import asyncio
from contextlib import suppress

import pytest
from log_crashes import crash_at_write, ended, opened

from penstock.model.errors import ContainerOfflineError
from penstock.ports.durable_log import LogAddress
from penstock.testing.simulation.machine.files import SimDisk
from penstock.testing.simulation.machine.loop import SimLoop


@pytest.mark.parametrize("seed", range(60))
def test_a_free_mark_that_was_never_synced_is_not_built_upon(seed):
    async def scenario(disk):
        log, _ = await opened(disk)
        frames = [bytes([number]) * 1400 for number in range(20)]
        for frame in frames:
            await log.append([frame])
        # The process dies between the mark of the file that is given back and its sync: the page cache has the mark.
        truncation = asyncio.ensure_future(log.truncate(LogAddress(12)))
        await crash_at_write(disk, power=False, matches=lambda path: path.endswith(".log"))
        await ended(truncation)
        acknowledged = frames[12:]

        async def go_on():
            log, _ = await opened(disk)
            for number in range(100):
                frame = bytes([number]) * 700
                await log.append([frame])
                acknowledged.append(frame)

        # The power goes with one of the next writes, be it in recovery or later.
        countdown = seed % 8
        work = asyncio.ensure_future(go_on())

        def matches(written):
            nonlocal countdown
            countdown -= written.endswith(".log")
            return countdown < 0

        await crash_at_write(disk, power=True, matches=matches)
        await ended(work)
        _, replayed = await opened(disk)
        at = replayed.index(acknowledged[0])
        assert replayed[at : at + len(acknowledged)] == acknowledged
        disk.crash(power=False)
        await ended()

    loop = SimLoop(seed)
    disk = SimDisk(loop.fork("disk"))
    loop.run(scenario(disk))


@pytest.mark.parametrize("seed", range(120))
def test_a_recovery_that_died_leaves_nothing_that_a_power_loss_could_make_damage_of(seed):
    async def die_within(disk, writes, *, power):
        """Open and write a little; die with one of the first writes to a log file, or after all."""
        countdown = writes

        def matches(written):
            nonlocal countdown
            countdown -= written.endswith(".log")
            return countdown < 0

        async def life():
            log, _ = await opened(disk)
            await log.append([b"more"])

        hit = crash_at_write(disk, power=power, matches=matches)
        work = asyncio.ensure_future(life())
        await asyncio.wait({hit, work}, return_when=asyncio.FIRST_COMPLETED)
        if not hit.done():
            disk.on_write = None
            disk.crash(power=power)
        await ended(work)

    async def scenario(disk):
        log, _ = await opened(disk)
        acknowledged = [bytes([number]) * 100 for number in range(3)]
        for frame in acknowledged:
            await log.append([frame])
        disk.crash(power=False)
        await ended()
        await die_within(disk, seed % 5, power=False)
        await die_within(disk, seed // 5 % 5, power=seed % 2 == 0)
        await die_within(disk, seed // 25, power=True)
        _, replayed = await opened(disk)
        assert replayed[: len(acknowledged)] == acknowledged
        disk.crash(power=False)
        await ended()

    loop = SimLoop(seed)
    disk = SimDisk(loop.fork("disk"))
    loop.run(scenario(disk))


@pytest.mark.parametrize("slot", range(1, 6))
@pytest.mark.parametrize("count", range(5, 100, 10))
def test_a_file_that_could_not_be_made_durable_is_not_taken_for_one_that_was_never_used(slot, count):
    async def scenario(disk):
        # The disk fails while a file is filled with zeros: the page cache has them, the disk never will.
        disk.sync_fails_once = f"wal/{slot:08d}.log"
        with suppress(ContainerOfflineError, OSError):
            log, _ = await opened(disk)
            await log.append([b"first"])
            await asyncio.sleep(1)
        disk.crash(power=False)
        await ended()
        assert disk.failed_syncs
        log, replayed = await opened(disk)
        acknowledged = [bytes([number]) * 700 for number in range(count)]
        for frame in acknowledged:
            await log.append([frame])
        disk.crash(power=True)
        await ended()
        _, found = await opened(disk)
        assert found == [*replayed, *acknowledged]
        disk.crash(power=False)
        await ended()

    loop = SimLoop(slot)
    disk = SimDisk(loop.fork("disk"))
    loop.run(scenario(disk))
