"""The local log on a simulated disk: power loss and failing syncs at any instant, inside recovery too."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from local_log_kit import ROOMY, Crash, Frames, die, opened, recovered

from penstock.model.errors import (
    ContainerOfflineError,
)
from penstock.ports.durable_log import LogAddress
from penstock.testing.conformance.faults import CHANGES, FaultyFiles
from penstock.testing.simulation.machine.files import NodeCrashed, SimDisk, SimFiles
from penstock.testing.simulation.machine.loop import SimLoop


async def _log_with_unproven_tail(disk: SimDisk, *, failing: bool) -> Frames:
    """A log whose last frame nothing proves to be durable; ``failing``: and it is not, though the next process sees it."""
    log, _ = await opened(SimFiles(disk))
    written = [(int(await log.append([frame])), frame) for frame in (b"a", b"b" * 3000, b"c" * 700)]
    assert log._active is not None
    disk.sync_fails_once = log._active.path if failing else None
    outcome = (await asyncio.gather(log.append([b"tail" * 1500]), return_exceptions=True))[0]
    assert isinstance(outcome, ContainerOfflineError if failing else int)
    await die(log)
    return [*written, (4, b"tail" * 1500)]


@pytest.mark.parametrize("seed", range(4))
def test_power_loss_at_any_change_inside_recovery_is_recoverable(seed: int) -> None:
    async def attempt(step: int) -> bool:
        disk = SimDisk(random.Random(seed * 1000 + step))
        written = await _log_with_unproven_tail(disk, failing=False)
        left = step

        def before(operation: str, path: str) -> None:
            nonlocal left
            left -= operation in CHANGES
            if left < 0:
                raise Crash

        finished = False
        with suppress(Crash):
            files = FaultyFiles(SimFiles(disk), before)
            log, seen = await opened(files)
            assert seen == written
            files.before = lambda operation, path: None
            await die(log)
            finished = True
        disk.crash(power=True)
        assert await recovered(SimFiles(disk)) == written, step
        return finished

    async def run() -> None:
        step = 0
        while not await attempt(step):
            step += 1
        assert step > 8

    SimLoop(seed).run(run())


def test_sync_that_failed_inside_recovery_is_never_believed() -> None:
    """The kernel reports a failed sync once, and then shows pages that are not on the disk."""

    async def attempt(step: int) -> bool:
        disk = SimDisk(random.Random(step))
        written = await _log_with_unproven_tail(disk, failing=True)
        syncs = 0

        def before(operation: str, path: str) -> None:
            nonlocal syncs
            syncs += operation == "sync"
            if operation == "sync" and syncs == step + 1:
                disk.sync_fails_once = path

        finished = True
        try:
            log, _ = await opened(FaultyFiles(SimFiles(disk), before))
            await die(log)
        except OSError:
            finished = False
        log, seen = await opened(SimFiles(disk))
        assert seen == written
        await die(log)
        disk.crash(power=True)
        assert await recovered(SimFiles(disk)) == written, step
        return finished

    async def run() -> None:
        step = 0
        while not await attempt(step):
            step += 1
        assert step >= 3

    SimLoop(1).run(run())


@pytest.mark.parametrize("seed", range(40))
def test_acknowledged_frames_survive_power_loss_at_any_instant(seed: int) -> None:
    """Random appends, truncations, crashes with and without power loss: every opening replays all that was promised."""

    rng = random.Random(seed)
    disk = SimDisk(rng)
    promised: dict[int, bytes] = {}

    async def run() -> None:
        for _ in range(10):
            task = asyncio.ensure_future(_life(SimFiles(disk), rng, promised))
            await asyncio.sleep(rng.choice((0.001, 0.01, 0.1, 1.0)) * rng.random())
            disk.crash(power=rng.random() < 0.6)
            with suppress(NodeCrashed, ContainerOfflineError):
                async with asyncio.timeout(60):
                    await task
        log, frames = await opened(SimFiles(disk), ROOMY)
        _check_replay(frames, promised)
        await log.close()

    SimLoop(seed).run(run())


def _check_replay(frames: Frames, promised: dict[int, bytes]) -> None:
    replayed = dict(frames)
    assert list(replayed) == list(range(min(replayed, default=1), min(replayed, default=1) + len(replayed)))
    for address, frame in promised.items():
        if not frame.startswith(b"T"):
            assert replayed.get(address) == frame, address
    # What an opening has replayed is promised from then on.
    for address, frame in frames:
        promised.setdefault(address, frame)


async def _life(files: SimFiles, rng: random.Random, promised: dict[int, bytes]) -> None:
    log, frames = await opened(files, ROOMY)
    _check_replay(frames, promised)

    async def write(number: int) -> None:
        for turn in range(20):
            frame = b"%d.%d " % (number, turn) * rng.randrange(1, 300)
            address = int(await log.append([frame]))
            promised[address] = frame
            if rng.random() < 0.1 and len(promised) > 10:
                upto = sorted(promised)[-8]
                for old in promised:
                    if old <= upto:
                        promised[old] = b"T"
                await log.truncate(LogAddress(upto))

    try:
        if rng.random() < 0.4:
            # Nothing but recovery stands between these lives and the crash.
            await asyncio.sleep(rng.random() * 0.1)
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(write(number))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    finally:
        await log.close()
