"""What a log has wiped is in none of its files, spare ones included; a wipe cut short anywhere loses nothing."""

import asyncio
from dataclasses import replace

import pytest
from local_log_kit import images, opened, real
from log_crashes import LIMITS, crash_at_write, ended
from log_crashes import opened as opened_sim

from penstock.model.errors import ContainerOfflineError
from penstock.ports.durable_log import LogAddress
from penstock.testing.simulation.machine.files import SimDisk
from penstock.testing.simulation.machine.loop import SimLoop

SECRET = b"canary-7f3a"


def held(path):
    return [name for name, data in images(path).items() if SECRET in data]


def test_no_file_holds_what_was_wiped_wherever_it_lay(tmp_path):
    async def main():
        log, _ = await opened(real(tmp_path))
        # Enough for files that were closed, given back, used again and are being written.
        for number in range(60):
            await log.append([SECRET + b"%04d" % number * 300])
            if number % 9 == 8:
                await log.truncate(LogAddress(number - 3))
        assert len(held(tmp_path)) > 2
        upto = await log.begin_wipe()
        tail = [b"kept %d" % number for number in range(3)]
        for frame in tail:
            await log.append([frame])
        assert not await log.end_wipe()
        await log.truncate(upto)
        assert await log.end_wipe()
        assert held(tmp_path) == []
        # Files are used again as before.
        for number in range(60, 100):
            last = await log.append([b"plain %04d" % number * 300])
            await log.truncate(LogAddress(last - 3))
        assert held(tmp_path) == []
        await log.close()
        log, frames = await opened(real(tmp_path))
        assert [frame for _, frame in frames][-1] == b"plain 0099" * 300
        await log.close()

    asyncio.run(main())


def test_appends_go_on_during_a_wipe_and_none_is_lost(tmp_path):
    async def main():
        log, _ = await opened(real(tmp_path))
        await log.append([SECRET])
        done = []

        async def write():
            for number in range(100):
                address = await log.append([b"%d" % number])
                done.append((int(address), b"%d" % number))

        writer = asyncio.create_task(write())
        await asyncio.sleep(0)
        upto = await log.begin_wipe()
        await writer
        await log.truncate(upto)
        assert await log.end_wipe()
        await log.close()
        log, frames = await opened(real(tmp_path))
        assert frames == [item for item in done if item[0] > upto]
        assert held(tmp_path) == []
        await log.close()

    asyncio.run(main())


def test_a_log_that_has_failed_wipes_nothing_and_says_so(tmp_path):
    async def main():
        log, _ = await opened(real(tmp_path))
        await log.append([SECRET])
        log._fail(OSError("killed"))
        with pytest.raises(ContainerOfflineError):
            await log.begin_wipe()
        with pytest.raises(ContainerOfflineError):
            await log.end_wipe()
        await log.close()

    asyncio.run(main())


@pytest.mark.parametrize("freed_first", [False, True])
def test_a_file_that_was_removed_before_a_wipe_does_not_come_back_with_what_it_held(freed_first):
    async def scenario(disk):
        log, _ = await opened_sim(disk, replace(LIMITS, budget_bytes=60 << 14))
        for number in range(200):
            last = await log.append([SECRET + bytes([number]) * 1400])
        if freed_first:
            # Removed by the next opening, in the background; else as the surplus over a smaller budget.
            await log.truncate(last)
        made = set(disk.names)
        await log.close()
        log, _ = await opened_sim(disk)
        assert len(disk.holding([SECRET])) > 3
        if not freed_first:
            await log.truncate(last)
            assert len(made - set(disk.names)) > 1
        upto = await log.begin_wipe()
        await log.append([b"tail"])
        await log.truncate(upto)
        assert await log.end_wipe()
        assert len(made - set(disk.names)) > 1
        assert disk.holding([SECRET]) == []
        disk.crash(power=True)
        assert disk.holding([SECRET]) == []

    loop = SimLoop(1)
    loop.run(scenario(SimDisk(loop.fork("disk"))))


@pytest.mark.parametrize("seed", range(80))
def test_a_power_loss_at_any_write_of_a_wipe_loses_nothing(seed):
    async def scenario(disk):
        log, _ = await opened_sim(disk)
        frames = [bytes([number]) * 1400 for number in range(30)]
        for number, frame in enumerate(frames, 1):
            await log.append([frame])
            if number == 20:
                await log.truncate(LogAddress(12))
        acknowledged = {}
        countdown = seed // 2

        async def work():
            upto = await log.begin_wipe()
            for number in range(31, 34):
                acknowledged[await log.append([b"tail %d" % number])] = b"tail %d" % number
            await log.truncate(LogAddress(upto - 4))
            assert not await log.end_wipe()
            acknowledged["truncated"] = upto
            await log.truncate(upto)
            await log.end_wipe()
            while True:
                await asyncio.sleep(1)
                await log.append([b"idle"])

        def matches(_):
            nonlocal countdown
            countdown -= 1
            return countdown < 0

        task = asyncio.ensure_future(work())
        await crash_at_write(disk, power=seed % 2 == 0, matches=matches)
        await ended(task)
        truncated = acknowledged.pop("truncated", None)
        log, found = await opened_sim(disk)
        assert [frame for frame in acknowledged.values() if frame not in found] == []
        if truncated is None:
            assert frames[-4:] == [frame for frame in found if frame in frames[-4:]]
        await log.append([b"it goes on"])
        await log.close()

    loop = SimLoop(seed)
    loop.run(scenario(SimDisk(loop.fork("disk"))))
