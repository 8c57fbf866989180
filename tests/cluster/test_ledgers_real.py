"""The client of BookKeeper and the log on it, on real bookies, beside BookKeeper's own client and shell."""

from __future__ import annotations

import asyncio
import hashlib
import re
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock.model.ledgers import LedgerSpec
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.ledgers.bookkeeper import BookKeeperLedgers, open_ledgers
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import open_ledger_log
from penstock.storage.ledgers.limits import LedgerLimits, LedgerLogLimits
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.durable_log import DurableLogLaws, replayed
from penstock.testing.conformance.ledgers import HEADER, BookieLedgerLaws

pytestmark = pytest.mark.cluster

PROGRAM = Path(__file__).parents[1] / "compat" / "bookkeeper" / "JavaLedgers.java"
LIMITS = LedgerLimits(timeout_s=10.0, connect_s=10.0, rest_s=0.5)
"""Patient: a test machine that is busy must not look like a dead bookie."""
WIPE = "law_a_wipe_ends_once_what_came_before_is_truncated"


@pytest.fixture
def world(zookeeper, bookies):
    """Three bookies that serve, before and after the test."""
    bookies.start()  # on a busy machine, a bookie can lose its session, and registers again
    yield World(zookeeper.address, bookies)
    for server in bookies.servers:
        # A killed bookie stays registered until its session ends: registered does not mean that the new one serves.
        while not server.running and bookies.registered(server.port):
            time.sleep(0.1)
    bookies.start()


