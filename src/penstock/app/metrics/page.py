"""``/metrics``: the metrics of all processes of a server, in Prometheus's text formats."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from penstock.app.metrics.disk import DiskMetrics
from penstock.app.metrics.streams import StreamMetrics
from penstock.app.telemetry import Counters, Snapshot
from penstock.model.errors import PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.net.http.reading_requests import path_route

log = logging.getLogger(__name__)

_ANSWER_S = 2.0
"""A worker that takes longer is reported as not up. Prometheus gives up after 10 s."""

WorkerMetrics = Callable[[], Awaitable[Any]]
"""Asks a worker for its metrics, as ``Snapshot.to_lists``. Raises NotConnectedError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsPage:
    """The page. ``workers``: by name, as ``worker-0``; they may change. ``doors``: counts the open connections of a port."""

    own: Callable[[], Snapshot]
    workers: Mapping[str, WorkerMetrics]
    streams: StreamMetrics
    disk: DiskMetrics
    doors: dict[str, Callable[[], int]] = field(default_factory=dict)

    def route(self) -> Route:
        return path_route("/metrics", {"GET": self._answer})

    async def _answer(self, request: Request) -> Response:
        # Here, because a server that nobody scrapes saves 2 MB and 50 ms.
        from penstock.app.metrics.exposition import Source, render

        workers = dict(self.workers)
        found = await asyncio.gather(*map(self._of_worker, workers.values()))
        sources = [
            Source(process="server", snapshot=self.own()),
            Source(process="server", snapshot=self._connections()),
            *(Source(process=name, snapshot=one) for name, one in zip(workers, found, strict=True)),
            Source(process="", snapshot=self.streams.snapshot()),
            Source(process="", snapshot=await self.disk.snapshot()),
        ]
        body, content_type = render(sources, accept=request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    async def _of_worker(self, ask: WorkerMetrics) -> Snapshot:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return Snapshot.from_lists(await ask())
        except (PenstockError, TimeoutError) as error:
            log.info("a worker did not answer a scrape", extra={"error": str(error)})
            away = Counters()
            away.gauge("up", 0)
            return away.snapshot()

    def _connections(self) -> Snapshot:
        found = Counters()
        for door, count in self.doors.items():
            if door == "grpc":
                found.gauge("grpc_connections", count())
            else:
                found.gauge("http_connections", count())
        return found.snapshot()
