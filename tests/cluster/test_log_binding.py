"""A store and its log find each other: at a first start that ends anywhere, and when two stores use one URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.app.replicated.binding import bound_log
from penstock.app.replicated.log_place import parse_log_place, read_mark
from penstock.codec.store.container_record import decode_record
from penstock.model.errors import CorruptDataError, InvalidArgumentError, NotFoundError, PenstockError
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.testing import FakeClock, SeededRng
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.bookkeeper.nodes import MemoryNodes
from penstock.testing.conformance.durable_log import replayed
from tests.cluster.ledger_log_kit import run

URL = "bookkeeper://zk:1/penstock/s"
PATH = "/penstock/s"


@asynccontextmanager
async def start(world: SimBookKeeper, data: Path, *, seed: int = 1, is_new: bool = True) -> AsyncIterator[LedgerLog]:
    """A start of a store, as far as its log."""
    data.mkdir(exist_ok=True)
    rng = SeededRng(seed)
    async with (
        open_ledgers(world.nodes, root=ROOT, clock=FakeClock(), rng=rng, connect=world.connect) as ledgers,
        bound_log(ledgers, world.nodes, parse_log_place(URL), URL, data, rng=rng, is_new=is_new, epoch_min=0) as log,
    ):
        yield log


def test_of_two_new_stores_with_one_url_one_is_refused(tmp_path: Path) -> None:
    """Both bound to it, each restart would take the log from the other, and truncate frames that only one has."""

    async def scenario(world: SimBookKeeper) -> None:
        both = asyncio.Barrier(2)
        world.nodes = MeetingNodes(world.nodes.nodes, both)

        async def first(name: str, seed: int) -> str:
            async with start(world, tmp_path / name, seed=seed) as log:
                await replayed(log)
                await log.append([name.encode()])
            return name

        outcomes = await asyncio.gather(first("a", 1), first("b", 2), return_exceptions=True)
        (owner,) = [one for one in outcomes if isinstance(one, str)]
        (refused,) = [one for one in outcomes if not isinstance(one, str)]
        assert isinstance(refused, InvalidArgumentError)
        world.nodes.both = None
        other = {"a": "b", "b": "a"}[owner]
        with pytest.raises(InvalidArgumentError, match="the log at this path belongs to another store"):
            async with start(world, tmp_path / other, seed=3):
                pass
        async with start(world, tmp_path / owner, seed=4, is_new=False) as log:
            assert [frame for _, frame in await replayed(log)] == [owner.encode()]

    run(scenario)


class MeetingNodes(MemoryNodes):
    """The first two reads of the log's record meet, before either store has created it."""

    def __init__(self, nodes: dict[str, tuple[bytes, int]], both: asyncio.Barrier) -> None:
        super().__init__(nodes)
        self.both: asyncio.Barrier | None = both
        self.met = 0

    async def read(self, path: str) -> tuple[bytes, int]:
        if path == PATH and self.both is not None and self.met < 2:
            self.met += 1
            await self.both.wait()
        return await super().read(path)


@pytest.mark.parametrize("happens", [True, False])
def test_a_first_start_that_ends_anywhere_is_repeated(tmp_path: Path, happens: bool) -> None:
    """At each call of the coordinator, which happens or does not, the process ends."""

    async def scenario(_: SimBookKeeper) -> None:
        ended = 0
        for step in range(30):
            world = SimBookKeeper()
            world.nodes = EndingNodes(world.nodes.nodes, step, happens=happens)
            data = tmp_path / f"{happens}-{step}"
            try:
                async with start(world, data) as log:
                    await replayed(log)
                    break
            except PenstockError:
                ended += 1
            world.nodes.left = None
            async with start(world, data, seed=2) as log:
                assert await replayed(log) == []
                assert await log.append([b"x"]) == 1
        else:
            pytest.fail("a start takes fewer steps")
        assert ended > 8

    run(scenario)


class EndingNodes(MemoryNodes):
    """From one call on, nothing answers: the process has ended. ``happens``: that call is still performed."""

    def __init__(self, nodes: dict[str, tuple[bytes, int]], calls: int, *, happens: bool) -> None:
        super().__init__(nodes)
        self.left: int | None = calls
        self.happens = happens

    async def _reach(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < (-1 if self.happens else 0):
            raise EndedError

    def _answer(self, call: str) -> None:
        if self.left is not None and self.left < 0:
            raise EndedError


class EndedError(PenstockError):
    """Nothing of the process goes on."""

    def __init__(self) -> None:
        super().__init__("the process has ended")


def test_a_log_that_is_missing_is_made_anew_for_new_stores_only(tmp_path: Path) -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with start(world, tmp_path / "a") as log:
            await replayed(log)
        uid = read_mark(tmp_path / "a").uid
        del world.nodes.nodes[PATH]
        with pytest.raises(CorruptDataError, match="missing in ZooKeeper"):
            async with start(world, tmp_path / "a", is_new=False):
                pass
        async with start(world, tmp_path / "a", is_new=True) as log:
            assert await replayed(log) == []
        assert decode_record(world.nodes.nodes[PATH][0]).uid == uid

    run(scenario)


def test_a_record_that_vanishes_during_the_start_is_not_made_anew(tmp_path: Path) -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with start(world, tmp_path / "a") as log:
            await replayed(log)
            await log.append([b"x"])
        world.nodes = VanishingNodes(world.nodes.nodes)
        with pytest.raises(NotFoundError):
            async with start(world, tmp_path / "a", is_new=False):
                pass
        assert PATH not in world.nodes.nodes

    run(scenario)


class VanishingNodes(MemoryNodes):
    async def read(self, path: str) -> tuple[bytes, int]:
        found = await super().read(path)
        if path == PATH:
            del self.nodes[PATH]
        return found