class World:
    def __init__(self, address: str, bookies) -> None:
        self.address = address
        self.bookies = bookies

    @asynccontextmanager
    async def client(self) -> AsyncIterator[BookKeeperLedgers]:
        async with (
            open_nodes(self.address) as nodes,
            open_ledgers(nodes, root=self.bookies.root, clock=RealClock(), rng=RealRng(), limits=LIMITS) as ledgers,
        ):
            yield ledgers

    def server(self, name: str):
        return next(one for one in self.bookies.servers if name.endswith(f":{one.port}"))

    def java(self, *arguments: object) -> str:
        """The output of BookKeeper's Java client."""
        import cluster_engines

        jars = f"{cluster_engines.jars(cluster_engines.BOOKKEEPER)}/*"
        uri = f"zk+hierarchical://{self.address}{self.bookies.root}"
        logs = self.bookies.servers[0].directory.parent / "bookie-shell" / "log4j2.xml"
        command = ["java", f"-Dlog4j2.configurationFile={logs}", "-cp", jars, str(PROGRAM), uri, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("law", laws(BookieLedgerLaws))
def test_laws_of_ledgers_hold_on_real_bookies(world: World, law: str) -> None:
    class RealLaws(BookieLedgerLaws):
        def open(self):
            return world.client()

        async def kill(self, bookie: str) -> None:
            await asyncio.to_thread(world.server(bookie).kill)

    run_conformance(RealLaws, law=law)


@pytest.mark.parametrize(
    ("law", "encrypts"),
    [*((law, True) for law in laws(DurableLogLaws)), *((law, False) for law in laws(DurableLogLaws) if law != WIPE)],
)
def test_laws_of_the_log_hold_on_real_bookies(world: World, law: str, encrypts: bool) -> None:
    clock, objects = RealClock(), MemoryObjects()
    sealing = Sealing(
        keys=lambda uid: ObjectLedgerKeys(objects, uid=uid, clock=clock), clock=clock, may_write=lambda: encrypts
    )
    path = f"/penstock/{law}-{encrypts}"

    class RealLogLaws(DurableLogLaws):
        frame_max = 5 << 20

        @asynccontextmanager
        async def open(self):
            limits = LedgerLogLimits(frame_max_bytes=self.frame_max)
            async with (
                open_nodes(world.address) as nodes,
                open_ledgers(
                    nodes, root=world.bookies.root, clock=RealClock(), rng=RealRng(), limits=LIMITS
                ) as ledgers,
                open_ledger_log(ledgers, nodes, path=path, rng=RealRng(), limits=limits, sealing=sealing) as log,
            ):
                yield log

    run_conformance(RealLogLaws, law=law)


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    async def go() -> None:
        async with asyncio.timeout(240):
            await scenario()

    asyncio.run(go())


def digest(entries: list[bytes]) -> str:
    return hashlib.sha256(b"".join(entries)).hexdigest()


async def contents(ledgers: BookKeeperLedgers, ledger: int, last: int) -> list[bytes]:
    return [data async for _, data in ledgers.read(ledger, 0, last)]


JAVA = [bytes([number]) * 100 for number in range(20)]
OURS = [HEADER, *(b"entry %d" % number for number in range(1, 31))]


def test_java_and_the_shell_read_what_we_wrote(world: World) -> None:
    async def scenario() -> None:
        async with world.client() as ledgers:
            writer = await ledgers.create(LedgerSpec(labels=(("container", b"3"),)), HEADER)
            await asyncio.gather(*(writer.add([data]) for data in OURS[1:]))
            await writer.close()
            size = sum(map(len, OURS))
            for command in ("read", "batch"):
                found = await asyncio.to_thread(world.java, command, writer.ledger)
                assert found == f"true 30 {size} 31 {digest(OURS)}"
            shown = await asyncio.to_thread(world.bookies.shell, "ledgermetadata", "-ledgerid", str(writer.ledger))
            assert "state=CLOSED" in shown
            assert "lastEntryId=30" in shown
            assert "penstock" in shown or "cGVuc3RvY2s" in shown  # newer shells print labels in Base64
            listed = await asyncio.to_thread(world.bookies.shell, "readledger", "-ledgerid", str(writer.ledger))
            assert len(re.findall(r"Eid=\d+", listed)) == 31

    run(scenario)


@pytest.mark.parametrize("dead", [False, True])
def test_we_take_over_what_java_left_open(world: World, dead: bool) -> None:
    async def scenario() -> None:
        ledger = int(await asyncio.to_thread(world.java, "write", len(JAVA), 100, "open"))
        async with world.client() as ledgers:
            if dead:
                name = (await ledgers.find(ledger)).bookies[0]
                await asyncio.to_thread(world.server(name).kill)
            info = await ledgers.take_over(ledger)
            assert (info.closed, info.last, info.size_bytes) == (True, 19, 2000)
            assert await contents(ledgers, ledger, 19) == JAVA
        assert (await asyncio.to_thread(world.java, "read", ledger)).endswith(f"20 {digest(JAVA)}")

    run(scenario)


def test_java_takes_over_what_we_left_open(world: World) -> None:
    async def scenario() -> None:
        async with world.client() as ledgers:
            writer = await ledgers.create(LedgerSpec(), HEADER)
            await asyncio.gather(*(writer.add([data]) for data in OURS[1:]))
            found = await asyncio.to_thread(world.java, "recover", writer.ledger)
            assert found == f"true 30 {sum(map(len, OURS))} 31 {digest(OURS)}"
            assert (await ledgers.take_over(writer.ledger)).last == 30

    run(scenario)


def test_the_log_goes_on_beside_the_autorecovery_daemon_when_a_bookie_dies(world: World) -> None:
    async def scenario() -> None:
        frames = [b"%d," % number * 200 for number in range(200)]
        robot = world.bookies.autorecovery()
        await asyncio.to_thread(robot.launch)
        try:
            async with (
                open_nodes(world.address) as nodes,
                open_ledgers(
                    nodes, root=world.bookies.root, clock=RealClock(), rng=RealRng(), limits=LIMITS
                ) as ledgers,
                open_ledger_log(ledgers, nodes, path="/penstock/robot", rng=RealRng()) as log,
            ):
                await replayed(log)
                await asyncio.gather(*(log.append([frame]) for frame in frames[:50]))
                under_way = asyncio.gather(*(log.append([frame]) for frame in frames[50:150]))
                await asyncio.to_thread(world.bookies.servers[0].kill)
                assert await under_way == list(range(51, 151))
                for frame in frames[150:]:
                    await log.append([frame])
            async with (
                open_nodes(world.address) as nodes,
                open_ledgers(
                    nodes, root=world.bookies.root, clock=RealClock(), rng=RealRng(), limits=LIMITS
                ) as ledgers,
                open_ledger_log(ledgers, nodes, path="/penstock/robot", rng=RealRng()) as log,
            ):
                assert [frame for _, frame in await replayed(log)] == frames
        finally:
            await asyncio.to_thread(robot.stop)

    run(scenario)
