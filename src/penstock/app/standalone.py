"""A server: the segment store in this process or in workers, the controller, their ports, and HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.app.addresses import check_addresses
from penstock.app.descriptors import connections_allowed
from penstock.app.embedded import Runtime, open_runtime
from penstock.app.integrity.start_check import check_workers
from penstock.app.memory_watch import MemoryWatch
from penstock.app.restored import reconcile_restored, settle_restored
from penstock.app.segments import wire_limits
from penstock.app.serving import Parts, open_control, open_ports, run_server, securing
from penstock.app.settings import StandaloneSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import check_place
from penstock.app.workers.layout import settle_layout, workers_of
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.net.security import Security
from penstock.net.tls.certificates import load_tls
from penstock.net.tls.server_tls import ServerTls
from penstock.net.wire.calls import controller_calls
from penstock.net.wire.wire_server import WireServer
from penstock.ports.control.layout import Endpoint
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.rng import RealRng

if TYPE_CHECKING:
    from penstock.app.workers.supervisor import Worker, Workers

log = logging.getLogger(__name__)

_WATCH_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A serving store and its ports. ``workers``: the processes that hold the data; empty if this process holds it."""

    runtime: Runtime
    controller: Endpoint
    store: Endpoint
    http: Endpoint
    workers: Sequence[Worker] = ()
    tls: ServerTls | None = None


@asynccontextmanager
async def open_standalone(
    settings: StandaloneSettings, show_warning: Callable[[str], None] = log.debug
) -> AsyncIterator[Standalone]:
    """Recover, then listen. The ports open when everything can be served. ``show_warning``: for the console.

    Raises what ``open_runtime`` and ``open_workers`` raise, and AddressInUseError if a port is taken. As far as possible,
    errors are raised before a new store is created.
    """
    if settings.tls is not None:
        load_tls(settings.tls, now_ms=RealClock().now_ms())
    workers = workers_of(settings.store.data, settings.workers)
    if workers > 1 and settings.store.log_url is not None:
        raise InvalidArgumentError(
            "a log on BookKeeper or in tier 2 serves one process: leave --workers out", workers=workers
        )
    check_place(settings.store)
    if not (settings.store.data / "VERSION").exists():
        # For an existing store, errors of the store come first, above all that it is in use.
        await check_addresses(settings, workers)
    async with AsyncExitStack() as stack:
        if workers == 1:
            runtime, security, store = await stack.enter_async_context(_in_this_process(settings))
            processes: Sequence[Worker] = ()
        else:
            runtime, security, pool = await stack.enter_async_context(_in_workers(settings, workers))
            store, processes = pool.endpoints[0], pool.workers
        failure = partial(store_failure, runtime.failure, processes)
        parts = Parts(
            failure=failure,
            away=failure,
            metrics={f"worker-{one.number}": one.metrics for one in processes},
            has_line=workers == 1,
            disk=settings.store.data if processes else None,
        )
        ports = await stack.enter_async_context(open_ports(settings, runtime, security, parts, show_warning))
        yield Standalone(
            runtime=runtime,
            controller=ports.grpc,
            store=store,
            http=ports.http,
            workers=processes,
            tls=security.tls,
        )


@asynccontextmanager
async def _in_this_process(settings: StandaloneSettings) -> AsyncIterator[tuple[Runtime, Security, Endpoint]]:
    """A store in this process, and where it listens."""
    store_port = settings.store_port

    def endpoint_of(segment: str) -> Endpoint:
        return Endpoint(host=settings.advertised, port=store_port)

    async with (
        open_runtime(settings.store, endpoint_of=endpoint_of, waits_for_rights=settings.access is not None) as runtime,
        securing(settings, runtime.telemetry, runtime.controller) as security,
        WireServer(
            runtime.segments,
            host=settings.host,
            port=settings.store_port,
            rng=runtime.rng,
            telemetry=runtime.telemetry,
            limits=wire_limits(settings.store, connections=connections_allowed()),
            guard=runtime.controller.client_removal,
            # With identities they are made over gRPC, where the caller's credentials are.
            calls=controller_calls(runtime.controller) if security.authenticator is None else None,
            security=security,
        ) as wire,
        MemoryWatch(
            runtime.segments,
            budget_bytes=settings.store.memory_bytes,
            drop=wire.give_back_memory,
            report=wire.memory_is_short,
            telemetry=runtime.telemetry,
        ),
    ):
        store_port = wire.port
        yield runtime, security, endpoint_of("")


