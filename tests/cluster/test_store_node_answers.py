"""What a store answers to clients and controllers, and what a paused or deposed one does not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.layout import WireKey
from penstock.model.errors import (
    ContainerOfflineError,
    FencedError,
    NotConnectedError,
    UnauthenticatedError,
    UnavailableError,
    WrongClusterError,
)
from penstock.net.workers.handshake import Greeting
from penstock.net.workers.link import Handler, WorkerLink
from penstock.net.workers.tcp_link import dial_container
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.tables import ANY_VERSION, TablePut
from tests.cluster.store_node_kit import LEASE_S, SECRET, MemoryCluster, RunningStore, run, until, until_serving, write


def table_of(cluster: MemoryCluster, number: int) -> str:
    """The name of a table in the container."""
    return next(
        name for name in (f"shop/t{one}_kvtable/0.#epoch.0" for one in range(1000)) if cluster.owns(number, name)
    )


@pytest.mark.parametrize("is_planted", [False, True], ids=["", "planted: it ignores its lease"])
def test_an_owner_that_was_paused_never_answers_with_old_data(tmp_path: Path, is_planted: bool) -> None:
    cluster = MemoryCluster(tmp_path)
    segment, table = cluster.segment_of(0), table_of(cluster, 0)

    async def main() -> None:
        async with (
            cluster.store("a", answers_always=is_planted) as a,
            cluster.store("b") as b,
            AsyncExitStack() as stack,
        ):
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            unit = a.unit(0)
            await unit.create_segment(segment)
            await write(unit, segment, range(3))
            await unit.create_table(table)
            await unit.table_update(table, [TablePut(key=b"price", value=b"old", version=ANY_VERSION)])
            tail, asking = [await stack.enter_async_context(a.peer()) for _ in range(2)]
            question = t.ReadTable(1, table, "", [WireKey(b"price", 0)])
            assert isinstance(await asking.ask(question), t.TableRead)
            await tail.send(c.ReadSegment(segment, 24, 1 << 20, "", 2))

            a.sessions[-1].pause()
            cluster.assign({0: "b"})
            await until_serving(cluster, {0: "b"})
            await b.unit(0).table_update(table, [TablePut(key=b"price", value=b"new", version=ANY_VERSION)])
            cluster.clock_s += LEASE_S
            answer = await asking.ask(question)
            # An append at the old owner ends its unit, and with it the read that waits.
            with pytest.raises(ContainerOfflineError):
                await write(unit, segment, range(3, 4))
            waited = await tail.receive()
            if is_planted:
                # Unless a checkpoint has found out meanwhile that another store owns the container.
                assert isinstance(answer, t.TableRead | c.WrongHost)
                assert isinstance(answer, c.WrongHost) or bytes(answer.entries[0].value) == b"old"
                assert waited is not None
            else:
                assert answer is None
                # Before the lease ended, a checkpoint may have found out that another store owns the container.
                assert waited is None or isinstance(waited, c.WrongHost)

    run(main())


def test_a_client_of_a_container_that_is_elsewhere_is_sent_to_ask_again(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)

    async def main() -> None:
        async with cluster.store("a") as a, cluster.store("b") as b, a.peer() as peer, b.peer() as other:
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            assert isinstance(await other.ask(c.GetStreamSegmentInfo(1, segment, "")), c.WrongHost)
            await peer.ask(c.CreateSegment(2, segment, 0, 0, "", 0))
            assert isinstance(await peer.ask(c.SetupAppend(3, WRITER, segment, "")), c.AppendSetup)
            await peer.send(c.ReadSegment(segment, 0, 100, "", 4))
            cluster.assign({0: "b"})
            await until_serving(cluster, {0: "b"})
            assert isinstance(await peer.receive(), c.WrongHost)
            assert isinstance(await peer.ask(c.AppendBlockEnd(WRITER, 16, EVENT, 1, 0, 5)), c.WrongHost)
            assert isinstance(await other.ask(c.GetStreamSegmentInfo(6, segment, "")), c.StreamSegmentInfo)

    run(main())


WRITER = bytes(15) + b"\x07"
EVENT = b"\0\0\0\0\0\0\0\x08eight by"


class Controller:
    """What a controller answers to stores."""

    def __init__(self) -> None:
        self.limits: list[object] = []
        self.removals: list[object] = []
        self.may_remove = asyncio.Event()

    @property
    def handlers(self) -> dict[str, Handler]:
        return {"limits_reached": self._limits, "begin_removal": self._begin, "end_removal": self._end}

    async def _limits(self, met: object) -> None:
        self.limits.append(met)

    async def _begin(self, number: int, segment: str, offset: int | None) -> None:
        await self.may_remove.wait()
        self.removals.append((number, segment, offset))

    async def _end(self, number: int) -> None:
        self.removals.append(number)


async def dial(store: RunningStore, number: int, *, term: int = 1, controller: Controller | None = None) -> WorkerLink:
    return await dial_container(
        store.links,
        Greeting("c1", number, term, "c"),
        secret=SECRET,
        rng=store.cluster.rng,
        handlers={} if controller is None else controller.handlers,
    )


def test_a_controller_reaches_an_open_container_until_a_later_one_is_elected(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            first, other = await dial(a, 0), await dial(a, 1)
            await first.call("create_segment", segment, 0)
            assert (await first.call("info", segment)).length == 0
            assert await first.call("pulse") == {}
            with pytest.raises(ContainerOfflineError):
                await dial(a, 2)
            second = await dial(a, 0, term=3)
            for link in (first, other):
                await link.closed
                with pytest.raises(NotConnectedError):
                    await link.call("info", segment)
            assert (await second.call("info", segment)).length == 0
            for number in (0, 1):
                with pytest.raises(FencedError, match="later controller"):
                    await dial(a, number, term=2)
            again = await dial(a, 0, term=3)
            await second.closed
            cluster.assign({1: "a"})
            await again.closed

    run(main())


def test_a_container_that_opens_after_an_election_refuses_earlier_controllers(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.elect(5)
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            with pytest.raises(FencedError):
                await dial(a, 0, term=4)
            assert (await dial(a, 0, term=5)).is_open

    run(main())


def test_a_link_needs_the_secret_and_the_cluster(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            for greeting, secret, error in (
                (Greeting("c1", 0, 1, "c"), b"another secret, 32 bytes long...", UnauthenticatedError),
                (Greeting("c2", 0, 1, "c"), SECRET, WrongClusterError),
            ):
                with pytest.raises(error):
                    await dial_container(a.links, greeting, secret=secret, rng=cluster.rng, handlers={})

    run(main())


def test_a_link_is_not_answered_after_the_lease(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            link = await dial(a, 0)
            await link.call("create_segment", segment, 0)
            a.sessions[-1].pause()
            cluster.clock_s += LEASE_S
            with pytest.raises(NotConnectedError):
                await link.call("info", segment)

    run(main())


def test_a_limit_that_is_met_is_reported_to_the_current_controller(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)
    stream = segment.rpartition("/")[0]

    async def main() -> None:
        async with cluster.store("a") as a:
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            earlier, current = Controller(), Controller()
            await dial(a, 0, term=1, controller=earlier)
            link = await dial(a, 0, term=2, controller=current)
            await link.call("create_segment", segment, 0)
            limit = AppendLimit(stream=stream, segments=[segment], total_bytes=8, action=LimitAction.NOTIFY)
            await link.call("limit_appends", [limit], [0], 9)
            await write(a.unit(0), segment, range(2))
            await until(lambda: bool(current.limits))
            assert [list(map(tuple, met)) for met in current.limits] == [[(stream, 9)]]  # type: ignore[call-overload]
            assert earlier.limits == []

    run(main())


def test_removals_of_clients_need_a_controller_and_end_before_the_next_one(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)
    segment = cluster.segment_of(0)

    async def main() -> None:
        async with cluster.store("a") as a, a.peer() as peer:
            cluster.assign({0: "a"})
            await until_serving(cluster, {0: "a"})
            unit = a.unit(0)
            await unit.create_segment(segment)
            await write(unit, segment, range(3))
            with pytest.raises(UnavailableError, match="needs its permission"):
                async with a.host.links.guard(segment, 8):
                    pass
            controller = Controller()
            link = await dial(a, 0, controller=controller)
            await peer.send(c.TruncateSegment(1, segment, 8, ""))
            await until(lambda: a.host.links._units[0].removals == 1)
            assert (await unit.info(segment)).start_offset == 0
            controller.may_remove.set()
            assert isinstance(await peer.receive(), c.SegmentTruncated)
            await until(lambda: len(controller.removals) == 2)
            assert controller.removals == [(0, segment, 8), 0]

            async with a.host.links.guard(segment, 16):
                link.close()
                with pytest.raises(UnavailableError, match="earlier controller"):
                    await dial(a, 0, term=2)
            assert (await dial(a, 0, term=2)).is_open

    run(main())
