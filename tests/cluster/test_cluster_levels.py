"""Upgrades: the level of formats that all processes of a cluster can write."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.app.cluster import levels
from penstock.app.cluster.levels import check_level, obey_level, raise_level
from penstock.codec.store.cluster_nodes import (
    CONTROLLERS,
    FEATURES,
    STORES,
    ControllerEntry,
    Features,
    StoreEntry,
    decode_node,
    encode_node,
)
from penstock.core.cluster.levels import LEVEL, plan_level
from penstock.model.errors import SessionEndedError, VersionTooNewError
from penstock.ports.cluster.coordination import Coordination
from penstock.storage.memory.memory_coordination import MemoryCoordinator
from tests.cluster.cluster_kit import new_cluster
from tests.cluster.virtual_time import run_virtually


@given(st.integers(1, 5), st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5), max_size=6), st.integers(1, 5))
def test_the_level_rises_to_what_all_can_write_and_never_falls(
    in_force: int, processes: dict[str, int], own: int
) -> None:
    plan = plan_level(in_force, processes, own=own)
    assert plan.after >= in_force
    if plan.after > in_force:
        assert all(level >= plan.after for level in (*processes.values(), own))
    assert not any(level < plan.possible for name, level in processes.items() if name not in plan.behind)
    if not plan.behind:
        assert plan.after == plan.possible
    assert plan_level(plan.after, processes, own=own).after == plan.after


async def register(coordinator: MemoryCoordinator, store: str, level: int) -> Coordination:
    session = coordinator.open()
    entry = StoreEntry(store=store, clients="a:1", links="a:2", pid=1, level=level)
    await session.register(f"{STORES}/{store}", encode_node(entry))
    return session


async def level_of(session: Coordination) -> int:
    return decode_node(Features, (await session.read(FEATURES)).data).level


def test_an_upgrade_waits_for_the_last_process_of_the_earlier_version(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        new = LEVEL + 1
        monkeypatch.setattr(levels, "LEVEL", new)
        old = await register(coordinator, "old", LEVEL)
        await register(coordinator, "new", new)
        entry = ControllerEntry(controller="c", grpc="a:1", http="a:2", active=True, pid=1, level=new)
        await session.register(f"{CONTROLLERS}/c", encode_node(entry))
        plan = (await raise_level(session)).plan
        assert (plan.before, plan.after, plan.possible, plan.behind) == (LEVEL, LEVEL, new, ["store old"])
        assert await level_of(session) == LEVEL
        await old.close()
        assert (await raise_level(session, dry_run=True)).plan.after == new
        assert await level_of(session) == LEVEL
        assert (await raise_level(session)).plan.after == new
        assert await level_of(session) == new
        assert (await raise_level(session)).plan.before == new
        assert await check_level(session) == new
        monkeypatch.undo()
        with pytest.raises(VersionTooNewError, match="install the version that other machines run"):
            await check_level(session)

    run_virtually(main())


def test_a_cluster_of_the_first_version_has_no_level_and_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        await session.delete(FEATURES, 0)
        assert await check_level(session) == 1
        monkeypatch.setattr(levels, "LEVEL", LEVEL + 1)
        plan = (await raise_level(session)).plan
        assert (plan.before, plan.after) == (1, LEVEL + 1)
        assert await level_of(session) == LEVEL + 1

    run_virtually(main())


def test_a_process_of_the_earlier_version_ends_when_the_level_rises_above_it() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        for node in (encode_node(Features(level=LEVEL + 1)), b'{"format": 99}'):
            obeying = asyncio.create_task(obey_level(coordinator.open()))
            await asyncio.sleep(1)
            assert not obeying.done()
            version = await session.set(FEATURES, node, (await session.read(FEATURES)).version)
            with pytest.raises(VersionTooNewError):
                await obeying
            await session.set(FEATURES, encode_node(Features(level=LEVEL)), version)

    run_virtually(main())


def test_a_damaged_level_and_the_end_of_a_session_are_told_apart() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session, other = coordinator.open(), coordinator.open()
        obeying = asyncio.create_task(obey_level(other))
        await session.set(FEATURES, b"damaged", 0)
        await asyncio.sleep(1)
        assert not obeying.done()
        await other.close()
        with pytest.raises(SessionEndedError):
            await obeying

    run_virtually(main())


def test_a_damaged_registration_keeps_the_level_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        monkeypatch.setattr(levels, "LEVEL", LEVEL + 1)
        await register(coordinator, "good", LEVEL + 1)
        await session.register(f"{STORES}/bad", b"{")
        raised = await raise_level(session)
        assert (raised.plan.after, raised.plan.behind) == (LEVEL, ["store bad"])
        assert [one.node for one in raised.damaged] == [f"{STORES}/bad"]
        await session.delete(f"{STORES}/bad", 0)
        assert (await raise_level(session)).plan.after == LEVEL + 1

    run_virtually(main())


@pytest.mark.parametrize("damage", [b"", b"{", b'{"format": 1, "level": "x"}'])
def test_a_damaged_level_is_written_again_as_the_highest_that_cannot_be_above_it(
    monkeypatch: pytest.MonkeyPatch, damage: bytes
) -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        monkeypatch.setattr(levels, "LEVEL", 4)
        for name, level in (("a", 3), ("b", 4)):
            await register(coordinator, name, level)
        await session.register(f"{STORES}/bad", b"{")
        await session.set(FEATURES, damage, 0)
        raised = await raise_level(session, dry_run=True)
        assert (raised.plan.before, raised.plan.after, raised.plan.behind) == (None, 3, ["store a"])
        assert (await session.read(FEATURES)).data == damage
        assert sorted(one.node for one in (await raise_level(session)).damaged) == [FEATURES, f"{STORES}/bad"]
        assert await level_of(session) == 3
        await session.set(FEATURES, b'{"format": 99}', (await session.read(FEATURES)).version)
        with pytest.raises(VersionTooNewError):
            await raise_level(session)

    run_virtually(main())
