"""What the tests of the wire talk with: a raw peer that speaks frames, and a server with its store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import uvloop
from wire_memory_store import MemorySegments, OneEndpoint

from penstock.app.telemetry import Counters
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.wire.wire_server import WireLimits, WireServer
from penstock.storage.machine.rng import RealRng

DEADLINE_S = 20.0
LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(main, loop="asyncio"):
    async def bounded():
        async with asyncio.timeout(DEADLINE_S):
            return await main

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        return runner.run(bounded())


async def until(condition):
    """Let the loop turn until the condition holds; the deadline of the test bounds it."""
    while not condition():
        await asyncio.sleep(0.001)


class RawPeer:
    """A client that sends what it likes."""

    def __init__(self, reader, writer):
        self.reader = reader
        self.writer = writer

    async def send(self, *items):
        for item in items:
            self.writer.write(item if isinstance(item, bytes | memoryview) else wire.encode(item))
        await self.writer.drain()

    async def receive(self):
        code, length = wire.HEADER.unpack(await self.reader.readexactly(8))
        return wire.decode(code, memoryview(await self.reader.readexactly(length)))

    async def ask(self, *items):
        await self.send(*items)
        return await self.receive()

    async def closed_by_server(self):
        return await self.reader.read() == b""

    async def close(self):
        self.writer.close()
        await asyncio.wait([asyncio.ensure_future(self.writer.wait_closed())])


class Stage:
    """A server over a memory store, and the peers connected to it."""

    def __init__(self, server, store, telemetry):
        self.server = server
        self.store = store
        self.telemetry = telemetry
        self.peers = []

    async def peer(self, *, hello=True):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        peer = RawPeer(reader, writer)
        self.peers.append(peer)
        if hello:
            assert await peer.ask(c.Hello(17, 5)) == c.Hello(17, 5)
        return peer

    async def settle(self):
        """Return after the server's loop has turned several times, with nothing left to read but what it refuses."""
        peer = await self.peer()
        for _ in range(10):
            await peer.ask(c.KeepAlive())

    async def writer(self, segment, number, *, peer=None):
        """A peer with writer id ``number`` set up on a segment that exists."""
        peer = peer or await self.peer()
        writer = UUID(int=number).bytes
        setup = await peer.ask(c.SetupAppend(1, writer, segment, ""))
        assert isinstance(setup, c.AppendSetup)
        return peer, writer


@asynccontextmanager
async def stage(store=None, guard=None, **limits):
    store = store or MemorySegments()
    telemetry = Counters()
    limits.setdefault("drain_s", 2.0)
    async with WireServer(
        store, port=0, rng=RealRng(), telemetry=telemetry, limits=WireLimits(**limits), guard=guard
    ) as server:
        scene = Stage(server, store, telemetry)
        try:
            yield scene
        finally:
            for peer in scene.peers:
                await peer.close()


@asynccontextmanager
async def remote(server, store, **limits):
    controller = OneEndpoint("127.0.0.1", server.port)
    async with RemoteSegments(
        controller, native=store, rng=RealRng(), telemetry=Counters(), limits=DialLimits(**limits)
    ) as segments:
        yield segments
