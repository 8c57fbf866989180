"""One process that serves clients: segment store, controller and both of their ports."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvloop

from penstock.app.embedded import Runtime, open_runtime
from penstock.app.logs import log_to_stderr
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.net.grpc_server import GrpcServer
from penstock.net.wire_limits import WireLimits
from penstock.net.wire_server import WireServer
from penstock.ports.controller_service import Endpoint

_WATCH_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A serving store and the ports that it took."""

    runtime: Runtime
    controller: Endpoint
    store: Endpoint


@asynccontextmanager
async def open_standalone(settings: StandaloneSettings) -> AsyncIterator[Standalone]:
    """Recover, then listen; the ports open only when everything can be served.

    Raises what ``open_runtime`` raises, and UnavailableError where a port is taken.
    """
    store_port = settings.store_port

    def endpoint_of(segment: str) -> Endpoint:
        return Endpoint(host=settings.advertised, port=store_port)

    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(open_runtime(settings.store, endpoint_of=endpoint_of))
        wire = await stack.enter_async_context(
            WireServer(
                runtime.segments,
                host=settings.host,
                port=settings.store_port,
                rng=runtime.rng,
                telemetry=runtime.telemetry,
                limits=wire_limits(settings.store),
            )
        )
        store_port = wire.port
        # The controller's port opens last: a client that reaches it finds everything behind it ready.
        grpc = await stack.enter_async_context(
            GrpcServer(
                runtime.controller,
                runtime.segments,
                host=settings.host,
                port=settings.controller_port,
                server_address=settings.advertised,
            )
        )
        yield Standalone(
            runtime=runtime,
            controller=Endpoint(host=settings.advertised, port=grpc.port),
            store=Endpoint(host=settings.advertised, port=wire.port),
        )


def wire_limits(settings: EmbeddedSettings) -> WireLimits:
    """Receive buffers and unanswered bytes take the quarter of the budget that caches and tiering leave."""
    share = max(32 << 20, settings.memory_bytes // 4)
    return WireLimits(held_bytes_total=share, arena_bytes=share, replies_bytes=settings.memory_bytes // 16)


async def _serve(settings: StandaloneSettings, ready: Callable[[Any], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with open_standalone(settings) as standalone:
        ready(
            {
                "serving": True,
                "controller": f"{standalone.controller.host}:{standalone.controller.port}",
                "store": f"{standalone.store.host}:{standalone.store.port}",
                "data": str(settings.store.data),
            }
        )
        while standalone.runtime.segments.offline is None:
            try:
                await asyncio.wait_for(stop.wait(), _WATCH_S)
            except TimeoutError:
                continue
            return
        # Acknowledging more would be a lie; leave, so that a supervisor starts a process that recovers.
        raise standalone.runtime.segments.offline


def run(settings: StandaloneSettings, *, ready: Callable[[Any], None]) -> None:
    """Serve until SIGINT or SIGTERM. Calls ``ready`` once with the addresses. Raises when the store cannot go on."""
    log_to_stderr()
    uvloop.run(_serve(settings, ready))
