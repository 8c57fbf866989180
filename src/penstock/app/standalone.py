"""One process that serves clients: segment store, controller, their ports, and HTTP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvloop

from penstock.app.embedded import Runtime, open_runtime
from penstock.app.logs import log_to_stderr
from penstock.app.memory_watch import MemoryWatch
from penstock.app.process_memory import tune_allocator
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.client.group_table import GroupTable
from penstock.model.errors import NotFoundError
from penstock.net.grpc_server import GrpcServer
from penstock.net.rest_server import RestServer
from penstock.net.wire_limits import WireLimits
from penstock.net.wire_server import WireServer
from penstock.ports.controller_service import Endpoint

_WATCH_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A serving store and the ports that it took. ``drop_buffers`` frees receive memory that nobody uses now."""

    runtime: Runtime
    controller: Endpoint
    store: Endpoint
    http: Endpoint
    drop_buffers: Callable[[], int]


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
                guard=runtime.controller.check_removal,
            )
        )
        store_port = wire.port
        http = await stack.enter_async_context(
            RestServer(
                runtime.controller,
                runtime.segments,
                epochs=runtime.controller,
                clock=runtime.clock,
                host=settings.host,
                port=settings.http_port,
                hosts=settings.http_names,
                readers_of=partial(online_readers, runtime),
                checks={"segmentstore": partial(store_failure, runtime)},
            )
        )
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
            http=Endpoint(host=settings.advertised, port=http.port),
            drop_buffers=wire.give_back_memory,
        )


async def online_readers(runtime: Runtime, scope: str, group: str) -> Sequence[str] | None:
    """The readers of a group, sorted. None for groups of Pravega's clients, which keep their state among themselves."""
    try:
        state = await GroupTable(runtime.segments, runtime.rng, scope, group).load()
    except NotFoundError:
        return None
    return sorted(state.members)


def store_failure(runtime: Runtime) -> str | None:
    """Why the segment store takes no more requests, or None."""
    offline = runtime.segments.offline
    return None if offline is None else str(offline)


def wire_limits(settings: EmbeddedSettings) -> WireLimits:
    """An eighth of what the process does not need for itself for receive buffers and unanswered bytes, less for replies."""
    share = max(4 << 20, settings.working_bytes // 8)
    return WireLimits(
        held_bytes=min(16 << 20, share),
        held_bytes_total=share,
        arena_bytes=share,
        replies_bytes=max(1 << 20, settings.working_bytes // 16),
        write_buffer_bytes=max(256 << 10, min(4 << 20, settings.working_bytes // 64)),
    )


def _memory_watch(settings: StandaloneSettings, standalone: Standalone) -> MemoryWatch:
    runtime = standalone.runtime
    return MemoryWatch(
        runtime.segments,
        settings=runtime.store_settings,
        budget_bytes=settings.store.memory_bytes,
        drop=standalone.drop_buffers,
        telemetry=runtime.telemetry,
    )


async def _serve(settings: StandaloneSettings, ready: Callable[[Any], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with open_standalone(settings) as standalone, _memory_watch(settings, standalone):
        ready(
            {
                "serving": True,
                "controller": f"{standalone.controller.host}:{standalone.controller.port}",
                "store": f"{standalone.store.host}:{standalone.store.port}",
                "http": f"{standalone.http.host}:{standalone.http.port}",
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
    tune_allocator()
    uvloop.run(_serve(settings, ready))
