"""A node of a cluster that is damaged or missing stops nothing else, and what needs it goes on once it is repaired."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.app.cluster.holding import Holding, HoldingLimits, UnitHost
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.lines import open_lines
from penstock.app.cluster.registration import FailedOpenings, Registration
from penstock.app.cluster.unit_links import UnitLinks
from penstock.app.cluster.units_router import UnitsRouter
from penstock.codec.store.cluster_nodes import ASSIGNMENT, HOLDERS, LEADER, REQUESTS, TERM, HeldContainer, encode_node
from penstock.model.errors import NodeNotFoundError, SessionEndedError
from penstock.segmentstore.store import SegmentStore
from tests.cluster.cluster_kit import CONTAINERS, Candidate, LoopClock, assignment, join, new_cluster, until_leading
from tests.cluster.cluster_kit import until as until_assigned
from tests.cluster.damage_kit import DAMAGES, damages, put
from tests.cluster.store_node_kit import MemoryCluster, run, until, until_serving
from tests.cluster.virtual_time import run_virtually


@damages
@pytest.mark.parametrize("path", [ASSIGNMENT, REQUESTS])
def test_the_assignment_is_kept_again_once_a_node_is_repaired(path: str, damage: bytes | None) -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        whole = await put(coordinator, path, damage)
        keeping = asyncio.ensure_future(keep_assignment(session, containers=CONTAINERS, clock=LoopClock()))
        await join(coordinator, "a")
        await asyncio.sleep(30)
        assert not keeping.done(), "a controller must not end"
        await put(coordinator, path, whole)
        await until_assigned(session, lambda found: set(found.owners.values()) == {"a"})
        keeping.cancel()
        await asyncio.wait({keeping})
        assert len((await assignment(session)).owners) == CONTAINERS

    run_virtually(main())


@damages
@pytest.mark.parametrize("path", [TERM, LEADER])
def test_a_controller_is_elected_once_a_node_is_repaired(path: str, damage: bytes | None) -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        whole = await put(coordinator, path, damage)
        one, other = Candidate(coordinator.open(), "one"), Candidate(coordinator.open(), "other")
        await asyncio.sleep(30)
        assert not one.task.done()
        assert not other.task.done()
        assert [one.term, other.term] == [None, None] or (path, damage) == (LEADER, None)
        await put(coordinator, path, whole)
        (first,) = await until_leading(one, other)
        first.stop.set()
        await first.task
        await until_leading(one if first is other else other)
        for candidate in (one, other):
            candidate.task.cancel()
        await asyncio.wait({one.task, other.task})

    run_virtually(main())


@pytest.mark.parametrize(
    "damage",
    [data for data in DAMAGES.values() if data != DAMAGES["no fields"]],  # an assignment without owners is valid
)
def test_a_store_serves_its_containers_while_the_assignment_is_damaged(tmp_path: Path, damage: bytes | None) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            units = a.unit(0), a.unit(1)
            await put(cluster.coordinator, ASSIGNMENT, damage)
            await asyncio.sleep(0.1)
            assert not a.task.done()
            assert (a.unit(0), a.unit(1)) == units
            assert units[0].offline is units[1].offline is None
            await put(cluster.coordinator, ASSIGNMENT, None)
            await put(cluster.coordinator, ASSIGNMENT, b"")
            cluster.assign({0: "a", 2: "a"})
            await until_serving(cluster, {0: "a", 2: "a"})

    run(main())


@damages
def test_a_damaged_registration_keeps_only_its_own_container_from_being_served(
    tmp_path: Path, damage: bytes | None
) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        if damage is not None:
            await put(cluster.coordinator, f"{HOLDERS}/0", damage)
        async with cluster.store("a") as a:
            cluster.assign({0: "a", 1: "a"})
            await until(lambda: 1 in a.host.router._units)
            if damage is not None:
                assert 0 not in a.host.router._units
                await put(cluster.coordinator, f"{HOLDERS}/0", None)
            await until_serving(cluster, {0: "a", 1: "a"})
            # By hand, while it is served.
            await put(cluster.coordinator, f"{HOLDERS}/0", damage)
            cluster.assign({1: "a"})
            await until(lambda: 0 not in a.node.states())
            assert not a.task.done()
            assert a.unit(1).offline is None

    run(main())


@damages
def test_the_links_to_other_containers_survive_a_damaged_registration(damage: bytes | None) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            coordinator = await new_cluster(2)
            dialled: list[str] = []

            async def dial(container: int, address: str, handlers: object) -> Any:
                dialled.append(address)
                await asyncio.Event().wait()

            held = encode_node(HeldContainer(store="b", clients="b:1", links="b:2", serving=True))
            async with open_lines(coordinator.open(), dial, containers=2) as lines:
                await put(coordinator, f"{HOLDERS}/0", damage)
                await put(coordinator, f"{HOLDERS}/1", held)
                await until(lambda: "b:2" in dialled)
                await put(coordinator, f"{HOLDERS}/0", held)
                await until(lambda: len(dialled) > 1)
                assert lines.failure is None

    asyncio.run(main())


def test_a_registration_of_another_session_is_neither_changed_nor_deleted() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session, other = coordinator.open(), coordinator.open()
        entry = HeldContainer(store="a", clients="a:1", links="a:2", serving=False, session=session.session().id)
        registration = Registration(session, f"{HOLDERS}/0", HeldContainer)
        await registration.take(lambda: encode_node(entry))
        await put(coordinator, f"{HOLDERS}/0", None)
        foreign = encode_node(replace(entry, store="b", session=other.session().id))
        await other.register(f"{HOLDERS}/0", foreign)
        with pytest.raises(NodeNotFoundError, match="another session"):
            await registration.set(encode_node(replace(entry, serving=True)))
        await registration.drop()
        assert (await other.read(f"{HOLDERS}/0")).data == foreign

    asyncio.run(main())


@pytest.mark.parametrize("end", ["session", "released", "cancelled"])
def test_no_error_of_a_container_is_lost_when_its_store_ends(tmp_path: Path, end: str) -> None:
    cluster = MemoryCluster(tmp_path)
    lost: list[str] = []

    class Opening(AbstractAsyncContextManager[SegmentStore]):
        """Fails once it is cancelled, as a call to a session that has ended does."""

        async def __aenter__(self) -> SegmentStore:
            opening.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise SessionEndedError("planted") from None
            raise AssertionError

        async def __aexit__(self, *_: object) -> None: ...

    opening = asyncio.Event()

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(str(context)))
        router = UnitsRouter(4)
        host = UnitHost(open=lambda _: Opening(), router=router, links=UnitLinks(router.container_of))
        session = cluster.coordinator.open()
        entry = HeldContainer(store="a", clients="", links="", serving=False, session=session.session().id)
        limits = HoldingLimits()
        failures = FailedOpenings(session, again_s=limits.again_s, again_max_s=limits.again_max_s)
        holding = Holding(0, session, entry, host, slots=asyncio.Semaphore(1), failures=failures, limits=limits)
        running = asyncio.ensure_future(holding.run())
        await opening.wait()
        if end == "session":
            cluster.coordinator.expire(session.session().id)
        elif end == "released":
            holding.release()
            await asyncio.wait({running})
        running.cancel()
        await asyncio.wait({running})
        assert running.cancelled() or isinstance(running.exception(), SessionEndedError)
        del running, holding
        gc.collect()

    run(main())
    assert lost == []
