"""A cluster larger than this machine: the product's placement and stores on a simulated coordinator, in virtual time.

    python -m bench.scale [--only 100x640]

Stores, keepers of the assignment, sessions and watches are those of the product; a container is a wait of the time that an
opening or a close takes here. Prints a line for each size: what the coordinator is asked, how large the map is, and
how long a start, a lost store and a drained store take. docs/explanation/scale.md says what follows.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from penstock.app.cluster.holding import UnitHost
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.node import StoreNode
from penstock.app.cluster.unit_links import UnitLinks
from penstock.app.cluster.units_router import UnitsRouter
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    HOLDERS,
    REQUESTS,
    STORES,
    TERM,
    Assignment,
    HeldContainer,
    Requests,
    StoreEntry,
    Term,
    decode_node,
    encode_node,
)
from penstock.core.cluster.assignment import next_assignment
from penstock.ports.cluster.coordination import Change, Node
from penstock.testing.fakes import START_MS
from penstock.testing.simulation.machine.coordination import SimCoordination, SimCoordinator
from penstock.testing.simulation.machine.loop import make_loop

SIZES = ((3, 16), (10, 64), (100, 64), (100, 640))
SESSION_S = 4.0
OPEN_S, CLOSE_S = 0.35, 0.2
"""An opening and a close of a container with little to replay, as `container is open` and moves on this machine show."""
CONTROLLERS = 2
START_APART_S = 1.0
"""Machines do not start at the same moment: the first one gets all containers."""
QUIET_S = 60.0
LONGEST_S = 40_000.0


@dataclass(slots=True)
class Asked:
    """What the coordinator was asked: requests by kind, and bytes of nodes that it sent."""

    requests: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0


class CountedSession(SimCoordination):
    """A session whose requests are counted."""

    asked: Asked

    async def read(self, path: str) -> Node:
        node = await SimCoordination.read(self, path)
        self.asked.requests["read"] += 1
        self.asked.sent_bytes += len(node.data)
        return node

    async def members(self, path: str) -> Sequence[str]:
        names = await SimCoordination.members(self, path)
        self.asked.requests["list"] += 1
        self.asked.sent_bytes += sum(map(len, names))
        return names

    async def multi(self, changes: Sequence[Change]) -> Sequence[int]:
        self.asked.requests["change" if changes else "sync"] += 1
        return await SimCoordination.multi(self, changes)


class Unit:
    """A container without data."""

    offline = None

    async def until_offline(self) -> None:
        await asyncio.Event().wait()

    async def flush(self) -> None:
        await asyncio.sleep(CLOSE_S)


class LoopClock:
    """Wall time that passes as the event loop's does."""

    def now_ms(self) -> int:
        return START_MS + round(asyncio.get_running_loop().time() * 1000)


@dataclass(slots=True)
class World:
    """A cluster of ``stores`` and ``containers``."""

    coordinator: SimCoordinator
    stores: int
    containers: int
    asked: Asked = field(default_factory=Asked)
    nodes: dict[str, StoreNode] = field(default_factory=dict)
    sessions: dict[str, SimCoordination] = field(default_factory=dict)
    tasks: list[asyncio.Future[Any]] = field(default_factory=list)

    def session(self, name: str = "") -> SimCoordination:
        session = self.coordinator.open()
        session.__class__ = CountedSession
        cast("CountedSession", session).asked = self.asked
        self.sessions[name] = session
        return session

    def start_store(self, name: str) -> None:
        @asynccontextmanager
        async def open_session() -> AsyncIterator[SimCoordination]:
            session = self.session(name)
            try:
                yield session
            finally:
                await session.close()

        @asynccontextmanager
        async def open_unit(number: int) -> AsyncIterator[Unit]:
            await asyncio.sleep(OPEN_S)
            yield Unit()

        router = UnitsRouter(self.containers)
        host = UnitHost(open=cast("Any", open_unit), router=router, links=UnitLinks(router.container_of))
        node = StoreNode(host, open_session=open_session, boot_clock=asyncio.get_running_loop().time)
        self.nodes[name] = node
        entry = StoreEntry(store=name, clients=f"{name}.example.org:12345", links=f"{name}.example.org:12346", pid=1)
        self.tasks.append(asyncio.ensure_future(node.run(entry)))

    def start_controller(self) -> None:
        work = keep_assignment(self.session(), containers=self.containers, clock=LoopClock())
        self.tasks.append(asyncio.ensure_future(work))

    def serving(self) -> dict[int, str]:
        found = {}
        for path, entry in self.coordinator.tree.items():
            if path.startswith(f"{HOLDERS}/"):
                held = decode_node(HeldContainer, entry.node.data)
                if held.serving:
                    found[int(path.removeprefix(f"{HOLDERS}/"))] = held.store
        return found

    def assignment(self) -> Assignment:
        return decode_node(Assignment, self.coordinator.tree[ASSIGNMENT].node.data)

    def is_balanced(self) -> bool:
        counts = Counter(self.serving().values())
        least = min(counts.get(name, 0) for name in self.nodes)
        return sum(counts.values()) == self.containers and max(counts.values()) - least <= 1


