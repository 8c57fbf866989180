"""A store of several workers on a disk, all in this process, behind the lines and the router of the real ones."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.app.restored import reconcile_restored, settle_restored
from penstock.app.segments import open_segments
from penstock.app.serving import open_control
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import tier2_of_worker
from penstock.app.workers.layout import settle_layout, worker_directory
from penstock.client.store import AsyncStore
from penstock.controller.controller import Controller
from penstock.net.workers.line import WorkerLine
from penstock.net.workers.link import open_link
from penstock.net.workers.worker_segments import WorkerSegments
from penstock.net.workers.worker_server import WorkerServer
from penstock.ports.control.layout import Endpoint
from penstock.segmentstore.store import SegmentStore
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.rng import RealRng

WORKERS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The store, and the stores of its workers."""

    store: AsyncStore
    segments: WorkerSegments
    controller: Controller
    workers: Sequence[SegmentStore]

    async def tier(self, *workers: int) -> None:
        """Bring all that these workers have to tier 2; none given: all workers."""
        await self.controller.drain_audit()
        for worker in workers or range(len(self.workers)):
            await self.workers[worker].flush()

    def worker_of(self, segment: str) -> int:
        return self.segments.worker_of(segment)


def settings_of(data: Path, tier2: Path | None = None) -> EmbeddedSettings:
    return EmbeddedSettings(
        data=data,
        log_bytes=80 << 20,
        chunk_bytes=64 << 10,
        retention_cycle_ms=3_600_000,
        tier2=None if tier2 is None else str(tier2),
    )


@asynccontextmanager
async def running(data: Path, tier2: Path | None = None, *, workers: int = WORKERS) -> AsyncIterator[Opened]:
    settings = settings_of(data, tier2)
    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    async with AsyncExitStack() as stack:
        directory = stack.enter_context(DataDirectory.open(data))
        layout = settle_layout(data, workers)
        stores, lines = [], []
        for worker in range(workers):
            own = stack.enter_context(DataDirectory.open(worker_directory(data, worker)))
            store = await stack.enter_async_context(
                open_segments(
                    replace(settings, data=own.path, tier2=tier2_of_worker(settings, worker)),
                    clock=clock,
                    rng=rng,
                    telemetry=telemetry,
                    containers=layout.containers,
                    owned=layout.owned(worker),
                )
            )
            own.mark_complete()
            server, line = WorkerServer(None), WorkerLine(worker, patience_s=5.0)
            server.serve(store)
            ours, theirs = socket.socketpair()
            far = await open_link(theirs, name="worker", handlers=server.handlers(), takers=server.takers())
            near = await open_link(ours, name="server", handlers={})
            stack.callback(far.close)
            stack.callback(near.close)
            line.attach(near)
            stores.append(store)
            lines.append(line)
        directory.mark_complete()
        segments = WorkerSegments(lines, containers=layout.containers)
        await reconcile_restored(data, segments)
        controller = await stack.enter_async_context(
            open_control(
                StandaloneSettings(store=settings, workers=workers),
                segments,
                clock=clock,
                rng=rng,
                endpoint_of=lambda _: Endpoint(host="here", port=0),
                telemetry=telemetry,
            )
        )
        await settle_restored(data, controller)
        yield Opened(
            store=AsyncStore(segments, controller, clock, rng),
            segments=segments,
            controller=controller,
            workers=stores,
        )
