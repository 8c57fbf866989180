"""A blocking store whose appends can meet a fate on their way."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager

from penstock.app.telemetry import Counters
from penstock.client.blocking.stores import Store
from penstock.controller.controller import open_controller
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    NotConnectedError,
)
from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.wire.wire_server import WireLimits, WireServer
from penstock.ports.control.layout import Endpoint
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_log import MemoryLog
from penstock.testing import world as testing


class QuickLog(MemoryLog):
    """Commits in place, as on a disk that syncs fast, but for each ninth time."""

    taken = 0

    def append_in_place(self, frames):
        self.taken += 1
        if self._pending or self.taken % 9 == 0:
            return None
        addresses = []
        for parts in frames:
            self._state.last += 1
            self._state.frames.append((self._state.last, b"".join(parts)))
            addresses.append(self._state.last)
        return addresses


class FaultyStore:
    """A store whose appends can meet a fate on their way in or out. ``fate`` is asked for each append. Without a server in
    between there is a failure in place of a connection that is lost."""

    def __init__(self, inner) -> None:
        self._inner = inner
        self.server = None
        self.fate = lambda request: "store"
        self.met: Counter[str] = Counter()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def cut(self) -> None:
        for connection in list(self.server._share.connections):
            connection.abort()

    def lose(self, done) -> None:
        if self.server is not None:
            self.cut()
        else:
            asyncio.get_running_loop().call_soon(done, NotConnectedError("connection is lost"))

    def submit_append(self, request, done):
        fate = self.fate(request)
        self.met[fate] += 1
        if fate == "swallow":
            return  # as if the store had stopped
        if fate == "lose request":
            self.lose(done)
            return

        def answered(outcome):
            if fate == "lose answer":
                self.lose(done)
                if self.server is None:
                    return
            done(outcome)

        self._inner.submit_append(request, answered)


class DirectStore:
    """A blocking store, over loopback or in this process; server and client share the loop of its thread."""

    def __init__(self, kind: str = "wire", host: str = "127.0.0.1") -> None:
        self.kind = kind
        self.host = host
        self.telemetry = Counters()
        self.faulty: FaultyStore | None = None
        self.controller = None
        self.store = Store(self._open, local=kind != "wire")

    @asynccontextmanager
    async def _open(self):
        rng = RealRng()
        memory = testing.World(clock=RealClock(), rng=rng)
        memory.telemetry = self.telemetry
        if self.kind == "in place":
            memory.make_log = QuickLog
        async with memory.opened() as segments:
            self.faulty = FaultyStore(segments)
            if self.kind != "wire":
                async with self._controller(segments, 1) as controller:
                    self.controller = controller
                    yield self.faulty, controller
                return
            async with WireServer(
                self.faulty, port=0, rng=rng, telemetry=self.telemetry, limits=WireLimits(drain_s=1)
            ) as server:
                self.faulty.server = server
                async with (
                    self._controller(segments, server.port) as controller,
                    RemoteSegments(
                        controller, native=segments, rng=rng, telemetry=self.telemetry, limits=DialLimits()
                    ) as remote,
                ):
                    self.controller = controller
                    yield remote, controller

    def _controller(self, segments, port):
        endpoint = Endpoint(host=self.host, port=port)
        settings = ControllerSettings(retention_cycle_ms=None)
        return open_controller(segments, RealClock(), RealRng(), lambda _: endpoint, self.telemetry, settings)

    def in_loop(self, work) -> object:
        """Run the coroutine in the store's loop."""
        return self.store.call(lambda _: work)

    @property
    def lines(self) -> int:
        return self.telemetry.counts.get("direct_lines", 0) if self.kind == "wire" else self.faulty.met["line"]

    def events(self, name: str) -> list[bytes]:
        with self.store.stream(name).reader(until_tail=True) as reader:
            return [event.data for event in reader]
