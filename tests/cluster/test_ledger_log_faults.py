"""What lost answers, rivals, garbage and an early end do to a log on ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from penstock.codec.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata, ledger_path
from penstock.codec.store.container_record import decode_record
from penstock.model.errors import ContainerOfflineError, NotConnectedError, UnavailableError
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.ledgers.metadata import closed_at
from penstock.storage.ledgers.removals import Removals
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.bookkeeper.nodes import MemoryNodes
from penstock.testing.conformance.durable_log import replayed
from tests.cluster.ledger_log_kit import (
    BOOKIE_LIMITS,
    FRAMES,
    LIMITS,
    PATH,
    append_all,
    content,
    open_log,
    record_of,
    run,
)
from tests.cluster.planted_kit import finds


class LateNodes(MemoryNodes):
    """Loses the answer of the change that lists a second ledger, once ``go_on`` is set."""

    def __init__(self, nodes: dict[str, tuple[bytes, int]]) -> None:
        super().__init__(nodes)
        self.changed, self.go_on = asyncio.Event(), asyncio.Event()

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        made = await super().set(path, data, version=version)
        if path == PATH and not self.changed.is_set() and len(decode_record(data).ledgers) == 2:
            self.changed.set()
            await self.go_on.wait()
            raise NotConnectedError("answer was lost; the call may have happened")
        return made


class BrokenNodes(MemoryNodes):
    """Fails in a way that is no error of ours, once ``is_down``."""

    async def children(self, path: str) -> Sequence[str]:
        if self.is_down:
            raise RuntimeError("defect in a library")
        return await super().children(path)

    async def _reach(self) -> None:
        return


def ledger_nodes(world: SimBookKeeper) -> list[str]:
    return [path for path in world.nodes.nodes if "/L0" in path]


def restart(world: SimBookKeeper) -> None:
    for bookie in world.bookies.values():
        bookie.stop()
        bookie.start()


def test_a_deposed_owner_deletes_no_ledger_that_the_record_names() -> None:
    """Its change was made though the answer was lost: the next owner has the ledger in its list."""

    async def scenario(world: SimBookKeeper) -> None:
        world.nodes = nodes = LateNodes(world.nodes.nodes)
        async with open_log(world) as old:
            await replayed(old)
            await old.append([b"kept"])
            restart(world)
            zombie = asyncio.ensure_future(old.append([b"zombie"]))
            await nodes.changed.wait()
            async with open_log(world, seed=2) as new:
                nodes.go_on.set()
                with pytest.raises(ContainerOfflineError):
                    await zombie
                assert [frame for _, frame in await replayed(new)] == [b"kept"]
        assert await content(world, seed=3) == [b"kept"]

    run(scenario)


def test_a_deposed_owner_leaves_no_ledger_that_nobody_names() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as old, open_log(world, seed=2) as new:
            with pytest.raises(ContainerOfflineError):
                await replayed(old)
            await replayed(new)
        assert len(ledger_nodes(world)) == len(record_of(world).ledgers) == 1

    run(scenario)


async def count_rolls(world: SimBookKeeper, *, seconds: float, most: int) -> int:
    """Ids of ledgers used while appends cannot be acknowledged, counted until they are ``most``."""
    before = world.nodes.used(f"{ROOT}/idgen/ID-")
    end_s = asyncio.get_running_loop().time() + seconds
    while (used := world.nodes.used(f"{ROOT}/idgen/ID-") - before) < most:
        if asyncio.get_running_loop().time() >= end_s:
            break
        await asyncio.sleep(0.01)
    return used


def test_bookies_that_refuse_every_frame_cause_no_storm_of_ledgers() -> None:
    """They take headers, but end the connection at a larger entry: their ``nettyMaxFrameSizeBytes`` is too low."""

    async def scenario(world: SimBookKeeper) -> None:
        for bookie in world.bookies.values():
            bookie.frame_max_bytes = 2_000
        async with open_log(world, limits=replace(LIMITS, close_s=0.1)) as log:
            await replayed(log)
            await log.append([b"small"])
            waiting = asyncio.ensure_future(log.append([bytes(3_000)]))
            waiting.add_done_callback(lambda one: one.cancelled() or one.exception())  # a failed check leaves it behind
            assert await count_rolls(world, seconds=0.5, most=25) < 25
            assert len(record_of(world).ledgers) <= 3
            for bookie in world.bookies.values():
                bookie.frame_max_bytes = 5_000
            assert await waiting == 2
        assert len(ledger_nodes(world)) == len(record_of(world).ledgers)
        assert await content(world, seed=2) == [b"small", bytes(3_000)]

    run(scenario)


def test_one_bookie_that_fails_after_each_header_is_left_out() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        bad = world.bookies["bookie-1"]
        bad.frame_max_bytes = 1_000
        async with open_log(world) as log:
            await replayed(log)
            assert await append_all(log, FRAMES) == list(range(1, 61))
            for number in range(61, 91):
                assert await log.append([bytes(1_000)]) == number
        used = await world.nodes.next_number(f"{ROOT}/idgen/ID-")
        assert used < 15, "one ledger for each 30,000 bytes, and few more"

    run(scenario)


def test_closing_ends_appends_with_an_error_of_the_log() -> None:
    """A cancellation that nobody asked for would end the caller's task without a word."""

    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world, limits=replace(LIMITS, close_s=0.1)) as log:
            await replayed(log)
            for name in ("bookie-0", "bookie-1"):
                world.bookies[name].stop()
            waiting = asyncio.ensure_future(log.append([b"x"]))
            await asyncio.sleep(0)
        with pytest.raises(ContainerOfflineError, match="offline"):
            await waiting

    run(scenario)


