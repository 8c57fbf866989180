"""Two controllers keep one assignment: stores join, die, flap and drain."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.operations.requests import request_drained, request_pinned, until_moved
from penstock.app.cluster.operations.status import cluster_state
from penstock.codec.store.cluster_nodes import (
    FAILED,
    HOLDERS,
    REQUESTS,
    FailedOpening,
    HeldContainer,
    Requests,
    encode_node,
    failed_path,
)
from penstock.core.cluster.placement import FLAP_WINDOW_MS, MOVE_PAUSE_MS
from penstock.model.errors import (
    ConflictError,
    CoordinatorUnavailableError,
    InvalidArgumentError,
    NotFoundError,
    SessionEndedError,
)
from penstock.storage.memory.memory_coordination import MemoryCoordination
from penstock.testing.fakes import START_MS
from tests.cluster.cluster_kit import CONTAINERS, LoopClock, assignment, join, new_cluster, until
from tests.cluster.virtual_time import run_virtually


@asynccontextmanager
async def keepers(coordinator, sessions):
    clock = LoopClock()
    tasks = [asyncio.ensure_future(keep_assignment(one, containers=CONTAINERS, clock=clock)) for one in sessions]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def spread(found):
    return sorted(Counter(found.owners.values()).values())


def test_stores_join_and_die_and_both_controllers_agree():
    async def main():
        coordinator = await new_cluster()
        one, other = coordinator.open(), coordinator.open()
        async with keepers(coordinator, [one, other]):
            await asyncio.sleep(1)
            assert (await assignment(one)).owners == {}
            first = await join(coordinator, "a")
            await until(one, lambda found: spread(found) == [CONTAINERS])
            await join(coordinator, "b")
            began = asyncio.get_running_loop().time()
            await until(one, lambda found: spread(found) == [2, 2])
            assert asyncio.get_running_loop().time() - began >= MOVE_PAUSE_MS / 1000, "moves that balance are apart"
            await first.close()
            found = await until(one, lambda found: spread(found) == [CONTAINERS])
            assert set(found.owners.values()) == {"b"}
            assert list(found.losses_ms) == ["a"]
            version = (await one.read("assignment")).version
            await asyncio.sleep(30)
            assert (await one.read("assignment")).version == version, "nobody writes without a reason"

    run_virtually(main())


def test_the_other_controller_goes_on_alone():
    async def main():
        coordinator = await new_cluster()
        one, other = coordinator.open(), coordinator.open()
        async with keepers(coordinator, [one, other]) as tasks:
            coordinator.expire(one.session().id)
            with pytest.raises(SessionEndedError):
                await tasks[0]
            await join(coordinator, "a")
            await until(other, lambda found: spread(found) == [CONTAINERS])

    run_virtually(main())


def test_a_store_that_flaps_gets_nothing_for_ten_minutes():
    async def main():
        coordinator = await new_cluster()
        one = coordinator.open()
        async with keepers(coordinator, [one]):
            await join(coordinator, "a")
            for _ in range(3):
                session = await join(coordinator, "b")
                await until(one, lambda found: "b" in found.owners.values())
                await session.close()
                await until(one, lambda found: found.known == ("a",))
            await join(coordinator, "b")
            began = asyncio.get_running_loop().time()
            await until(one, lambda found: "b" in found.owners.values())
            assert asyncio.get_running_loop().time() - began >= FLAP_WINDOW_MS / 1000 - 1

    run_virtually(main())


def test_a_store_that_is_drained_before_each_restart_does_not_flap():
    async def main():
        coordinator = await new_cluster()
        one = coordinator.open()
        await one.set(REQUESTS, encode_node(Requests(drained=("b",))), 0)
        async with keepers(coordinator, [one]):
            await join(coordinator, "a")
            for _ in range(3):
                session = await join(coordinator, "b")
                await until(one, lambda found: found.known == ("a", "b"))
                await session.close()
                await until(one, lambda found: found.known == ("a",))
            await join(coordinator, "b")
            await one.set(REQUESTS, encode_node(Requests()), 1)
            found = await until(one, lambda found: "b" in found.owners.values())
            assert found.losses_ms == {}

    run_virtually(main())


def test_a_store_that_drains_loses_its_containers_one_by_one():
    async def main():
        coordinator = await new_cluster()
        one = coordinator.open()
        async with keepers(coordinator, [one]):
            await join(coordinator, "a")
            await join(coordinator, "b")
            await until(one, lambda found: spread(found) == [2, 2])
            await one.set(REQUESTS, encode_node(Requests(drained=("a",))), 0)
            await until(one, lambda found: set(found.owners.values()) == {"b"})
            await one.set(REQUESTS, encode_node(Requests()), 1)
            await until(one, lambda found: spread(found) == [2, 2])

    run_virtually(main())


def test_a_coordinator_that_does_not_answer_is_asked_again():
    async def main():
        coordinator = await new_cluster()
        one = coordinator.open()
        real, failures = one.sync, 2

        async def sync():
            nonlocal failures
            if failures:
                failures -= 1
                raise CoordinatorUnavailableError("nobody answers")
            await real()

        one.sync = sync
        await join(coordinator, "a")
        async with keepers(coordinator, [one]):
            await until(coordinator.open(), lambda found: spread(found) == [CONTAINERS])

    run_virtually(main())


def test_a_container_that_its_store_cannot_open_moves_at_once_and_a_pinned_one_after_its_pause():
    async def main():
        coordinator = await new_cluster()
        one, other = coordinator.open(), coordinator.open()
        async with keepers(coordinator, [one, other]):
            first = await join(coordinator, "a")
            await join(coordinator, "b")
            found = await until(one, lambda found: spread(found) == [2, 2])
            number = min(number for number, owner in found.owners.items() if owner == "a")
            reason = FailedOpening(store="a", container=number, reason="disk is damaged")
            await first.register(failed_path(number, "a"), encode_node(reason))
            began = asyncio.get_running_loop().time()
            await until(one, lambda found: found.owners[number] == "b")
            assert asyncio.get_running_loop().time() - began < 1
            await until(one, lambda found: spread(found) == [2, 2])
            state = await cluster_state(one, now_ms=START_MS)
            assert state.containers[number].failed == [reason]
            assert await request_pinned(one, number, "a")
            await asyncio.sleep(60)
            assert (await assignment(one)).owners[number] == "b", "an operator's request does not repair a disk"
            with pytest.raises(ConflictError, match="disk is damaged"):
                await until_moved(one, number, "a", lambda text: None)
            await first.delete(failed_path(number, "a"), 0)
            await until(one, lambda found: found.owners[number] == "a")
            await requests_are_checked(one, number)

    run_virtually(main())


async def requests_are_checked(session, number):
    """Requests that cannot be followed are refused with a sentence."""
    with pytest.raises(InvalidArgumentError, match="no such container"):
        await request_pinned(session, 99, "a")
    with pytest.raises(NotFoundError, match="no store of this name"):
        await request_pinned(session, number, "nobody")
    await request_drained(session, "b", drained=True)
    with pytest.raises(ConflictError, match="undrain it first"):
        await request_pinned(session, number, "b")
    assert await request_pinned(session, number, None)
    assert not await request_pinned(session, number, None)
    assert await request_pinned(session, number, "a")
    waiting = asyncio.ensure_future(until_moved(session, number, "a", lambda text: None))
    await asyncio.sleep(1)
    await request_drained(session, "a", drained=True)
    with pytest.raises(ConflictError, match="is drained"):
        await waiting
    assert await request_pinned(session, number, None)
    with pytest.raises(NotFoundError, match="no longer pinned"):
        await until_moved(session, number, "a", lambda text: None)


class Late(MemoryCoordination):
    """A session that sees failures which are deleted before it can read them."""

    async def members(self, path):
        found = await super().members(path)
        if path == FAILED:
            gone = {f"{FAILED}/{name}" for name in found}
            tree = self._coordinator.tree
            self._coordinator.become({name: entry for name, entry in tree.items() if name not in gone})
        return found


def test_a_move_goes_on_if_a_failure_is_forgotten_while_it_is_looked_at():
    async def main():
        coordinator = await new_cluster()
        store, operator = await join(coordinator, "a"), Late(coordinator, "operator")
        reason = FailedOpening(store="a", container=1, reason="disk is damaged")
        await store.register(failed_path(1, "a"), encode_node(reason))
        await request_pinned(operator, 1, "a")
        moving = asyncio.ensure_future(until_moved(operator, 1, "a", lambda text: None))
        await asyncio.sleep(1)
        assert not moving.done()
        assert failed_path(1, "a") not in coordinator.tree
        held = HeldContainer(store="a", clients="a:1", links="a:2", serving=True, session="s")
        await store.register(f"{HOLDERS}/1", encode_node(held))
        await moving

    run_virtually(main())
