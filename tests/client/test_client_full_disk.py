"""A full disk is reported within seconds to callers, and waited out by what works in the background or writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from client_world import World, read_all, simulate

from penstock.client.store import AsyncStore
from penstock.model.errors import StorageFullError
from penstock.ports.control.transactions import TransactionStatus
from penstock.testing.fakes import SeededRng
from tests.flat_control import SUBJECTS, Around

READS = (
    "layout.current",
    "streams.describe",
    "policies.effective",
    "streams.config",
    "groups.get",
    "cuts.head",
    "info",
    "cuts.is_valid",
    "subscribers.list",
    "read",
    "layout.ranges",
    "cuts.segments_between",
    "setup_append",
    "layout.successors",
    "table_get",
    "cuts.tail",
    "transactions.status",
)
SOON_S = 5


class FullDisk:
    """A service whose disk can be full: then every call that stores something is refused, those named in ``only`` alone."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.full = False
        self.only: tuple[str, ...] = ()
        self.refused: list[str] = []

    submit_append = withdraw_appends = open_direct = None

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return getattr(Around(self._inner, self._checked), name)
        return self._checked(name, getattr(self._inner, name))

    def _checked(self, name: str, call: Callable[..., Any]) -> Any:
        if name.startswith("_") or name in READS:
            return call

        async def stored(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(0)
            if self.full and (not self.only or name in self.only):
                self.refused.append(name)
                raise StorageFullError("disk is full", call=name)
            return await call(*arguments, **named)

        return stored


class Full:
    """A store of two streams with a group, whose disk is full on request."""

    def __init__(self, world: World) -> None:
        self.loop = world.loop
        self.disks = [FullDisk(world.real_segments), FullDisk(world.controller)]
        self.store = AsyncStore(*self.disks, world.clock, SeededRng(world.loop.fork("full")))  # type: ignore[arg-type]

    def fill(self, *only: str) -> None:
        for disk in self.disks:
            disk.full, disk.only = True, only

    def heal(self) -> None:
        for disk in self.disks:
            disk.full = False

    @property
    def refused(self) -> list[str]:
        return [name for disk in self.disks for name in disk.refused]


async def opened(world: World) -> Full:
    full = Full(world)
    await full.store.create_stream("a/s", create_scope=True)
    async with full.store.stream("a/s").writer() as writer:
        await writer.write(b"1", "k")
    return full


async def group_of(full: Full, **named: Any) -> Any:
    return await full.store.reader_group("a/g", ["a/s"], start="head", **named)


async def begin(full: Full) -> Callable[[], Awaitable[Any]]:
    return full.store.stream("a/s").transaction().open


async def ping(full: Full) -> Callable[[], Awaitable[Any]]:
    txn = full.store.stream("a/s").transaction()
    await txn.open()
    return txn.ping


async def commit(full: Full) -> Callable[[], Awaitable[Any]]:
    txn = full.store.stream("a/s").transaction()
    await txn.open()
    await txn.write(b"2", "k")
    await txn.flush()
    return txn.commit


async def abort(full: Full) -> Callable[[], Awaitable[Any]]:
    txn = full.store.stream("a/s").transaction()
    await txn.open()
    return txn.abort


async def create_group(full: Full) -> Callable[[], Awaitable[Any]]:
    return lambda: group_of(full)


async def create_state(full: Full) -> Callable[[], Awaitable[Any]]:
    del full.disks[1:]  # The controller has room to record the group, whose state finds none.
    return lambda: group_of(full)


async def join(full: Full) -> Callable[[], Awaitable[Any]]:
    return (await group_of(full)).reader("r").open


async def leave(full: Full) -> Callable[[], Awaitable[Any]]:
    reader = (await group_of(full)).reader("r")
    await reader.open()
    return reader.close


async def checkpoint(full: Full) -> Callable[[], Awaitable[Any]]:
    return (await group_of(full)).checkpoint


async def publish(full: Full) -> Callable[[], Awaitable[Any]]:
    group = await group_of(full, retention="manual")
    tail = await full.store.stream("a/s").tail()
    return lambda: group.publish(tail)


async def remove_reader(full: Full) -> Callable[[], Awaitable[Any]]:
    group = await group_of(full)
    await group.reader("r").open()
    return lambda: group.remove_reader("r")


async def reset(full: Full) -> Callable[[], Awaitable[Any]]:
    await group_of(full)
    return lambda: full.store.reset_reader_group("a/g", "tail")


async def delete_group(full: Full) -> Callable[[], Awaitable[Any]]:
    return (await group_of(full)).delete


CALLS = [
    begin,
    ping,
    commit,
    abort,
    create_group,
    create_state,
    join,
    leave,
    checkpoint,
    publish,
    remove_reader,
    reset,
    delete_group,
]


@pytest.mark.parametrize("prepare", CALLS, ids=lambda call: call.__name__)
def test_a_full_disk_is_reported_to_a_caller_within_seconds(prepare: Callable[[Full], Awaitable[Any]]) -> None:
    async def test(world: World) -> None:
        full = await opened(world)
        call = await prepare(full)
        full.fill()
        began = world.loop.time()
        with pytest.raises(StorageFullError):
            await call()
        assert world.loop.time() - began < SOON_S
        assert len(full.refused) > 1, "a disk that is full for a moment must not be reported"

    simulate(test)


def test_a_commit_that_found_no_space_is_asked_for_again() -> None:
    async def test(world: World) -> None:
        full = await opened(world)
        txn = full.store.stream("a/s").transaction()
        await txn.open()
        await txn.write(b"2", "k")
        await txn.flush()
        full.fill("transactions.commit")
        with pytest.raises(StorageFullError):
            await txn.commit()
        full.heal()
        await txn.commit()
        assert await txn.status() is TransactionStatus.COMMITTED
        assert await read_all(world.safe.stream("a/s")) == [b"1", b"2"]

    simulate(test)


@pytest.mark.parametrize("full_s", [20, 50])
def test_a_reader_that_runs_outlasts_a_full_disk(full_s: int) -> None:
    async def test(world: World) -> None:
        full = await opened(world)
        group = await full.store.reader_group(
            "a/g", ["a/s"], start="head", retention="automatic", checkpoint_interval_s=1
        )
        async with group.reader("r") as reader:
            events = aiter(reader)
            assert (await anext(events)).data == b"1"
            full.fill()
            await asyncio.sleep(full_s)
            assert full.refused
            full.heal()
            async with world.safe.stream("a/s").writer() as writer:
                await writer.write(b"2", "k")
            assert (await anext(events)).data == b"2"

    simulate(test)


def test_a_transaction_that_waits_for_its_caller_keeps_its_lease_over_a_full_disk() -> None:
    async def test(world: World) -> None:
        full = await opened(world)
        txn = full.store.stream("a/s").transaction(lease_s=60)
        await txn.open()
        await txn.write(b"2", "k")
        full.fill("transactions.ping")
        await asyncio.sleep(40)
        assert "transactions.ping" in full.refused
        full.heal()
        await txn.commit()
        assert await read_all(world.safe.stream("a/s")) == [b"1", b"2"]

    simulate(test)


def test_a_writer_whose_segment_is_replaced_waits_for_space_up_to_its_deadline() -> None:
    async def test(world: World) -> None:
        full = await opened(world)
        async with full.store.stream("a/s").writer(deadline_s=30) as writer:
            await writer.write(b"2", "k")
            await writer.flush()
            await world.safe.stream("a/s").scale(2)
            full.fill()
            world.loop.call_later(20, full.heal)
            await writer.write(b"3", "k")
            await writer.flush()
        assert await read_all(world.safe.stream("a/s")) == [b"1", b"2", b"3"]

    simulate(test)