def test_a_close_that_is_cancelled_leaves_no_append_waiting() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            for name in ("bookie-0", "bookie-1"):
                world.bookies[name].stop()
            waiting = asyncio.ensure_future(log.append([b"x"]))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(log.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(ContainerOfflineError):
                await waiting

    run(scenario)


def test_an_error_that_nobody_expects_ends_the_log_instead_of_its_progress() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        world.nodes = BrokenNodes(world.nodes.nodes)
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"x"])
            world.nodes.is_down = True
            restart(world)
            with pytest.raises(ContainerOfflineError, match="defect in a library"):
                async with asyncio.timeout(2):
                    await log.append([b"y"])

    run(scenario)


def test_a_ledger_that_another_client_closed_too_early_ends_the_log() -> None:
    """Going on would acknowledge frames behind a gap, which no later opening replays."""

    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await append_all(log, [b"1", b"2", b"3"])
            listed = record_of(world).ledgers[-1]
            path = f"{ROOT}/{ledger_path(listed.ledger)}"
            data, version = world.nodes.nodes[path]
            metadata = decode_ledger_metadata(data, ledger=listed.ledger)
            closed = closed_at(metadata, last=1, length_bytes=40)
            world.nodes.nodes[path] = (encode_ledger_metadata(closed), version + 1)
            restart(world)
            with pytest.raises(ContainerOfflineError, match="before its acknowledged end"):
                await log.append([b"4"])

    run(scenario)


def test_frames_without_bytes_are_bounded_too() -> None:
    """Their entries have headers. Over the limit of a ledger, a frame would be missing between two others."""

    async def scenario(world: SimBookKeeper) -> None:
        limits = replace(LIMITS, in_flight_bytes=2_000)
        async with open_log(world, limits=limits, bookies=replace(BOOKIE_LIMITS, in_flight_bytes=4_000)) as log:
            await replayed(log)
            assert await append_all(log, [b""] * 500) == list(range(1, 501))
        assert await content(world, seed=2) == [b""] * 500

    run(scenario)


@pytest.mark.parametrize("back", ["bookie-2", None])
def test_a_ledger_of_two_copies_outlives_its_owner_and_one_bookie(back: str | None) -> None:
    """It was begun while one bookie was down. Another bookie replaces the one that is dead, if there is one."""

    async def scenario(world: SimBookKeeper) -> None:
        world.bookies["bookie-2"].stop()
        async with AsyncExitStack() as owner:
            log = await owner.enter_async_context(open_log(world))
            await replayed(log)
            assert await append_all(log, [b"1", b"2", b"3"]) == [1, 2, 3]
            if back is not None:
                world.bookies[back].start()
            world.bookies["bookie-0"].stop()
            if back is None:
                with pytest.raises(UnavailableError, match="too few bookies take a recovered entry"):
                    await content(world, seed=2)
                return
            assert await content(world, seed=3) == [b"1", b"2", b"3"]
            world.bookies["bookie-0"].start()
            assert await content(world, seed=4) == [b"1", b"2", b"3"]
            world.bookies["bookie-1"].stop()
            assert await content(world, seed=5) == [b"1", b"2", b"3"]

    run(scenario)


def test_truncation_after_a_lost_answer_leaves_no_orphan() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            for frame in FRAMES:
                last = await log.append([frame])
            assert len(record_of(world).ledgers) > 3
            world.nodes.loses = lambda call: call == "set"
            with pytest.raises(NotConnectedError):
                await log.truncate(last - 20)
            world.nodes.loses = None
            for upto in (last - 10, last):
                try:
                    await log.truncate(upto)
                except NotConnectedError:
                    await log.truncate(upto)
            assert len(ledger_nodes(world)) == len(record_of(world).ledgers) == 1

    run(scenario)


def test_a_bookie_with_a_registration_of_garbage_stops_no_takeover() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"x"])
            world.nodes.nodes[f"{ROOT}/available/bookie-1"] = (b"garbage", 0)
            async with open_log(world, seed=2) as new:
                assert [frame for _, frame in await replayed(new)] == [b"x"]

    run(scenario)


def test_a_planted_deletion_by_a_deposed_owner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def discard(removals: Removals, ledger: int) -> None:
        await removals._ledgers.delete(ledger)

    monkeypatch.setattr(Removals, "discard", discard)
    finds(test_a_deposed_owner_deletes_no_ledger_that_the_record_names, "ledger does not exist")


def test_a_planted_haste_between_ledgers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rest(log: LedgerLog) -> None:
        return

    monkeypatch.setattr(LedgerLog, "_rest_if_fruitless", rest)
    finds(test_bookies_that_refuse_every_frame_cause_no_storm_of_ledgers, "< 25")
