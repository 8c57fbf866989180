"""A server: the segment store in this process or in workers, the controller, their ports, and HTTP."""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from penstock.app.access.open_ports import OpenPorts
from penstock.app.access.refusal_audit import RefusalAudit
from penstock.app.access.security import behind_doors, open_security
from penstock.app.addresses import check_addresses
from penstock.app.descriptors import connections_allowed, raise_limit
from penstock.app.embedded import LocalRuntime, Runtime, open_runtime
from penstock.app.erasure.key import erasure_key
from penstock.app.integrity.start_check import check_workers
from penstock.app.logs import log_to_stderr
from penstock.app.memory_watch import MemoryWatch
from penstock.app.metrics.disk import DiskMetrics
from penstock.app.metrics.page import MetricsPage
from penstock.app.metrics.process import ProcessMetrics
from penstock.app.metrics.streams import StreamMetrics
from penstock.app.process_memory import tune_allocator, tune_collector
from penstock.app.restored import settle_restored
from penstock.app.segments import gate_limits, rest_limits, wire_limits
from penstock.app.settings import StandaloneSettings
from penstock.app.telemetry import Counters
from penstock.app.tier2 import check_place
from penstock.app.workers.layout import settle_layout, workers_of
from penstock.app.workers.supervisor import Worker, Workers, open_workers
from penstock.client.reading.group_table import GroupTable
from penstock.client.store import AsyncStore
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.core.segments.readiness import FUNCTIONS
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, NotFoundError, PenstockError
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.http.health import Checks
from penstock.net.http.http_server import GroupReaders, ProcessReports, RestServer
from penstock.net.security import Security
from penstock.net.tls.certificates import load_tls
from penstock.net.tls.server_tls import ServerTls
from penstock.net.traces.start import tracing
from penstock.net.wire.calls import controller_calls
from penstock.net.wire.wire_server import WireServer
from penstock.ports.control.layout import Endpoint
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.rng import RealRng
from penstock.storage.machine.signing_keys import FileSigningKeys

log = logging.getLogger(__name__)

_WATCH_S = 0.2
_FULL_BYTES = 1 << 20
"""With less free space than this, a disk counts as full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A serving store and its ports. ``workers``: the processes that hold the data; empty if this process holds it."""

    runtime: Runtime
    controller: Endpoint
    store: Endpoint
    http: Endpoint
    workers: Sequence[Worker] = ()
    tls: ServerTls | None = None


def _metrics_page(
    settings: StandaloneSettings, runtime: Runtime, processes: Sequence[Worker], streams: StreamMetrics
) -> MetricsPage:
    own = ProcessMetrics(runtime.telemetry, runtime.clock, not_ready=runtime.not_ready)
    store = runtime.segments if isinstance(runtime, LocalRuntime) else None
    return MetricsPage(
        own=partial(own.snapshot, budget_bytes=settings.store.memory_bytes, store=store),
        workers={f"worker-{one.number}": one.metrics for one in processes},
        streams=streams,
        disk=DiskMetrics(runtime.segments, runtime.clock, data=settings.store.data if processes else None),
    )


