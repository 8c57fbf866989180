"""Two workers in this process, each with a store of its own, behind the lines and the router of the real ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from penstock.app.workers.layout import WorkerLayout
from penstock.net.workers.line import WorkerLine
from penstock.net.workers.link import WorkerLink, open_link
from penstock.net.workers.worker_segments import WorkerSegments
from penstock.net.workers.worker_server import WorkerServer
from penstock.segmentstore.store import SegmentStore
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.shared_counts import CountsMemory, WorkerCounts
from penstock.testing.fakes import SeededRng
from penstock.testing.world import World

PATIENCE_S = 30.0
STREAM = "scope/stream"
NAMES = [f"{STREAM}/{number}.#epoch.0" for number in range(4)]
LAYOUT = WorkerLayout(workers=2, containers=4)


class OneWorker:
    """A worker: ``start`` recovers and attaches it, ``die`` cuts its line and leaves its disks as they are."""

    def __init__(self, number: int, counts: CountsMemory | None) -> None:
        self.number = number
        self.line = WorkerLine(number, patience_s=5.0)
        self.world = World(clock=RealClock(), rng=SeededRng(number), containers=LAYOUT.containers)
        self.world.options["owned"] = LAYOUT.owned(number)
        self.store: SegmentStore
        self._counts = counts
        self._links: list[WorkerLink] = []
        self._reporting: list[asyncio.Future[None]] = []

    async def start(self, segments: WorkerSegments) -> None:
        counts = None
        if self._counts is not None:
            counts = WorkerCounts(self._counts.fileno(), worker=self.number, workers=LAYOUT.workers)
            self.world.options["shared"] = counts
        self.store = await self.world.open()
        server = WorkerServer(counts)
        server.serve(self.store)
        ours, theirs = socket.socketpair()
        far = await open_link(theirs, name="worker", handlers=server.handlers(), takers=server.takers())
        reached = partial(segments.note_reached, worker=self.number)
        handlers = {"limits_reached": reached, "rates_reported": segments.note_rates}
        near = await open_link(ours, name="server", handlers=handlers)
        self._links = [near, far]
        self._reporting = [
            asyncio.ensure_future(server.report_limits(lambda met: far.call("limits_reached", met))),
            asyncio.ensure_future(server.report_rates(lambda found: far.call("rates_reported", found))),
        ]
        self.line.attach(near)

    async def die(self, *, checkpoint: bool = False) -> None:
        self.line.attach(None)
        for link in self._links:
            link.close()
        await asyncio.wait([link.closed for link in self._links])
        for task in self._reporting:
            task.cancel()
        if self._reporting:
            await asyncio.wait(self._reporting)
        await self.store.close(checkpoint=checkpoint)


class WorkersWorld:
    """The disks of all workers, and the store that is open on them. ``shared``: the workers share memory."""

    def __init__(self, *, shared: bool = True) -> None:
        self.counts = CountsMemory(LAYOUT.workers) if shared else None
        self.workers = [OneWorker(number, self.counts) for number in range(LAYOUT.workers)]
        self.segments: WorkerSegments

    @asynccontextmanager
    async def open(self, *, checkpoint: bool = True) -> AsyncIterator[WorkerSegments]:
        self.segments = WorkerSegments(
            [worker.line for worker in self.workers], containers=LAYOUT.containers, rows=self.counts
        )
        async with AsyncExitStack() as stack:
            for worker in self.workers:
                await worker.start(self.segments)
                stack.push_async_callback(worker.die, checkpoint=checkpoint)
            yield self.segments

    async def restart(self, number: int) -> None:
        """Kill one worker, and have it back."""
        await self.workers[number].die()
        await self.workers[number].start(self.segments)
        await self.segments.restore_limits(number)

    def close(self) -> None:
        if self.counts is not None:
            self.counts.close()


def run_in_world(body: Callable[[WorkersWorld], Awaitable[None]], *, shared: bool = True) -> None:
    """Run the test with two open workers."""

    async def main() -> None:
        world = WorkersWorld(shared=shared)
        try:
            async with asyncio.timeout(PATIENCE_S), world.open():
                await body(world)
        finally:
            world.close()

    asyncio.run(main())


def by_worker(segments: WorkerSegments) -> dict[int, list[str]]:
    """By worker, segments of one stream that it owns."""
    found: dict[int, list[str]] = {}
    for name in NAMES:
        found.setdefault(segments.worker_of(name), []).append(name)
    return found