@asynccontextmanager
async def _in_workers(settings: StandaloneSettings, count: int) -> AsyncIterator[tuple[Runtime, Security, Workers]]:
    """A store in worker processes, which listen. The controller runs in this process."""
    from penstock.app.workers.supervisor import open_workers  # only here: most servers are one process

    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    async with AsyncExitStack() as stack:
        directory = DataDirectory.open(settings.store.data)
        stack.callback(directory.close)
        layout = settle_layout(settings.store.data, count)
        await check_workers(settings.store, layout)
        workers = await stack.enter_async_context(open_workers(settings, layout))
        directory.mark_complete()
        await reconcile_restored(settings.store.data, workers.segments)
        controller = await stack.enter_async_context(
            open_control(
                settings,
                workers.segments,
                clock=clock,
                rng=rng,
                endpoint_of=workers.endpoint_of,
                telemetry=telemetry,
            )
        )
        await settle_restored(settings.store.data, controller)
        await stack.enter_async_context(workers.serving(controller.client_removal, controller.record_refusals))
        security = await stack.enter_async_context(securing(settings, telemetry, controller))
        runtime = Runtime(
            segments=workers.segments,
            controller=controller,
            clock=clock,
            rng=rng,
            telemetry=telemetry,
            failure=lambda: workers.failure,
            not_ready=workers.not_ready,
        )
        yield runtime, security, workers


def store_failure(failed: Callable[[], PenstockError | None], workers: Sequence[Worker]) -> str | None:
    """Why the segment store, or a part of it, accepts no requests now; None if it does."""
    failure = failed()
    if failure is not None:
        return str(failure)
    away = [str(worker.number) for worker in workers if worker.line.link is None]
    silent = [str(worker.number) for worker in workers if worker.line.link is not None and worker.silent]
    problems = [f"being started again: worker {', '.join(away)}"] if away else []
    problems += [f"does not answer: worker {', '.join(silent)}"] if silent else []
    return "; ".join(problems) or None


def _facts(standalone: Standalone, settings: StandaloneSettings) -> dict[str, Any]:
    """The facts that a server prints when it is ready."""

    def place(endpoint: Endpoint) -> str:
        return f"{endpoint.host}:{endpoint.port}"

    return {
        "serving": True,
        "controller": place(standalone.controller),
        "store": place(standalone.store),
        "http": place(standalone.http),
        "data": str(settings.store.data),
        "tls": settings.tls is not None,
        "auth": settings.access is not None,
        "workers": [
            {"worker": one.number, "store": place(one.endpoint or standalone.store), "pid": one.pid}
            for one in standalone.workers
        ],
    }


async def _serve_until(
    stop: asyncio.Event,
    opened: asyncio.Event,
    settings: StandaloneSettings,
    ready: Callable[[Any], None],
    show_warning: Callable[[str], None],
) -> None:
    async with open_standalone(settings, show_warning) as standalone:
        opened.set()
        tls = standalone.tls
        if tls is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, tls.reload)
        ready(_facts(standalone, settings))
        while (failure := standalone.runtime.failure()) is None:
            try:
                await asyncio.wait_for(stop.wait(), _WATCH_S)
            except TimeoutError:
                continue
            return
        # Nothing more can be acknowledged. Exit, so that a supervisor starts a process that recovers.
        raise failure


def run(
    settings: StandaloneSettings, *, ready: Callable[[Any], None], show_warning: Callable[[str], None] = log.debug
) -> None:
    """Serve until SIGINT or SIGTERM. Calls ``ready`` once with the addresses, and ``show_warning`` with each warning.
    Raises if the store cannot continue."""

    async def serve(stop: asyncio.Event, opened: asyncio.Event) -> None:
        await _serve_until(stop, opened, settings, ready, show_warning)

    run_server(serve, settings, name="server")
