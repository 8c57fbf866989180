"""Stores of a cluster hold what the assignment gives them, one at a time, whatever ends meanwhile."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.app import tier2
from penstock.app.cluster import store_process, unit
from penstock.app.cluster.holding import HoldingState
from penstock.app.cluster.node import NodeLimits
from penstock.codec.store.cluster_nodes import FailedOpening, decode_node, failed_path
from penstock.model.errors import ContainerOfflineError, InvalidArgumentError
from penstock.segmentstore import tasks
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.storage.ledgers.limits import LedgerLogLimits
from tests.cluster.store_node_kit import FAST, MemoryCluster, RunningStore, numbers, run, until, until_serving, write


async def fill(store: RunningStore, number: int, events: range) -> None:
    segment, unit = store.cluster.segment_of(number), store.unit(number)
    if not await unit.infos([segment]):
        await unit.create_segment(segment)
    await write(unit, segment, events)


async def found(store: RunningStore, number: int) -> list[int]:
    return await numbers(store.unit(number), store.cluster.segment_of(number))


def test_containers_open_move_and_keep_what_was_acknowledged(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b:
            cluster.assign({0: "a", 1: "a", 2: "b", 3: "b"})
            await until_serving(cluster, {0: "a", 1: "a", 2: "b", 3: "b"})
            await fill(a, 0, range(5))
            await fill(b, 3, range(7))
            cluster.assign({0: "b", 1: "a", 2: "a", 3: "b"})
            await until_serving(cluster, {0: "b", 1: "a", 2: "a", 3: "b"})
            assert await found(b, 0) == list(range(5))
            with pytest.raises(ContainerOfflineError):
                await a.host.router.info(cluster.segment_of(0))
            await fill(b, 0, range(5, 8))
            assert cluster.held()[0].clients == b.clients
            for one in (a, b):
                one.node.stop()
                await one.task
            assert cluster.held() == {}
            assert [path for path in cluster.coordinator.tree if path.startswith("stores/")] == []
            record = cluster.record(0)
            assert record.ledgers[-1].last is not None, "the log was closed"
            assert record.catalogues, "and the rows were published"

    run(main())


def test_the_containers_of_a_store_that_ends_are_taken_by_another_one(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b:
            cluster.assign({0: "a", 1: "b"})
            await until_serving(cluster, {0: "a", 1: "b"})
            await fill(a, 0, range(5))
            deposed = a.unit(0)
            a.sessions[-1].pause()
            cluster.assign({0: "b", 1: "b"})
            await until_serving(cluster, {0: "b", 1: "b"})
            assert await found(b, 0) == list(range(5))
            with pytest.raises(ContainerOfflineError):
                await write(deposed, cluster.segment_of(0), range(5, 6))
            assert await found(b, 0) == list(range(5))

    run(main())


def test_after_the_end_of_a_session_the_store_begins_again(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            await fill(a, 0, range(5))
            before, may_answer = a.unit(0), a.node.answer_check()
            assert may_answer()
            a.end_session()
            assert not a.node.answer_check()()
            await until(lambda: before.offline is not None)
            await until_serving(cluster, {0: "a", 1: "a"})
            assert len(a.sessions) == 2
            assert a.unit(0) is not before
            assert await found(a, 0) == list(range(5))
            assert a.node.answer_check()()
            assert not may_answer(), "what waited in the first session is not answered in the second"

    run(main())


def test_a_container_that_stops_is_opened_again_and_the_others_go_on(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            await fill(a, 0, range(5))
            stopped, other = a.unit(0), a.unit(1)
            stopped.containers[0].go_offline("planted", None)
            await until(lambda: a.host.router._units.get(0) not in (None, stopped))
            await until_serving(cluster, {0: "a", 1: "a"})
            assert a.unit(1) is other
            assert await found(a, 0) == list(range(5))
            assert a.node.failures() == {}

    run(main())


def test_a_damaged_container_is_reported_and_opened_once_it_is_repaired(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b:
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            await fill(a, 0, range(5))
            cluster.assign({1: "a"})
            await until_serving(cluster, {1: "a"})
            part = tmp_path / "tier2" / "container-0"
            part.rename(tmp_path / "elsewhere")
            cluster.assign({0: "b", 1: "b"})
            await until(lambda: 0 in b.node.failures())
            await until_serving(cluster, {1: "b"})
            assert b.node.states()[0] in (HoldingState.FAILED, HoldingState.OPENING)
            assert not cluster.held()[0].serving
            shutil.rmtree(part)
            (tmp_path / "elsewhere").rename(part)
            await until_serving(cluster, {0: "b", 1: "b"})
            assert await found(b, 0) == list(range(5))
            assert b.node.failures() == {}

    run(main())


def test_two_processes_with_one_name_do_not_both_serve(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        cluster.assign({0: "a"})
        async with cluster.store("a"):
            await until_serving(cluster, {0: "a"})
            epoch = cluster.record(0).epoch
            with pytest.raises(InvalidArgumentError, match="another process of the cluster has this name"):
                async with cluster.store("a") as second:
                    await asyncio.wait({second.task})
            assert cluster.record(0).epoch == epoch

    run(main())


def test_a_store_waits_for_its_own_earlier_registration_to_end(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        cluster.assign({0: "a"})
        async with cluster.store("a") as first:
            await until_serving(cluster, {0: "a"})
            first.task.cancel()  # killed
            async with cluster.store("a") as second:
                await until(second.node.registered.is_set)
                await until_serving(cluster, {0: "a"})

    run(main())


def test_a_container_that_is_wanted_again_while_it_closes_is_taken_again(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b"):
            for number in range(6):
                cluster.assign({0: "a" if number % 2 else "b"})
                await asyncio.sleep(0)
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            await fill(a, 0, range(5))
            cluster.assign({})
            await until(lambda: a.node.states()[0] is HoldingState.SERVING and a.node._holdings[0]._released.is_set())
            cluster.assign({0: "a"})
            await until(lambda: cluster.record(0).epoch >= 2)
            await until_serving(cluster, {0: "a"})
            assert await found(a, 0) == list(range(5))

    run(main())


def test_a_store_waits_longer_for_a_close_than_all_its_parts_take_together() -> None:
    """All of them hang, one after another: containers, their tasks, the log, files of tier 2, its threads, the directory."""
    cleanup_s = tasks._CLEANUP_S + tasks._AGAIN_S * tasks._AGAIN_MAX
    parts_s = (
        *(StoreSettings().close_s, cleanup_s, cleanup_s),
        *(LedgerLogLimits().close_s, tier2._HANG_S, cleanup_s, tier2._HANG_S, unit._THREADS_S),
    )
    limits = NodeLimits()
    assert limits.holding.close_s >= sum(parts_s) + 10, "and a loaded machine"
    assert limits.holding.flush_s + limits.holding.close_s + limits.leave_s <= store_process._STOP_S


def test_a_container_that_cannot_be_opened_is_left_to_others_until_it_can(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    limits = replace(FAST, holding=replace(FAST.holding, give_up_s=0.1))

    async def main() -> None:
        async with cluster.store("a", limits=limits) as a:
            opened, broken = a.host.open, [True]

            @asynccontextmanager
            async def failing(number: int) -> AsyncIterator[SegmentStore]:
                if broken[0] and number == 0:
                    raise OSError("planted: the disk is damaged")
                async with opened(number) as store:
                    yield store

            object.__setattr__(a.host, "open", failing)
            cluster.assign({0: "a", 1: "a"})
            await until(lambda: failed_path(0, "a") in cluster.coordinator.tree)
            found = decode_node(FailedOpening, cluster.coordinator.tree[failed_path(0, "a")].node.data)
            assert (found.store, found.container) == ("a", 0)
            assert "the disk is damaged" in found.reason
            await until_serving(cluster, {1: "a"})  # on a busy machine it opens later
            cluster.assign({1: "a"})
            await until(lambda: sorted(cluster.held()) == [1])
            assert failed_path(0, "a") in cluster.coordinator.tree, "it does not come back at once"
            broken[0] = False
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            await until(lambda: failed_path(0, "a") not in cluster.coordinator.tree)

    run(main())


def test_a_container_whose_opening_hangs_is_left_to_others(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    limits = replace(FAST, holding=replace(FAST.holding, hang_s=0.1))

    async def main() -> None:
        async with cluster.store("a", limits=limits) as a, cluster.store("b", limits=limits) as b:
            opened, hanging = a.host.open, asyncio.Event()

            @asynccontextmanager
            async def open_unit(number: int) -> AsyncIterator[SegmentStore]:
                await hanging.wait()
                async with opened(number) as store:
                    yield store

            object.__setattr__(a.host, "open", open_unit)
            cluster.assign({0: "a"})
            await until(lambda: failed_path(0, "a") in cluster.coordinator.tree)
            assert a.node.states() == {0: HoldingState.OPENING}, "it may still succeed"
            cluster.assign({0: "b"})
            await until_serving(cluster, {0: "b"})
            await fill(b, 0, range(3))
            cluster.assign({0: "a"})
            await until(lambda: a.node.states().get(0) is HoldingState.OPENING)
            hanging.set()
            await until_serving(cluster, {0: "a"})
            await until(lambda: failed_path(0, "a") not in cluster.coordinator.tree)
            assert await found(a, 0) == list(range(3))

    run(main())


def test_a_drained_store_becomes_empty_once_a_fault_of_all_stores_is_repaired(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=1)
    limits = replace(FAST, holding=replace(FAST.holding, give_up_s=0.05, again_s=0.3, again_max_s=0.6))
    broken = [True]

    async def main() -> None:
        async with (
            cluster.store("a", limits=limits) as a,
            cluster.store("b", limits=limits) as b,
            cluster.keeping_assignment(),
        ):
            for each in (a, b):
                object.__setattr__(each.host, "open", breaking(each.host.open, broken))
            await until(lambda: cluster.failed() == {(0, "a"), (0, "b")})
            broken[0] = False
            await until(lambda: 0 in cluster.serving())
            drained = cluster.serving()[0]
            other = {"a": "b", "b": "a"}[drained]
            await until(lambda: (0, drained) not in cluster.failed())  # cleared after the container is served
            cluster.request(drained=[drained])
            await until_serving(cluster, {0: other})
            await until(lambda: not cluster.failed())

    run(main())


def breaking(opened: Callable[[int], Any], broken: list[bool]) -> Callable[[int], Any]:
    @asynccontextmanager
    async def open_unit(number: int) -> AsyncIterator[SegmentStore]:
        if broken[0]:
            raise OSError("planted: tier 2 is away")
        async with opened(number) as store:
            yield store

    return open_unit
