"""Each thing that can be wrong with a cluster is one finding, and a sound cluster has none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.cluster.init import ClusterPlan, create_nodes
from penstock.app.cluster.operations.doctor import Surroundings, examine
from penstock.codec.ledger_metadata import Ensemble, LedgerMetadata, encode_ledger_metadata, ledger_path
from penstock.codec.store.cluster_nodes import (
    CONFIG,
    CONTAINERS,
    CONTROLLERS,
    FEATURES,
    HOLDERS,
    LEADER,
    REQUESTS,
    STORES,
    ControllerEntry,
    FailedOpening,
    HeldContainer,
    Requests,
    StoreEntry,
    Term,
    encode_node,
    failed_path,
)
from penstock.codec.store.container_record import CataloguePosition, decode_record, encode_record
from penstock.core.cluster.diagnosis import CLOCK_MS_MAX, ORPHAN_AGE_MS, LedgerFacts, clock_findings, orphan_findings
from penstock.core.cluster.levels import LEVEL
from penstock.storage.ledgers.inspection import open_inspection
from penstock.storage.ledgers.takeover import APPLICATION
from penstock.storage.memory.memory_coordination import MemoryCoordination, MemoryCoordinator
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.fakes import START_MS, FakeClock, SeededRng
from tests.cluster.damage_kit import put
from tests.cluster.ledger_log_kit import BOOKIE_LIMITS
from tests.cluster.virtual_time import run_virtually

COUNT = 2


@dataclass(slots=True)
class World:
    """A cluster in memory that is sound: two containers, one store that serves them, an active controller, three bookies."""

    coordinator: MemoryCoordinator = field(default_factory=MemoryCoordinator)
    bookkeeper: SimBookKeeper = field(default_factory=SimBookKeeper)
    objects: MemoryObjects = field(default_factory=MemoryObjects)
    created_ms: dict[str, int] = field(default_factory=dict)
    own_ahead_ms: int = 0
    session: MemoryCoordination = field(init=False)

    async def fill(self) -> None:
        self.session = self.coordinator.open()
        instance = self.bookkeeper.nodes.nodes[f"{ROOT}/INSTANCEID"][0].decode()
        config = ClusterPlan(tier2="s3://bucket/tests", containers=COUNT).config(
            "ours", bookkeeper=instance, incarnation="one"
        )
        await create_nodes(self.session, config, self.objects, SeededRng(1), secret="new")
        await self.store("a")
        entry = ControllerEntry(
            controller="c", grpc="c:1", http="c:2", active=True, pid=1, level=LEVEL, at_ms=START_MS, secret="new"
        )
        await self.session.register(f"{CONTROLLERS}/c", encode_node(entry))
        await self.session.register(LEADER, encode_node(Term(term=1, controller="c")))
        for number in range(COUNT):
            held = HeldContainer(store="a", clients="a:1", links="a:2", serving=True)
            await self.session.register(f"{HOLDERS}/{number}", encode_node(held))

    async def store(self, name: str, **fields: Any) -> None:
        given: dict[str, Any] = {
            "clients": f"{name}:1",
            "links": f"{name}:2",
            "level": LEVEL,
            "at_ms": START_MS,
            "secret": "new",
        }
        entry = StoreEntry(**{"store": name, "pid": 1, **given, **fields})
        await self.session.register(f"{STORES}/{name}", encode_node(entry))

    async def put(self, path: str, data: bytes | None) -> None:
        await put(self.coordinator, path, data)

    def ledger(self, number: int, log: str, *, age_ms: int) -> None:
        metadata = LedgerMetadata(
            write_quorum=3,
            ack_quorum=2,
            ensembles=(Ensemble(first_entry=0, bookies=tuple(sorted(self.bookkeeper.bookies))),),
            created_ms=START_MS - age_ms,
            custom=(APPLICATION, ("log", log.encode())),
        )
        self.bookkeeper.nodes.nodes[f"{ROOT}/{ledger_path(number)}"] = (encode_ledger_metadata(metadata), 0)

    async def uid(self, number: int) -> str:
        return decode_record((await self.session.read(f"{CONTAINERS}/{number}")).data).uid

    async def findings(self) -> list[tuple[bool, str]]:
        async def created_ms(path: str) -> int:
            return self.created_ms.get(path, START_MS)

        @asynccontextmanager
        async def inspect(_: object) -> Any:
            world = self.bookkeeper
            async with open_inspection(world.nodes, root=ROOT, limits=BOOKIE_LIMITS, connect=world.connect) as found:
                yield found

        around = Surroundings(created_ms=created_ms, inspect=inspect, objects=lambda _: self.objects)
        found = await examine(self.session, around, clock=FakeClock(), own_ahead_ms=self.own_ahead_ms)
        assert found.is_wrong == any(one.wrong for one in found.findings)
        assert all(one.action for one in found.findings)
        return [(one.wrong, str(one)) for one in found.findings]


Spoil = Callable[[World], Awaitable[None]]


async def other_bookkeeper(world: World) -> None:
    world.bookkeeper.nodes.nodes[f"{ROOT}/INSTANCEID"] = (b"other", 0)


async def other_tier(world: World) -> None:
    await world.objects.delete("clusters/ours")
    await world.objects.put("clusters/theirs", b"{}")


async def shared_tier(world: World) -> None:
    await world.objects.put("clusters/theirs", b"{}")


async def damaged_mark(world: World) -> None:
    await other_part(world)
    await world.objects.delete("container-1/STORE")
    await world.objects.put("container-1/STORE", b"{")


async def newer_mark(world: World) -> None:
    await other_part(world)
    await world.objects.delete("container-1/STORE")
    await world.objects.put("container-1/STORE", b'{"format": 99}')


async def other_part(world: World) -> None:
    record = decode_record((await world.session.read(f"{CONTAINERS}/1")).data)
    record = replace(record, epoch=1, catalogues=((1, CataloguePosition(batch=1)),))
    await world.put(f"{CONTAINERS}/1", encode_record(record))
    await world.objects.put("container-1/STORE", b'{"format": 1, "store": "theirs"}')


async def same_address(world: World) -> None:
    await world.store("b", clients="a:1")


async def too_old(world: World) -> None:
    await world.put(FEATURES, b'{"format": 1, "level": 99}')


async def read_only(world: World) -> None:
    nodes, name = world.bookkeeper.nodes.nodes, min(world.bookkeeper.bookies)
    nodes[f"{ROOT}/available/readonly/{name}"] = nodes.pop(f"{ROOT}/available/{name}")


async def one_bookie(world: World) -> None:
    for name in sorted(world.bookkeeper.bookies)[1:]:
        del world.bookkeeper.nodes.nodes[f"{ROOT}/available/{name}"]


async def silent_bookie(world: World) -> None:
    world.bookkeeper.bookies[min(world.bookkeeper.bookies)].stop()


async def half_created(world: World) -> None:
    for path in (*(f"{CONTAINERS}/{number}" for number in range(COUNT)), CONTAINERS, CONFIG):
        await world.put(path, None)


async def wrong_clock(world: World) -> None:
    world.created_ms[f"{STORES}/a"] = START_MS - 60_000


async def own_clock(world: World) -> None:
    world.own_ahead_ms = -7_000


async def orphan(world: World) -> None:
    world.ledger(7, await world.uid(0), age_ms=2 * ORPHAN_AGE_MS)
    world.ledger(8, await world.uid(0), age_ms=ORPHAN_AGE_MS // 2)
    world.ledger(9, "of another cluster", age_ms=2 * ORPHAN_AGE_MS)


async def unserved(world: World) -> None:
    await world.put(f"{HOLDERS}/1", None)
    failure = FailedOpening(store="a", container=1, reason="disk full")
    await world.session.register(failed_path(1, "a"), encode_node(failure))


async def all_unserved(world: World) -> None:
    for number in range(COUNT):
        await world.put(f"{HOLDERS}/{number}", None)
    await world.put(f"{STORES}/a", None)


async def served_elsewhere(world: World) -> None:
    for number in range(COUNT):
        failure = FailedOpening(store="b", container=number, reason="another secret")
        await world.session.register(failed_path(number, "b"), encode_node(failure))


async def elected_only(world: World) -> None:
    entry = ControllerEntry(controller="c", grpc="c:1", http="c:2", active=False, pid=1, level=LEVEL, at_ms=START_MS)
    await world.put(f"{CONTROLLERS}/c", encode_node(entry))


async def disabled(world: World) -> None:
    await world.put(f"{HOLDERS}/1", None)
    await world.put(REQUESTS, encode_node(Requests(disabled={1: "repair"})))


async def no_controller(world: World) -> None:
    await world.put(f"{CONTROLLERS}/c", None)


async def damaged(world: World) -> None:
    await world.put(f"{CONTAINERS}/0", b"{")


async def upgrade(world: World) -> None:
    await world.store("b", level=LEVEL + 1)


CASES: dict[str, tuple[Spoil, list[tuple[bool, str]]]] = {
    "BookKeeper with another INSTANCEID": (other_bookkeeper, [(True, "BookKeeper: it is not the one of the cluster")]),
    "tier 2 of another cluster": (
        other_tier,
        [(True, "tier 2: it lacks the mark of this cluster; it has that of theirs")],
    ),
    "tier 2 of two clusters": (shared_tier, [(True, "tier 2: cluster theirs uses it too")]),
    "a part of tier 2 of another log": (other_part, [(True, "container 1: its part of tier 2 belongs to another log")]),
    "a damaged mark of a part": (
        damaged_mark,
        [(True, "container 1: the mark of its part of tier 2 cannot be read: mark of tier 2 cannot be read")],
    ),
    "a mark of a newer version": (
        newer_mark,
        [(True, "container 1: the mark of its part of tier 2 cannot be read")],
    ),
    "two processes with one address": (
        same_address,
        [(True, "store a (clients) and store b (clients): they show the same address a:1")],
    ),
    "a cluster above this version": (
        too_old,
        [
            (True, "this command: its version writes formats"),
            (True, "controller c: it is too old"),
            (True, "store a: it is too old"),
        ],
    ),
    "a read-only bookie": (
        read_only,
        [
            (True, "bookies: 2 bookies can be written to, so new ledgers have 2 copies"),
            (True, "bookie bookie-0: it is read-only"),
        ],
    ),
    "fewer bookies than copies": (one_bookie, [(True, "bookies: 1 bookie can be written to, but appends need 2")]),
    "a bookie that does not answer": (
        silent_bookie,
        [(True, "bookies: 2 bookies"), (True, "bookie bookie-0: it is registered, but accepts no connections")],
    ),
    "a half-initialised namespace": (half_created, [(True, "ZooKeeper: the creation of the cluster was not finished")]),
    "a clock that differs": (wrong_clock, [(True, "store a: its clock was 60 s ahead of ZooKeeper's")]),
    "our clock differs": (own_clock, [(True, "this machine: its clock was 7 s behind ZooKeeper's")]),
    "an orphan ledger": (orphan, [(False, "ledger 7: it is older than a day, and no record names it")]),
    "a container without an owner": (
        unserved,
        [(True, "container 1: not served: could not be opened by a: disk full")],
    ),
    "all containers for one reason": (
        all_unserved,
        [(True, "containers 0, 1: not served: no store is up. To do: start")],
    ),
    "a store that could not open containers": (
        served_elsewhere,
        [(False, "containers 0, 1: could not be opened by b: another secret; another store serves")],
    ),
    "a controller that does not reach all": (elected_only, [(True, "controllers: none is active: c was elected")]),
    "a disabled container": (disabled, [(False, "container 1: disabled: repair")]),
    "no controller": (no_controller, [(True, "controllers: none is up")]),
    "a damaged record": (damaged, [(True, "node containers/0: it is damaged")]),
    "an upgrade that is not finished": (upgrade, [(False, "versions: an upgrade is not finished")]),
}


def test_a_sound_cluster_has_no_findings() -> None:
    async def main() -> None:
        world = World()
        await world.fill()
        assert await world.findings() == []

    run_virtually(main())


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_found_and_nothing_else(case: str) -> None:
    spoil, expected = CASES[case]

    async def main() -> None:
        world = World()
        await world.fill()
        await spoil(world)
        found = await world.findings()
        assert len(found) == len(expected), found
        for (wrong, text), (is_wrong, beginning) in zip(found, expected, strict=True):
            assert wrong == is_wrong
            assert text.startswith(beginning), text
            assert ". To do: " in text
            assert "\n" not in text

    run_virtually(main())


def test_an_engine_that_does_not_answer_is_a_finding_and_hides_nothing_else() -> None:
    async def main() -> None:
        world = World()
        await world.fill()
        await world.put(f"{HOLDERS}/1", None)
        world.bookkeeper.nodes.is_down = True

        async def refuse(verb: str, name: str) -> None:
            raise OSError("network is down")

        world.objects._before = refuse
        subjects = [text.partition(":")[0] for _, text in await world.findings()]
        assert sorted(subjects) == ["BookKeeper", "container 1", "tier 2"]

    asyncio.run(main())


@given(st.dictionaries(st.sampled_from("abc"), st.integers(-20_000, 20_000)))
def test_a_clock_is_reported_if_it_differs_by_more_than_the_bound(ahead_ms: dict[str, int]) -> None:
    assert [one.subject for one in clock_findings(ahead_ms)] == [
        name for name, ahead in sorted(ahead_ms.items()) if abs(ahead) > CLOCK_MS_MAX
    ]


@given(
    ledgers=st.lists(
        st.builds(
            LedgerFacts,
            ledger=st.integers(0, 20),
            log=st.sampled_from(["ours", "theirs", None]),
            created_ms=st.sampled_from([None, START_MS, START_MS - ORPHAN_AGE_MS]),
        ),
        unique_by=lambda one: one.ledger,
    ),
    named=st.frozensets(st.integers(0, 20)),
)
def test_only_old_ledgers_of_our_logs_that_no_record_names_are_orphans(
    ledgers: list[LedgerFacts], named: frozenset[int]
) -> None:
    found = orphan_findings(ledgers, named=named, logs={"ours"}, now_ms=START_MS)
    assert [one.subject for one in found] == [
        f"ledger {one.ledger}"
        for one in sorted(ledgers, key=lambda one: one.ledger)
        if one.log == "ours" and one.ledger not in named and one.created_ms == START_MS - ORPHAN_AGE_MS
    ]
