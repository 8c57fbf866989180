"""The links of the active controller: they follow the owners of containers, whatever happens to these."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest

from penstock.app.cluster.lines import LinePatience, open_lines
from penstock.codec.store.cluster_nodes import (
    HOLDERS,
    REQUESTS,
    STORES,
    FailedOpening,
    HeldContainer,
    Requests,
    StoreEntry,
    decode_node,
    encode_node,
    failed_pairs,
    failed_path,
)
from penstock.model.errors import (
    ContainerOfflineError,
    CoordinatorUnavailableError,
    NotConnectedError,
    SessionEndedError,
    UnavailableError,
)
from penstock.net.workers.link import open_link
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.limits import AppendLimit
from penstock.storage.memory.memory_coordination import MemoryCoordination
from tests.cluster.cluster_kit import new_cluster

CONTAINERS = 2
SHORT = LinePatience(
    pause_s=0.01,
    pause_max_s=0.02,
    steady_s=0.0,
    pulse_s=0.01,
    silent_s=0.2,
    retry_s=0.01,
    unreached_s=0.05,
    trial_s=0.01,
    failures_s=4.0,
)


class Store:
    """A store that answers ``seal`` with its own number, and counts the limits that it was sent."""

    def __init__(self, cluster, number):
        self.cluster = cluster
        self.number = number
        self.session = cluster.coordinator.open()
        self.links = {}
        self.limits = []
        self.sealed = 0
        self.answers = True
        cluster.stores[f"store{number}:2"] = self

    def held(self, serving):
        name = f"store{self.number}"
        return encode_node(HeldContainer(store=name, clients=f"{name}:1", links=f"{name}:2", serving=serving))

    async def hold(self, container, *, serving=True):
        await self.session.register(f"{HOLDERS}/{container}", self.held(serving))

    async def let_go(self, container):
        node = await self.session.read(f"{HOLDERS}/{container}")
        await self.session.delete(f"{HOLDERS}/{container}", node.version)
        self.links.pop(container).close()

    async def accept(self, container, sock):
        async def seal(name):
            self.sealed += 1
            return self.number

        async def limit_appends(limits, rows, generation):
            self.limits.append((container, [limit.stream for limit in limits]))

        def pulse(answer):
            if self.answers:
                answer({"tiering": "slow"})

        handlers = {"seal": seal, "limit_appends": limit_appends}
        self.links[container] = await open_link(sock, name="far", handlers=handlers, takers={"pulse": pulse})

    def die(self):
        self.cluster.coordinator.expire(self.session.session().id)
        del self.cluster.stores[f"store{self.number}:2"]
        for link in self.links.values():
            link.abort()


class Cluster:
    def __init__(self, coordinator):
        self.coordinator = coordinator
        self.stores = {}
        self.dials = 0
        self.offline = set()

    async def dial(self, container, address, handlers):
        self.dials += 1
        if address in self.offline:
            raise ContainerOfflineError("container is not open in this store", container=container)
        store = self.stores.get(address)
        if store is None:
            raise NotConnectedError("cannot connect to the container", address=address)
        ours, theirs = socket.socketpair()
        await store.accept(container, theirs)
        return await open_link(ours, name="near", handlers=handlers)

    @asynccontextmanager
    async def lines(self, session=None):
        session = session or self.coordinator.open()
        async with open_lines(session, self.dial, containers=CONTAINERS, patience=SHORT) as lines:
            yield lines
        for store in self.stores.values():
            for link in store.links.values():
                await link.closed


def run(body):
    async def main():
        async with asyncio.timeout(20):
            await body(Cluster(await new_cluster(CONTAINERS)))

    asyncio.run(main())


def segment_of(lines, container):
    return next(
        name for name in (f"s/t/{n}.#epoch.0" for n in range(99)) if lines.segments.worker_of(name) == container
    )


async def until(condition):
    while not condition():
        await asyncio.sleep(0.005)


def test_calls_follow_a_container_from_store_to_store():
    async def body(cluster):
        one, other = Store(cluster, 1), Store(cluster, 2)
        async with cluster.lines() as lines:
            name = segment_of(lines, 0)
            with pytest.raises(UnavailableError, match="no store serves"):
                lines.endpoint_of(name)
            waiting = asyncio.ensure_future(lines.segments.seal(name))
            await one.hold(0, serving=False)
            await asyncio.sleep(0.05)
            assert not one.links, "a container that is being taken over is not dialled"
            await one.session.set(f"{HOLDERS}/0", one.held(True), 0)
            assert await waiting == 1
            assert lines.endpoint_of(name) == Endpoint(host="store1", port=1)
            assert "no store serves it" in lines.away()
            await one.let_go(0)
            await until(lambda: not lines.lines[0].ready)
            waiting = asyncio.ensure_future(lines.segments.seal(name))
            await other.hold(0)
            assert await waiting == 2
            assert lines.endpoint_of(name) == Endpoint(host="store2", port=1)
            await other.hold(1)
            await lines.until_served(0, patience_s=10, reach_s=10)
            assert lines.away() is None
            await until(lambda: lines.not_ready() == {"tiering": "container 0, 1: slow"})

    run(body)


def test_a_call_that_can_be_repeated_outlives_the_death_of_the_store():
    async def body(cluster):
        one, other = Store(cluster, 1), Store(cluster, 2)
        await one.hold(0)
        async with cluster.lines() as lines:
            name = segment_of(lines, 0)
            assert await lines.segments.seal(name) == 1
            one.die()
            waiting = asyncio.ensure_future(lines.segments.seal(name))
            await asyncio.sleep(0.05)
            await other.hold(0)
            assert await waiting == 2

    run(body)


def test_a_link_to_an_owner_that_lost_its_session_is_left_for_the_new_owner():
    async def body(cluster):
        one, other = Store(cluster, 1), Store(cluster, 2)
        await one.hold(0)
        async with cluster.lines() as lines:
            name = segment_of(lines, 0)
            assert await lines.segments.seal(name) == 1
            cluster.coordinator.expire(one.session.session().id)  # it does not know, and keeps its link
            await other.hold(0)
            await until(lambda: 0 in other.links)
            assert await lines.segments.seal(name) == 2

    run(body)


def test_a_store_that_cannot_be_reached_is_dialled_again_with_pauses():
    async def body(cluster):
        one = Store(cluster, 1)
        del cluster.stores["store1:2"]
        await one.hold(0)
        async with cluster.lines() as lines:
            await until(lambda: cluster.dials >= 3)
            assert "cannot be reached: cannot connect" in lines.away()
            cluster.stores["store1:2"] = one
            assert await lines.segments.seal(segment_of(lines, 0)) == 1

    run(body)


def test_a_controller_that_cannot_reach_its_own_table_gives_up():
    async def body(cluster):
        one, other = Store(cluster, 1), Store(cluster, 2)
        async with cluster.lines() as lines:
            waiting = asyncio.ensure_future(lines.until_served(0, patience_s=0.05, reach_s=0.05))
            await asyncio.sleep(0.3)
            assert not waiting.done(), "no store serves it, so no other controller could do better"
            await other.hold(1)
            del cluster.stores["store1:2"]
            await one.hold(0)
            with pytest.raises(UnavailableError, match="another one takes over") as caught:
                await waiting
            assert "cannot connect" in caught.value.fields["reason"]
            cluster.stores["store1:2"] = one
            await lines.until_served(0, patience_s=0.05, reach_s=10)
            assert lines.unreachable(0, reach_s=0) is None
            del cluster.stores["store1:2"]
            one.links[0].abort()
            await until(lambda: lines.unreachable(0, reach_s=0.05) is not None)
            cluster.coordinator.expire(one.session.session().id)
            await until(lambda: lines.unreachable(0, reach_s=0.05) is None)

    run(body)


def test_the_link_of_a_store_that_hangs_is_closed_and_dialled_again():
    async def body(cluster):
        one = Store(cluster, 1)
        await one.hold(0)
        async with cluster.lines() as lines:
            await until(lambda: lines.lines[0].ready)
            one.answers = False
            first = one.links[0]
            await until(lambda: one.links[0] is not first)
            assert first.closed.done()
            one.answers = True
            assert await lines.segments.seal(segment_of(lines, 0)) == 1

    run(body)


def test_a_store_learns_all_limits_before_clients_learn_its_address():
    async def body(cluster):
        one = Store(cluster, 1)
        async with cluster.lines() as lines:
            limit = AppendLimit(stream="s/t", segments=[segment_of(lines, 0)], total_bytes=9)
            await lines.segments.limit_appends([limit])
            for container in range(CONTAINERS):
                await one.hold(container)
                await until(lambda container=container: lines.lines[container].ready)
            assert one.limits == [(0, ["s/t"]), (1, ["s/t"])], "segments may be created in any container"

    run(body)


def test_the_end_of_the_session_is_a_failure_and_ends_all_calls():
    async def body(cluster):
        one, session = Store(cluster, 1), cluster.coordinator.open()
        await one.hold(0)
        async with cluster.lines(session) as lines:
            await until(lambda: lines.lines[0].ready)
            serving = asyncio.ensure_future(lines.until_served(1, patience_s=0.01, reach_s=10))
            waiting = asyncio.ensure_future(lines.segments.seal(segment_of(lines, 1)))
            await asyncio.sleep(0)
            cluster.coordinator.expire(session.session().id)
            with pytest.raises(SessionEndedError):
                await waiting
            assert isinstance(lines.failure, SessionEndedError)
            with pytest.raises(SessionEndedError):
                await serving

    run(body)


class Unanswered(MemoryCoordination):
    """A session whose next reads get no answer."""

    lost = 0

    async def read(self, path):
        if self.lost:
            self.lost -= 1
            raise CoordinatorUnavailableError("planted: ZooKeeper does not answer")
        return await super().read(path)


@pytest.mark.parametrize("lost", range(1, 6))
def test_a_change_that_could_not_be_read_after_its_notice_is_read_later(lost):
    async def body(cluster):
        one, operator = Store(cluster, 1), cluster.coordinator.open()
        session = Unanswered(cluster.coordinator, "controller")
        await one.hold(0)
        session.lost = lost
        async with cluster.lines(session) as lines:
            await until(lambda: lines.lines[0].ready)
            session.lost = lost
            await one.hold(1)
            await until(lambda: lines.lines[1].ready)
            session.lost = lost
            await operator.set(REQUESTS, encode_node(Requests(disabled={1: "repair"})), 0)
            await until(lambda: lines.lines[1].disabled == "repair")

    run(body)


def test_a_container_is_left_to_others_if_its_store_alone_is_not_reached():
    async def body(cluster):
        one, other = Store(cluster, 1), Store(cluster, 2)
        await one.hold(0)
        del cluster.stores["store1:2"]
        async with cluster.lines() as lines:
            await until(lambda: cluster.dials > 20)
            assert failed(cluster) == set(), "nobody is reached, so the fault may be ours"
            await other.hold(1)
            await until(lambda: failed(cluster) == {(0, "store1")})
            found = decode_node(FailedOpening, cluster.coordinator.tree[failed_path(0, "store1")].node.data)
            assert "cannot connect" in found.reason
            cluster.stores["store1:2"] = one
            await until(lambda: lines.lines[0].ready)
            await until(lambda: failed(cluster) == set())

    run(body)


def test_a_store_that_is_reached_again_may_have_its_containers_again():
    async def body(cluster):
        one, other = Store(cluster, 1), Store(cluster, 2)
        entry = encode_node(StoreEntry(store="store1", clients="store1:1", links="store1:2", pid=1))
        await one.session.register(f"{STORES}/store1", entry)
        await one.hold(0)
        await other.hold(1)
        del cluster.stores["store1:2"]
        async with cluster.lines() as lines:
            await until(lambda: failed(cluster) == {(0, "store1")})
            node = await one.session.read(f"{HOLDERS}/0")
            await one.session.delete(f"{HOLDERS}/0", node.version)
            await other.hold(0)
            await until(lambda: lines.lines[0].ready)
            await asyncio.sleep(0.3)
            assert failed(cluster) == {(0, "store1")}, "it still cannot be reached"
            cluster.offline.add("store1:2")
            began_s = asyncio.get_running_loop().time()
            await until(lambda: failed(cluster) == set())
            assert asyncio.get_running_loop().time() - began_s < 2, "long before the failure ends by itself"
            assert lines.lines[0].ready, "the link to the present owner stays"

    run(body)


def test_a_store_that_has_left_is_not_excluded():
    async def body(cluster):
        one, other = Store(cluster, 1), Store(cluster, 2)
        await one.hold(0)
        await other.hold(1)
        del cluster.stores["store1:2"]
        async with cluster.lines():
            await until(lambda: failed(cluster) == {(0, "store1")})
            node = await one.session.read(f"{HOLDERS}/0")
            await one.session.delete(f"{HOLDERS}/0", node.version)
            await until(lambda: failed(cluster) == set())

    run(body)


def failed(cluster):
    return set(failed_pairs(path.removeprefix("failed/") for path in cluster.coordinator.tree))
