"""An owner whose lease has ended answers nothing more: its connections and links end instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from wire_notes import EVENT, S, W
from wire_peers import LOOPS, Stage, run
from worker_pair import echo, pair

from penstock.app.telemetry import Counters
from penstock.codec.wire import commands as c
from penstock.model.errors import NotConnectedError
from penstock.net.wire.wire_server import InCluster, WireServer
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World


class Lease:
    """Leases one after the other. A check is about the lease under which it was made."""

    def __init__(self) -> None:
        self.number = 1
        self.held = True

    def answer_check(self) -> Callable[[], bool]:
        number = self.number
        return lambda: self.held and self.number == number


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_the_server_closes_a_connection_instead_of_answering_after_the_lease(loop: str) -> None:
    async def main() -> None:
        lease, rng = Lease(), RealRng()
        world = World(clock=RealClock(), rng=rng)
        async with (
            world.opened() as store,
            WireServer(
                store, port=0, rng=rng, telemetry=Counters(), in_cluster=InCluster(answer_check=lease.answer_check)
            ) as server,
        ):
            scene = Stage(server, store, None)
            parked, asking, writing = [await scene.peer() for _ in range(3)]
            await writing.ask(c.CreateSegment(1, S, 0, 0, "", 0))
            await writing.ask(c.SetupAppend(2, W, S, ""))
            await parked.send(c.ReadSegment(S, 0, 1 << 20, "", 3))
            assert isinstance(await asking.ask(c.GetStreamSegmentInfo(4, S, "")), c.StreamSegmentInfo)
            lease.held = False
            await asking.send(c.GetStreamSegmentInfo(5, S, ""))
            await writing.send(c.AppendBlockEnd(W, len(EVENT), EVENT, 1, 0, 6))
            for peer in (asking, writing, parked):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await peer.receive()
            assert (await store.info(S)).length == len(EVENT), "the append itself needs no lease"
            for peer in scene.peers:
                await peer.close()

    run(main(), loop)


@pytest.mark.parametrize("loop", sorted(LOOPS))
def test_an_answer_that_waited_is_not_sent_under_a_later_lease(loop: str) -> None:
    async def main() -> None:
        lease, rng = Lease(), RealRng()
        world = World(clock=RealClock(), rng=rng)
        async with (
            world.opened() as store,
            WireServer(
                store, port=0, rng=rng, telemetry=Counters(), in_cluster=InCluster(answer_check=lease.answer_check)
            ) as server,
        ):
            scene = Stage(server, store, None)
            slow, writing = [await scene.peer() for _ in range(2)]
            await writing.ask(c.CreateSegment(1, S, 0, 0, "", 0))
            await writing.ask(c.SetupAppend(2, W, S, ""))
            await slow.send(c.ReadSegment(S, 0, 1 << 20, "", 3))
            lease.number = 2
            # The answer to the waiting read is due now, and so is this one. Both connections are of the first lease.
            await writing.send(c.AppendBlockEnd(W, len(EVENT), EVENT, 1, 0, 6))
            for peer in (slow, writing):
                with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                    await peer.receive()
            assert isinstance(await (await scene.peer()).ask(c.GetStreamSegmentInfo(7, S, "")), c.StreamSegmentInfo), (
                "a connection of the second lease"
            )
            for peer in scene.peers:
                await peer.close()

    run(main(), loop)


def test_a_link_ends_instead_of_answering_after_the_lease() -> None:
    async def main() -> None:
        lease = Lease()
        taken: list[object] = []
        takers = {"take": lambda answer, value: (taken.append(value), answer(value))}
        for call in ("echo", "take"):
            lease.held = True
            async with pair({"echo": echo}, takers, may_answer=lease.answer_check()) as (near, _):
                await near.call(call, 1)
                lease.held = False
                with pytest.raises(NotConnectedError):
                    await near.call(call, 2)
        assert taken == [1, 2]

    asyncio.run(main())
