"""A cluster in memory: coordinator, bookies and a directory as tier 2, and stores that open containers of it.

The records of containers are in the nodes of ``bookkeeper``; all other nodes are in ``coordinator``.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from uuid import UUID

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.holding import HoldingLimits, UnitHost
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.node import NodeLimits, StoreNode
from penstock.app.cluster.passing import open_passing
from penstock.app.cluster.unit import UnitsShared, open_unit, share_units
from penstock.app.cluster.unit_links import UnitLinks
from penstock.app.cluster.units_router import UnitsRouter
from penstock.app.segments import StoreSource
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONTAINERS,
    FAILED,
    HOLDERS,
    REQUESTS,
    STORES,
    TERM,
    Assignment,
    ClusterConfig,
    HeldContainer,
    Requests,
    StoreEntry,
    Term,
    decode_node,
    encode_node,
    failed_pairs,
)
from penstock.codec.store.container_record import ContainerRecord, decode_record, encode_record
from penstock.codec.wire import commands, frames
from penstock.codec.wire.frames import Command
from penstock.core.segments.placement import container_of
from penstock.model.errors import CoordinatorUnavailableError
from penstock.net.dial.security import PLAIN
from penstock.net.wire.wire_server import InCluster, WireLimits, WireServer
from penstock.net.workers.tcp_link import LinkListener
from penstock.ports.cluster.coordination import Node, Session
from penstock.ports.data.segments import Append
from penstock.segmentstore.store import SegmentStore
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_coordination import Entry, MemoryCoordination, MemoryCoordinator, without_session
from penstock.testing.bookkeeper.bookies import SimBookKeeper

ADDRESS = ClusterAddress(hosts="zk:2181", root="/penstock/c1")
WRITER = UUID(int=7)


FAST = NodeLimits(
    claim_s=0.3, session_pause_s=0.01, retry_s=0.01, holding=HoldingLimits(pause_s=0.02, pause_max_s=0.1, close_s=5.0)
)
SECRET = bytes(32)
LEASE_S = 10.0


class LeasedSession(MemoryCoordination):
    """A session whose lease ends, if its machine is paused, before it knows of its end."""

    def __init__(self, cluster: MemoryCluster, name: str) -> None:
        super().__init__(cluster.coordinator, name)
        self._cluster = cluster
        self._paused_at_s: float | None = None

    def session(self) -> Session:
        found = super().session()
        since_s = self._cluster.clock_s if self._paused_at_s is None else self._paused_at_s
        return found if found.ended else replace(found, lease_end_s=since_s + LEASE_S)

    async def _enter(self) -> None:
        if self._paused_at_s is not None:
            await asyncio.sleep(0.5)
            raise CoordinatorUnavailableError("cut off")
        await super()._enter()

    def pause(self) -> None:
        """The coordinator ends the session, and nobody here knows."""
        self._paused_at_s = self._cluster.clock_s
        coordinator, name = self._cluster.coordinator, super().session().id
        coordinator._sessions.pop(name)
        coordinator.become(without_session(coordinator.tree, name))


@dataclass(slots=True)
class Peer:
    """A client's connection, which sends and receives single frames."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, command: Command) -> None:
        self.writer.write(frames.encode(command))
        await self.writer.drain()

    async def receive(self) -> Command | None:
        """The next frame; None: the server has closed the connection."""
        try:
            code, size = frames.HEADER.unpack(await self.reader.readexactly(frames.HEADER.size))
            return frames.decode(code, memoryview(await self.reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def ask(self, command: Command) -> Command | None:
        await self.send(command)
        return await self.receive()


@dataclass(slots=True, eq=False)
class RunningStore:
    """A store, its addresses, and its current session."""

    cluster: MemoryCluster
    name: str
    host: UnitHost
    clients: str = ""
    links: str = ""
    sessions: list[LeasedSession] = field(default_factory=list)
    node: StoreNode = field(init=False)
    task: asyncio.Task[None] = field(init=False)

    @asynccontextmanager
    async def open_session(self) -> AsyncIterator[LeasedSession]:
        session = LeasedSession(self.cluster, f"session-{next(self.cluster.ids)}")
        self.cluster.coordinator._sessions[session.session().id] = session
        self.sessions.append(session)
        try:
            yield session
        finally:
            await session.close()

    def unit(self, number: int) -> SegmentStore:
        """The open unit of a container."""
        return cast("SegmentStore", self.host.router._units[number])

    def end_session(self) -> None:
        self.cluster.coordinator.expire(self.sessions[-1].session().id)

    @asynccontextmanager
    async def peer(self) -> AsyncIterator[Peer]:
        """A client's connection."""
        host, _, port = self.clients.rpartition(":")
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        try:
            await peer.ask(commands.Hello(17, 5))
            yield peer
        finally:
            peer.writer.close()


@dataclass(slots=True)
class MemoryCluster:
    """``path``: where tier 2 and the directories of stores are."""

    path: Path
    containers: int = 4
    bookkeeper: SimBookKeeper = field(default_factory=SimBookKeeper)
    rng: RealRng = field(default_factory=RealRng)
    coordinator: MemoryCoordinator = field(default_factory=MemoryCoordinator)
    ids: Iterator[int] = field(default_factory=itertools.count)
    clock_s: float = 0.0
    """What CLOCK_BOOTTIME shows on all machines."""

    def __post_init__(self) -> None:
        (self.path / "tier2").mkdir()
        for number in range(self.containers):
            record = ContainerRecord(uid=str(self.rng.uuid()))
            self.bookkeeper.nodes.nodes[self.record_path(number)] = (encode_record(record), 0)
        nodes = {
            STORES: b"",
            HOLDERS: b"",
            TERM: encode_node(Term(term=1, controller="c")),
            REQUESTS: encode_node(Requests()),
            ASSIGNMENT: encode_node(Assignment()),
        }
        self.coordinator.tree = {path: Entry(Node(data=data, version=0)) for path, data in nodes.items()}

    @property
    def config(self) -> ClusterConfig:
        return ClusterConfig(
            cluster="c1", containers=self.containers, ledgers="/ledgers", tier2=str(self.path / "tier2")
        )

    def record_path(self, number: int) -> str:
        return f"{ADDRESS.root}/{CONTAINERS}/{number}"

    def record(self, number: int) -> ContainerRecord:
        return decode_record(self.bookkeeper.nodes.nodes[self.record_path(number)][0])

    @asynccontextmanager
    async def shared(self, store: str) -> AsyncIterator[UnitsShared]:
        """What the units of one store share."""
        clock = RealClock()
        async with AsyncExitStack() as stack:
            offload = ThreadOffload()
            stack.push_async_callback(offload.close)
            nodes = self.bookkeeper.nodes
            ledgers = await stack.enter_async_context(
                open_ledgers(nodes, root="/ledgers", clock=clock, rng=self.rng, connect=self.bookkeeper.connect)
            )
            source = StoreSource(clock=clock, rng=self.rng, offload=offload, telemetry=Counters())
            base = EmbeddedSettings(data=self.path / store)
            yield share_units(ADDRESS, self.config, base, nodes=nodes, ledgers=ledgers, source=source)

    def assign(self, owners: Mapping[int, str]) -> None:
        """What a controller does."""
        self._put(ASSIGNMENT, encode_node(Assignment(owners=owners)))

    def request(self, *, drained: Sequence[str]) -> None:
        """What an operator does."""
        self._put(REQUESTS, encode_node(Requests(drained=tuple(drained))))

    def failed(self) -> frozenset[tuple[int, str]]:
        """The containers and stores that could not open them."""
        return failed_pairs(path.removeprefix(f"{FAILED}/") for path in self.coordinator.tree)

    @asynccontextmanager
    async def keeping_assignment(self) -> AsyncIterator[None]:
        """A controller that places containers until the block ends."""
        session = self.coordinator.open()
        keeping = asyncio.create_task(keep_assignment(session, containers=self.containers, clock=RealClock()))
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
            await session.close()

    def elect(self, term: int) -> None:
        self._put(TERM, encode_node(Term(term=term, controller="c")))

    def _put(self, path: str, data: bytes) -> None:
        version = self.coordinator.tree[path].node.version + 1
        self.coordinator.become({**self.coordinator.tree, path: Entry(Node(data=data, version=version))})

    def held(self) -> dict[int, HeldContainer]:
        """The registrations of containers."""
        found = {
            int(path.removeprefix(f"{HOLDERS}/")): decode_node(HeldContainer, entry.node.data)
            for path, entry in self.coordinator.tree.items()
            if path.startswith(f"{HOLDERS}/")
        }
        return dict(sorted(found.items()))

    def serving(self) -> dict[int, str]:
        """Which store serves each container."""
        return {number: entry.store for number, entry in self.held().items() if entry.serving}

    @asynccontextmanager
    async def store(
        self, name: str, *, answers_always: bool = False, limits: NodeLimits = FAST
    ) -> AsyncIterator[RunningStore]:
        """A store that runs until the block ends. ``answers_always``: the planted bug of one that ignores its lease."""
        async with AsyncExitStack() as stack:
            shared = await stack.enter_async_context(self.shared(name))
            router = UnitsRouter(self.containers)
            links = UnitLinks(router.container_of)
            host = UnitHost(open=lambda number: open_unit(number, shared), router=router, links=links)
            running = RunningStore(self, name, host)
            node = running.node = StoreNode(
                host, open_session=running.open_session, boot_clock=lambda: self.clock_s, limits=limits
            )

            def answer_check() -> Callable[[], bool]:
                check = node.answer_check()
                return lambda: answers_always or check()

            passing = await stack.enter_async_context(
                open_passing(
                    router.is_here,
                    lambda segment: node.client_address(router.container_of(segment)),
                    security=PLAIN,
                    rng=self.rng,
                    telemetry=Counters(),
                )
            )
            wire = await stack.enter_async_context(
                WireServer(
                    router,
                    port=0,
                    rng=self.rng,
                    telemetry=Counters(),
                    limits=WireLimits(drain_s=2.0),
                    guard=links.guard,
                    in_cluster=InCluster(answer_check=answer_check, pass_on=passing),
                )
            )
            listener = await stack.enter_async_context(
                LinkListener(
                    "127.0.0.1",
                    0,
                    cluster="c1",
                    secret=SECRET,
                    rng=self.rng,
                    accept=links.accept,
                    answer_check=answer_check,
                )
            )
            running.clients, running.links = f"127.0.0.1:{wire.port}", f"127.0.0.1:{listener.port}"
            entry = StoreEntry(store=name, clients=running.clients, links=running.links, pid=1)
            running.task = asyncio.create_task(running.node.run(entry))
            try:
                yield running
            finally:
                running.task.cancel()
                await asyncio.wait({running.task})
            if not running.task.cancelled():
                running.task.result()

    def owns(self, number: int, name: str) -> bool:
        """Whether the container owns the segment."""
        return container_of(name, self.containers) == number

    def segment_of(self, number: int) -> str:
        """The name of a segment that belongs to the container."""
        names = (f"shop/s{count}/0.#epoch.0" for count in range(1000))
        return next(name for name in names if self.owns(number, name))


async def write(store: SegmentStore, segment: str, events: Iterable[int]) -> None:
    """Events of eight bytes each, with these numbers."""
    previous = await store.setup_append(segment, WRITER)
    for number in events:
        data = number.to_bytes(8, "big")
        await store.append(
            Append(segment=segment, writer=WRITER, data=data, event_number=number, event_count=1, previous=previous)
        )
        previous = number


async def numbers(store: SegmentStore, segment: str) -> list[int]:
    """The events of a segment."""
    info = await store.info(segment)
    found = b""
    while len(found) < info.length:
        read = await store.read(segment, len(found), 1 << 20, wait=False)
        found += b"".join(bytes(part) for part in read.parts)
    return [int.from_bytes(found[at : at + 8], "big") for at in range(0, len(found), 8)]


DEADLINE_S = 20.0


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def until_serving(cluster: MemoryCluster, owners: dict[int, str]) -> None:
    await until(lambda: cluster.serving() == owners)