async def until(condition: Callable[[], bool], *, look_s: float) -> float:
    """Seconds of virtual time until the condition holds."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while not condition():  # noqa: ASYNC110 - it looks at the whole tree, in virtual time
        await asyncio.sleep(look_s)
    return loop.time() - since


async def life(world: World) -> dict[str, Any]:
    """Start everything, wait, lose a store, drain another. Times in seconds."""
    first = world.coordinator.open()
    nodes = {REQUESTS: Requests(), ASSIGNMENT: Assignment(), TERM: Term(term=1, controller="c")}
    for path in (STORES, HOLDERS):
        await first.create(path, b"")
    for path, node in nodes.items():
        await first.create(path, encode_node(node))
    for _ in range(CONTROLLERS):
        world.start_controller()
    for number in range(world.stores):
        world.start_store(f"store-{number:03}")
        await asyncio.sleep(START_APART_S)
    found: dict[str, Any] = {"stores": world.stores, "containers": world.containers}
    found["all served after a start"] = await until(lambda: len(world.serving()) == world.containers, look_s=0.5)
    found["balanced after"] = await until(world.is_balanced, look_s=15.0)
    found["map_bytes"] = len(encode_node(world.assignment()))
    before = world.asked.requests.total()
    await asyncio.sleep(QUIET_S)
    found["idle requests/s"] = (world.asked.requests.total() - before) / QUIET_S

    lost, drained = "store-001", "store-002"
    before, before_bytes = world.asked.requests.total(), world.asked.sent_bytes
    world.sessions[lost].cut()
    del world.nodes[lost]
    is_over = lambda: lost not in (owners := world.serving().values()) and len(owners) == world.containers  # noqa: E731
    found["lost store replaced"] = await until(is_over, look_s=0.05)
    found["requests for it"] = world.asked.requests.total() - before
    found["MB read for it"] = (world.asked.sent_bytes - before_bytes) / 1e6

    await asyncio.sleep(QUIET_S)
    node = await first.read(REQUESTS)
    await first.set(REQUESTS, encode_node(Requests(drained=(drained,))), node.version)
    found["drained after"] = await until(lambda: drained not in world.serving().values(), look_s=0.5)
    for task in world.tasks:
        task.cancel()
    await asyncio.gather(*world.tasks, return_exceptions=True)
    await first.close()
    return found


def decision_ms(stores: int, containers: int) -> float:
    """Milliseconds of CPU that one decision takes after the loss of a store."""
    names = [f"store-{number:03}" for number in range(stores)]
    owners = {number: names[number % stores] for number in range(containers)}
    before = Assignment(owners=owners, known=tuple(names))
    since = time.process_time()
    next_assignment(before, registered=names[1:], drained=(), containers=containers, now_ms=START_MS)
    return (time.process_time() - since) * 1000


def measure(stores: int, containers: int) -> dict[str, Any]:
    """One size; the same for the same code."""
    loop = make_loop(1)

    async def main() -> dict[str, Any]:
        coordinator = SimCoordinator(loop.fork("coordinator"), session_s=SESSION_S, patience_s=3.0)
        return await life(World(coordinator, stores, containers))

    found = cast("dict[str, Any]", loop.run(main(), max_seconds=LONGEST_S))
    found["ms of CPU of a decision"] = decision_ms(stores, containers)
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in found.items()}


def main() -> None:
    """Print the table, as JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--only", metavar="STORESxCONTAINERS", help="one size")
    chosen = parser.parse_args().only
    sizes = SIZES if chosen is None else [tuple(map(int, chosen.split("x")))]
    for stores, containers in sizes:
        print(json.dumps(measure(stores, containers)), flush=True)


if __name__ == "__main__":
    main()
