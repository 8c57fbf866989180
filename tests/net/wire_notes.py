"""Requests to a server over a real store, and a note of every answer."""

from __future__ import annotations

from contextlib import asynccontextmanager
from uuid import UUID

from grpc_fakes import MemoryController
from wire_peers import Stage

from penstock.codec.wire import commands as c
from penstock.net.wire.calls import controller_calls
from penstock.net.wire.wire_server import WireLimits, WireServer
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World

S, T, HASH, SORTED = "s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/h_kvtable/0.#epoch.0", "s/f_kvtable/0.#epoch.0"
EVENT = b"\0\0\0\0\0\0\0\x05hello"
W = UUID(int=7).bytes


class Notes:
    """A peer that keeps the kinds of what it was answered."""

    def __init__(self, scene, peer, controller):
        self.scene, self.peer, self.store, self.controller = scene, peer, scene.store, controller
        self.seen: set[str] = set()
        self.rid = 100

    def next(self):
        self.rid += 1
        return self.rid

    async def ask(self, command, kind, **fields):
        """The answer, which must be of ``kind`` with these fields, and of the request's own id."""
        reply = await self.peer.ask(command)
        assert type(reply) is kind, reply
        assert {name: getattr(reply, name) for name in fields} == fields
        if hasattr(command, "rid"):
            assert reply.rid == command.rid
        self.seen.add(kind.__name__)
        return reply

    async def quietly(self, command):
        reply = await self.peer.ask(command)
        assert not isinstance(reply, c.ErrorMessage | c.NoSuchSegment), reply
        return reply

    async def setup(self, segment=S, writer=W):
        await self.quietly(c.SetupAppend(self.next(), writer, segment, ""))

    async def append(self, number, data=EVENT, *, writer=W, count=1):
        reply = await self.peer.ask(c.AppendBlockEnd(writer, len(data), data, count, number, self.next()))
        assert isinstance(reply, c.DataAppended)
        return reply

    async def fill(self, segment=S, events=1, writer=W):
        await self.setup(segment, writer)
        for number in range(events):
            await self.append(number, writer=writer)

    async def anew(self):
        """The same, over another connection."""
        self.peer = await self.scene.peer()


@asynccontextmanager
async def notes():
    rng = RealRng()
    memory = World(clock=RealClock(), rng=rng)
    telemetry = memory.telemetry
    controller = MemoryController()
    async with (
        memory.opened() as store,
        WireServer(
            store,
            port=0,
            rng=rng,
            telemetry=telemetry,
            limits=WireLimits(drain_s=2),
            calls=controller_calls(controller),
        ) as server,
    ):
        scene = Stage(server, store, telemetry)
        try:
            yield Notes(scene, await scene.peer(), controller)
        finally:
            for peer in scene.peers:
                await peer.close()


async def with_segments(n):
    for name in (S, T):
        await n.quietly(c.CreateSegment(n.next(), name, 0, 0, "", 0))