def _http_server(
    settings: StandaloneSettings,
    runtime: Runtime,
    processes: Sequence[Worker],
    metrics: MetricsPage,
    security: Security,
    open_ports: OpenPorts,
) -> RestServer:
    tls = security.tls
    control, _ = behind_doors(runtime.controller, runtime.segments, security, runtime.telemetry)
    store = AsyncStore(runtime.segments, control, runtime.clock, runtime.rng)
    return RestServer(
        control,
        # Pulsar's API keeps records of its own there, and reads offsets for callers that its paths are checked for.
        runtime.segments,
        clock=runtime.clock,
        host=settings.host,
        port=settings.http_port,
        hosts=settings.http_names,
        limits=rest_limits(settings.store),
        reports=ProcessReports(
            readers=GroupReaders(of=partial(online_readers, runtime), move=partial(move_readers, store)),
            checks=Checks(
                vital={"segmentstore": partial(store_failure, runtime.failure, processes)},
                functions={
                    **{name: partial(_reason, runtime.not_ready, name) for name in FUNCTIONS},
                    "disk": partial(disk_failure, settings.store.data),
                    **({} if tls is None else {"certificate": lambda: tls.failure}),
                },
                warnings={
                    **({} if tls is None else {"certificate": lambda: tls.problem}),
                    "insecure": open_ports.text,
                },
            ),
            telemetry=runtime.telemetry,
        ),
        routes=[metrics.route()],
        security=security,
    )


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
    if workers > 1 and settings.store.log_at is not None:
        raise InvalidArgumentError("a log on BookKeeper serves one process: leave --workers out", workers=workers)
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
        runtime.controller.use_rights(security.rights)
        chosen = settings.metrics
        streams = await stack.enter_async_context(
            StreamMetrics(runtime.controller, runtime.clock, shown=chosen.shown, named=chosen.named)
        )
        page = _metrics_page(settings, runtime, processes, streams)
        open_ports = OpenPorts(settings.host, settings.unprotected, clock=runtime.clock, show_warning=show_warning)
        http = await stack.enter_async_context(_http_server(settings, runtime, processes, page, security, open_ports))
        page.doors["http"] = lambda: http.connections
        runtime.telemetry.gauge("insecure", bool(settings.unprotected))
        await stack.enter_async_context(open_ports)
        # The controller's port opens last: a client that reaches it finds everything behind it ready.
        control, segments = behind_doors(runtime.controller, runtime.segments, security, runtime.telemetry)
        grpc = await stack.enter_async_context(
            GrpcServer(
                control,
                segments,
                host=settings.host,
                port=settings.controller_port,
                server_address=settings.advertised,
                line=workers == 1 and security.authenticator is None,
                # Each connection takes three descriptors.
                limits=gate_limits(settings.store, connections=connections_allowed() // 4),
                telemetry=runtime.telemetry,
                security=security,
            )
        )
        page.doors["grpc"] = lambda: len(grpc.gate.connections)
        yield Standalone(
            runtime=runtime,
            controller=Endpoint(host=settings.advertised, port=grpc.port),
            store=store,
            http=Endpoint(host=settings.advertised, port=http.port),
            workers=processes,
            tls=security.tls,
        )


@asynccontextmanager
async def _securing(
    settings: StandaloneSettings, telemetry: Counters, controller: Controller
) -> AsyncIterator[Security]:
    """The protection of this process's ports. Refusals go to the audit stream. Raises InvalidArgumentError."""
    clock = RealClock()
    async with AsyncExitStack() as stack:
        tls = None
        if settings.tls is not None:
            tls = await stack.enter_async_context(ServerTls(settings.tls, clock=clock, telemetry=telemetry))
        refused = await stack.enter_async_context(RefusalAudit(controller.record_refusals, clock))
        yield open_security(
            settings.access, settings.store.data, tls, clock=clock, telemetry=telemetry, refused=refused
        )


@asynccontextmanager
async def _in_this_process(settings: StandaloneSettings) -> AsyncIterator[tuple[Runtime, Security, Endpoint]]:
    """A store in this process, and where it listens."""
    store_port = settings.store_port

    def endpoint_of(segment: str) -> Endpoint:
        return Endpoint(host=settings.advertised, port=store_port)

    async with (
        open_runtime(settings.store, endpoint_of=endpoint_of, waits_for_rights=settings.access is not None) as runtime,
        _securing(settings, runtime.telemetry, runtime.controller) as security,
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
    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    async with AsyncExitStack() as stack:
        directory = DataDirectory.open(settings.store.data)
        stack.callback(directory.close)
        layout = settle_layout(settings.store.data, count)
        await check_workers(settings.store, layout)
        workers = await stack.enter_async_context(open_workers(settings, layout))
        directory.mark_complete()
        controller = await stack.enter_async_context(
            open_controller(
                workers.segments,
                clock=clock,
                rng=rng,
                endpoint_of=workers.endpoint_of,
                telemetry=telemetry,
                signing=FileSigningKeys(settings.store.data),
                settings=ControllerSettings(
                    retention_cycle_ms=settings.store.retention_cycle_ms,
                    deletion_grace_ms=settings.store.deletion_grace_ms,
                    scaling_minute_ms=settings.store.scaling_minute_ms,
                    erasure_key=erasure_key(settings.store.data, rng),
                    waits_for_rights=settings.access is not None,
                ),
            )
        )
        await settle_restored(settings.store.data, controller)
        await stack.enter_async_context(workers.serving(controller.client_removal, controller.record_refusals))
        security = await stack.enter_async_context(_securing(settings, telemetry, controller))
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


async def online_readers(runtime: Runtime, scope: str, group: str) -> Sequence[str] | None:
    """The readers of a group, sorted. None for groups of Pravega's clients, which keep their state among themselves."""
    try:
        known = await runtime.controller.groups.get(scope, group)
        state = await GroupTable(runtime, runtime.rng, known).load()
    except NotFoundError:
        return None
    return sorted(state.members)


async def move_readers(store: AsyncStore, subscriber: str, cut: StreamCut) -> None:
    """Move the readers and the acknowledged position of a group to the cut. Raises as
    ``AsyncStore.reset_reader_group``."""
    await store.reset_reader_group(subscriber, cut)


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


def _reason(not_ready: Callable[[], Mapping[str, str]], function: str) -> str | None:
    return not_ready().get(function)


def disk_failure(data: Path) -> str | None:
    """Why the disk of the data directory counts as full; None if it is not. The log and the metadata can still have
    reserved space."""
    free_bytes = shutil.disk_usage(data).free
    return None if free_bytes >= _FULL_BYTES else f"the disk of the data directory is full: {free_bytes} bytes are free"


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


async def _serve(
    settings: StandaloneSettings, ready: Callable[[Any], None], show_warning: Callable[[str], None]
) -> None:
    stop, opened = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(_serve_until(stop, opened, settings, ready, show_warning), name="server")
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not opened.is_set():
            # A start can take long, for example if tier 2 does not answer. Exiting during a start is as safe as a kill.
            serving.cancel()
        await asyncio.wait({serving})
    finally:
        stopping.cancel()
        serving.cancel()
    if serving.cancelled():
        log.info("server stopped before it was ready")
        return
    serving.result()


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
    log_to_stderr(form=settings.log_format)
    raise_limit()
    tune_allocator()
    tune_collector()
    with tracing("server", on=settings.traces):
        uvloop.run(_serve(settings, ready, show_warning))
