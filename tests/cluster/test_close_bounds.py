"""A store ends in bounded time, whatever is away: bookies, coordinator, tier 2. Nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count, product
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from penstock.app.telemetry import Counters
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import PenstockError, UnavailableError
from penstock.ports.chunks import ChunkStorage
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.objects import Objects
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog, open_ledger_log
from penstock.storage.machine.files import RealFiles
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.memory.memory_signing_keys import MemorySigningKeys
from penstock.storage.object_log.bucket_record import BucketRecord
from penstock.storage.object_log.ledgers import open_object_ledgers
from penstock.storage.objects.file_objects import FileObjects
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys
from penstock.testing import FakeClock, InlineOffload, SeededRng
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from tests.cluster.object_log_kit import RECORD, WildBucket, WildObjects
from tests.cluster.virtual_time import run_virtually

CLOSE_MAX_S = 39.0
"""Controller 5 s, containers 15 s, their tasks twice 4 s, log 10 s, one after another; and what the loop's passes take."""
ANSWER_S = 10.0
"""How long the real client waits for ZooKeeper before a call fails."""
FOREVER_S = 3000.0
T = TypeVar("T")
SEGMENTS = tuple(f"shop/clicks/{number}.#epoch.0" for number in range(6))


class Stop(Exception):
    """Ends a store as an error does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """``dead`` and ``silent``: of three bookies. ``nodes``, ``tier``: "up", "fails" or "hangs"."""

    dead: int = 0
    silent: int = 0
    nodes: str = "up"
    tier: str = "up"


@dataclass(slots=True)
class Site:
    """All that outlives a store, and can be away. ``acknowledged``: bytes of each segment."""

    containers: int = 4
    close_s: float = StoreSettings().close_s
    bucket: WildBucket | None = None
    """The log is in tier 2, in this bucket; None: on bookies."""
    directory: Path | None = None
    """Tier 2 is this directory. When it hangs, each call of it hangs, also those that clean up."""
    calls_left: int = 0
    """How many calls tier 2 still answers when it begins to hang."""
    world: SimBookKeeper = field(default_factory=SimBookKeeper)
    keyvalue: MemoryKeyValue = field(default_factory=MemoryKeyValue)
    signing: MemorySigningKeys = field(default_factory=MemorySigningKeys)
    acknowledged: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SEGMENTS, 0))
    tier: str = "up"
    chunks: ChunkStorage = field(init=False)
    objects: Objects = field(init=False)
    openings: int = 0
    writers: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        if self.directory is not None:
            files = RealFiles(self.directory, self)
            self.chunks, self.objects = FileChunks(files, directory="chunks"), FileObjects(files)
            return
        self.chunks = MemoryChunks(pause=self.reach_tier)
        self.objects = MemoryObjects(before=lambda verb, name: self.reach_tier())

    async def reach_tier(self) -> None:
        if self.tier == "hangs":
            self.calls_left -= 1
            if self.calls_left < 0:
                await asyncio.sleep(FOREVER_S)
        if self.tier == "fails":
            raise UnavailableError("tier 2 does not answer")

    async def run(self, work: Callable[[], T]) -> T:
        """Implements ``ports.offload.Offload`` for the directory."""
        await self.reach_tier()
        return work()

    def begin(self, outage: Outage) -> None:
        for number, bookie in enumerate(self.world.bookies.values()):
            if number < outage.dead:
                bookie.stop()
            bookie.is_silent = number >= 3 - outage.silent
        self.world.nodes.is_down = outage.nodes != "up"
        self.world.nodes.silent_s = ANSWER_S if outage.nodes == "hangs" else 0.0
        self.tier = outage.tier

    def end(self) -> None:
        for bookie in self.world.bookies.values():
            bookie.is_silent = False
            bookie.start()
        self.world.nodes.is_down = False
        self.tier = "up"

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[tuple[SegmentStore, Controller]]:
        """As a server opens its store. Tiering and checkpoints run by themselves."""
        self.openings += 1
        rng, clock, telemetry = SeededRng(self.openings), FakeClock(), Counters()
        async with (
            self.opened_log(rng, clock) as log,
            open_segment_store(
                log,
                StoreParts(
                    keyvalue=self.keyvalue,
                    chunks=self.chunks,
                    catalogue=self.objects,
                    clock=clock,
                    rng=rng,
                    offload=InlineOffload(),
                    telemetry=telemetry,
                    settings=StoreSettings(containers=self.containers, close_s=self.close_s),
                    publications=log.publications,
                ),
            ) as store,
            open_controller(
                store,
                clock,
                rng,
                lambda _: Endpoint(host="127.0.0.1", port=1),
                telemetry,
                ControllerSettings(),
                signing=self.signing,
            ) as controller,
        ):
            yield store, controller

    @asynccontextmanager
    async def opened_log(self, rng: SeededRng, clock: FakeClock) -> AsyncIterator[LedgerLog]:
        if self.bucket is None:
            nodes = self.world.nodes
            async with (
                open_ledgers(nodes, root=ROOT, clock=clock, rng=rng, connect=self.world.connect) as ledgers,
                open_ledger_log(ledgers, nodes, path="/store", rng=rng, sealing=self.sealing(clock)) as log,
            ):
                yield log
            return
        client = ReachedObjects(self.bucket, self.reach_tier)
        async with (
            open_object_ledgers(client, clock=clock, rng=rng) as in_tier,
            open_ledger_log(in_tier, BucketRecord(client), path=RECORD, rng=rng, sealing=self.sealing(clock)) as log,
        ):
            yield log

    def sealing(self, clock: FakeClock) -> Sealing:
        """Keys of the log in the same tier 2."""
        return Sealing(keys=lambda uid: ObjectLedgerKeys(self.objects, uid=uid, clock=clock), clock=clock)

    async def write(self, store: SegmentStore, segment: str, size_bytes: int) -> None:
        done = await store.append(
            Append(
                segment=segment,
                writer=UUID(int=next(self.writers)),
                data=bytes(size_bytes),
                event_number=0,
                previous=NO_EVENT,
            )
        )
        self.acknowledged[segment] = done.end_offset

    async def load(self, store: SegmentStore, segment: str) -> None:
        """Write until the store refuses."""
        try:
            while True:
                await self.write(store, segment, 700)
                await asyncio.sleep(0.25)
        except PenstockError:
            return


class ReachedObjects(WildObjects):
    """A client of the bucket that has the log."""

    def __init__(self, bucket: WildBucket, reach: Callable[[], Awaitable[None]]) -> None:
        super().__init__(bucket)
        self._reach = reach

    async def _ask(self) -> None:
        await self._reach()
        await super()._ask()

    async def _change(self, change: Callable[[], str]) -> str:
        await self._reach()
        return await super()._change(change)


async def close_within(site: Site, outage: Outage, *, busy: bool, after_s: float, clean: bool) -> float:
    """Use a store, begin the outage, and end the store ``after_s`` later. Returns how long the end took."""
    loop = asyncio.get_running_loop()
    writers: list[asyncio.Task[None]] = []
    began_s = 0.0
    try:
        async with site.opened() as (store, controller):
            for segment in SEGMENTS:
                await store.create_segment(segment)
                await site.write(store, segment, 5000)
            await controller.scopes.create("shop")
            await asyncio.sleep(20)  # everything is tiered and checkpointed
            if busy:
                writers = [loop.create_task(site.load(store, segment)) for segment in SEGMENTS]
                writers.append(loop.create_task(create_scopes(controller)))
                await asyncio.sleep(0.3)
            site.begin(outage)
            await asyncio.sleep(after_s)
            began_s = loop.time()
            if not clean:
                raise Stop
    except Stop:
        pass
    took_s = loop.time() - began_s
    async with asyncio.timeout(60):
        await asyncio.gather(*writers)
    return took_s


async def create_scopes(controller: Controller) -> None:
    try:
        for number in range(1000):
            await controller.scopes.create(f"scope-{number}")
            await asyncio.sleep(0.25)
    except PenstockError:
        return


@pytest.mark.parametrize("answered", range(6))
def test_a_close_waits_for_no_directory_that_hangs(tmp_path: Path, answered: int) -> None:
    """A call to it is cancelled, and then cleans up with another call."""

    async def scenario() -> None:
        site = Site(directory=tmp_path, calls_left=answered)
        took_s = await close_within(site, Outage(tier="hangs"), busy=True, after_s=11.0, clean=True)
        assert took_s <= CLOSE_MAX_S
        await check_kept(site)

    run_virtually(scenario())


async def check_kept(site: Site) -> None:
    site.end()
    async with site.opened() as (store, _):
        for segment, length in site.acknowledged.items():
            assert (await store.info(segment)).length >= length, segment


def end_in_an_outage(outage: Outage, *, containers: int, busy: bool, after_s: float, clean: bool) -> None:
    async def scenario() -> None:
        site = Site(containers=containers)
        took_s = await close_within(site, outage, busy=busy, after_s=after_s, clean=clean)
        assert took_s <= CLOSE_MAX_S
        await check_kept(site)

    run_virtually(scenario())


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("after_s", [0.0, 1.0, 30.0])
@pytest.mark.parametrize("tier", ["fails", "hangs"])
def test_a_close_waits_for_no_bucket_that_has_the_log(tier: str, after_s: float, clean: bool) -> None:
    async def scenario() -> None:
        site = Site(bucket=WildBucket(delay_s=0.001))
        took_s = await close_within(site, Outage(tier=tier), busy=True, after_s=after_s, clean=clean)
        assert took_s <= CLOSE_MAX_S
        await check_kept(site)

    run_virtually(scenario())


BOOKIES = ({}, {"dead": 1}, {"dead": 2}, {"dead": 3}, {"silent": 2}, {"silent": 3}, {"dead": 1, "silent": 2})
WAYS = ("up", "fails", "hangs")


@settings(max_examples=10)
@given(
    bookies=some.sampled_from(BOOKIES),
    nodes=some.sampled_from(WAYS),
    tier=some.sampled_from(WAYS),
    containers=some.sampled_from((1, 4)),
    busy=some.booleans(),
    after_s=some.sampled_from((0.0, 0.01, 1.0, 3.0, 30.0)),
    clean=some.booleans(),
)
def test_a_close_ends_in_bounded_time_whatever_is_away(bookies, nodes, tier, containers, busy, after_s, clean) -> None:
    outage = Outage(nodes=nodes, tier=tier, **bookies)
    end_in_an_outage(outage, containers=containers, busy=busy, after_s=after_s, clean=clean)


@pytest.mark.parametrize("outage", [Outage(dead=2), Outage(silent=2)], ids=str)
def test_planted_a_close_without_a_bound_is_found(outage: Outage) -> None:
    async def scenario() -> None:
        took_s = await close_within(Site(close_s=300.0), outage, busy=True, after_s=0.0, clean=True)
        assert took_s > 300.0

    run_virtually(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("bookies", BOOKIES, ids=str)
def test_every_combination_of_outages_ends_in_bounded_time(bookies) -> None:
    for nodes, tier, containers, busy, after_s, clean in product(
        WAYS, WAYS, (1, 4), (False, True), (0.0, 1.0, 30.0), (False, True)
    ):
        outage = Outage(nodes=nodes, tier=tier, **bookies)
        end_in_an_outage(outage, containers=containers, busy=busy, after_s=after_s, clean=clean)
