"""What each server process with a controller does: its HTTP and gRPC ports, its signals, its process.

``open_ports`` is called with a controller that is open, and ``run_server`` with what opens it. Used by ``standalone`` and
``cluster.controller_process``.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from penstock.app.access.open_ports import OpenPorts
from penstock.app.access.refusal_audit import RefusalAudit
from penstock.app.access.security import behind_doors, open_security
from penstock.app.descriptors import connections_allowed, raise_limit
from penstock.app.embedded import LocalRuntime, Runtime
from penstock.app.erasure.key import erasure_key
from penstock.app.logs import log_to_stderr
from penstock.app.metrics.disk import DiskMetrics
from penstock.app.metrics.page import MetricsPage, WorkerMetrics
from penstock.app.metrics.process import ProcessMetrics
from penstock.app.metrics.streams import StreamMetrics
from penstock.app.process_memory import tune_allocator, tune_collector
from penstock.app.segments import gate_limits, rest_limits
from penstock.app.settings import StandaloneSettings
from penstock.app.telemetry import Counters
from penstock.controller.context import EarlierPassed
from penstock.controller.controller import Controller, open_controller
from penstock.controller.settings import ControllerSettings
from penstock.core.segments.readiness import FUNCTIONS
from penstock.model.cuts import StreamCut
from penstock.model.errors import NotFoundError
from penstock.model.values.dataclass import dataclass
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.http.health import Checks
from penstock.net.http.http_server import GroupReaders, ProcessReports, RestServer
from penstock.net.security import Security
from penstock.net.tls.server_tls import ServerTls
from penstock.net.traces.start import tracing
from penstock.ports.clock import Clock
from penstock.ports.control.layout import Endpoint
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import LocalSegmentService
from penstock.ports.rng import Rng
from penstock.ports.signing import SigningKeys
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.signing_keys import FileSigningKeys

log = logging.getLogger(__name__)

_FULL_BYTES = 1 << 20
"""With less free space than this, a disk counts as full."""

Serve = Callable[[asyncio.Event, asyncio.Event], Coroutine[Any, Any, None]]
"""Serves until the first event is set, and sets the second one once it serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The processes that hold the data.

    ``failure``: why this process is not live, or None; a restart may help then. ``away``: why some data cannot be
    reached now, or None. ``metrics``: asks each process, by its name; looked at for each scrape. ``has_line``: the
    segment store is this process, and gRPC may pass it requests of a thread. ``outdated``: why no user is accepted, or
    None; only controllers of a cluster ask. ``disk``: the directory to measure; None:
    the segment store measures its own.
    """

    failure: Callable[[], str | None]
    away: Callable[[], str | None] = lambda: None
    metrics: Mapping[str, WorkerMetrics] = field(default_factory=dict)
    has_line: bool = False
    disk: Path | None = None
    outdated: Callable[[], str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the process listens, as clients reach it."""

    grpc: Endpoint
    http: Endpoint


@asynccontextmanager
async def open_control(
    settings: StandaloneSettings,
    segments: LocalSegmentService,
    *,
    clock: Clock,
    rng: Rng,
    endpoint_of: Callable[[str], Endpoint],
    telemetry: Counters,
    erasure_refused: Callable[[], str | None] = lambda: None,
    earlier_removals_passed: EarlierPassed | None = None,
    signing: SigningKeys | None = None,
) -> AsyncIterator[Controller]:
    """A controller over the stores of other processes, with its keys in the data directory. ``signing``: the keys of the
    audit log; None: there too. ``erasure_refused``: see ``ControllerSettings``. ``earlier_removals_passed``: see
    ``open_controller``. Raises as ``open_controller``;
    CorruptDataError: a key cannot be read."""
    store = settings.store
    async with open_controller(
        segments,
        clock=clock,
        rng=rng,
        endpoint_of=endpoint_of,
        telemetry=telemetry,
        signing=signing or FileSigningKeys(store.data),
        settings=ControllerSettings(
            retention_cycle_ms=store.retention_cycle_ms,
            deletion_grace_ms=store.deletion_grace_ms,
            scaling_minute_ms=store.scaling_minute_ms,
            erasure_key=erasure_key(store.data, rng),
            erasure_refused=erasure_refused,
            waits_for_rights=settings.access is not None,
        ),
        earlier_removals_passed=earlier_removals_passed,
    ) as controller:
        yield controller


@asynccontextmanager
async def securing(
    settings: StandaloneSettings,
    telemetry: Counters,
    controller: Controller,
    outdated: Callable[[], str | None] = lambda: None,
) -> AsyncIterator[Security]:
    """The protection of this process's ports. Refusals go to the audit stream. ``outdated``: as for ``open_security``. Raises
    InvalidArgumentError."""
    clock = RealClock()
    async with AsyncExitStack() as stack:
        tls = None
        if settings.tls is not None:
            tls = await stack.enter_async_context(ServerTls(settings.tls, clock=clock, telemetry=telemetry))
        refused = await stack.enter_async_context(RefusalAudit(controller.record_refusals, clock))
        yield open_security(
            settings.access,
            settings.store.data,
            tls,
            clock=clock,
            telemetry=telemetry,
            refused=refused,
            outdated=outdated,
        )


@asynccontextmanager
async def open_ports(
    settings: StandaloneSettings,
    runtime: Runtime,
    security: Security,
    parts: Parts,
    show_warning: Callable[[str], None] = log.debug,
    *,
    missing: Sequence[str] | None = None,
) -> AsyncIterator[Ports]:
    """Listen for HTTP, then for gRPC. ``show_warning``: for the console. ``missing``: what protects the ports from other
    machines and is missing; None: as the settings say. Raises AddressInUseError if a port is taken."""
    missing = settings.unprotected if missing is None else missing
    runtime.controller.use_rights(security.rights)
    chosen = settings.metrics
    async with AsyncExitStack() as stack:
        streams = await stack.enter_async_context(
            StreamMetrics(runtime.controller, runtime.clock, shown=chosen.shown, named=chosen.named)
        )
        page = _metrics_page(settings, runtime, parts, streams)
        unprotected = OpenPorts(settings.host, missing, clock=runtime.clock, show_warning=show_warning)
        http = await stack.enter_async_context(_http_server(settings, runtime, parts, page, security, unprotected))
        page.doors["http"] = lambda: http.connections
        runtime.telemetry.gauge("insecure", bool(missing))
        await stack.enter_async_context(unprotected)
        # The controller's port opens last: a client that reaches it finds everything behind it ready.
        control, segments = behind_doors(runtime.controller, runtime.segments, security, runtime.telemetry)
        grpc = await stack.enter_async_context(
            GrpcServer(
                control,
                segments,
                host=settings.host,
                port=settings.controller_port,
                server_address=settings.advertised,
                line=parts.has_line and security.authenticator is None,
                # Each connection takes three descriptors.
                limits=gate_limits(settings.store, connections=connections_allowed() // 4),
                telemetry=runtime.telemetry,
                security=security,
            )
        )
        page.doors["grpc"] = lambda: len(grpc.gate.connections)
        yield Ports(
            grpc=Endpoint(host=settings.advertised, port=grpc.port),
            http=Endpoint(host=settings.advertised, port=http.port),
        )


def _metrics_page(settings: StandaloneSettings, runtime: Runtime, parts: Parts, streams: StreamMetrics) -> MetricsPage:
    own = ProcessMetrics(runtime.telemetry, runtime.clock, not_ready=runtime.not_ready)
    store = runtime.segments if isinstance(runtime, LocalRuntime) else None
    return MetricsPage(
        own=partial(own.snapshot, budget_bytes=settings.store.memory_bytes, store=store),
        workers=parts.metrics,
        streams=streams,
        disk=DiskMetrics(runtime.segments, runtime.clock, data=parts.disk, away=parts.away),
    )


def _http_server(
    settings: StandaloneSettings,
    runtime: Runtime,
    parts: Parts,
    metrics: MetricsPage,
    security: Security,
    open_ports: OpenPorts,
) -> RestServer:
    tls = security.tls
    control, _ = behind_doors(runtime.controller, runtime.segments, security, runtime.telemetry)
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
            readers=GroupReaders(of=partial(online_readers, runtime), move=partial(move_readers, runtime, control)),
            checks=Checks(
                vital={"segmentstore": parts.failure},
                functions={
                    **{name: partial(_reason, runtime.not_ready, name) for name in FUNCTIONS},
                    "disk": partial(disk_failure, settings.store.data),
                    **({} if tls is None else {"certificate": lambda: tls.failure}),
                    **({} if parts.outdated is None else {"users": parts.outdated}),
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


async def online_readers(runtime: Runtime, scope: str, group: str) -> Sequence[str] | None:
    """The readers of a group, sorted. None for groups of Pravega's clients, which keep their state among themselves."""
    # Imported here: most servers are never asked, and start earlier without the client.
    from penstock.client.reading.group_table import GroupTable

    try:
        known = await runtime.controller.groups.get(scope, group)
        state = await GroupTable(runtime, runtime.rng, known).load()
    except NotFoundError:
        return None
    return sorted(state.members)


async def move_readers(runtime: Runtime, control: ControlPlane, subscriber: str, cut: StreamCut) -> None:
    """Move the readers and the acknowledged position of a group to the cut. Raises as
    ``AsyncStore.reset_reader_group``."""
    from penstock.client.store import AsyncStore  # only here, as above

    await AsyncStore(runtime.segments, control, runtime.clock, runtime.rng).reset_reader_group(subscriber, cut)


def _reason(not_ready: Callable[[], Mapping[str, str]], function: str) -> str | None:
    return not_ready().get(function)


def disk_failure(data: Path) -> str | None:
    """Why the disk of the data directory counts as full; None if it is not. The log and the metadata can still have
    reserved space."""
    free_bytes = shutil.disk_usage(data).free
    return None if free_bytes >= _FULL_BYTES else f"the disk of the data directory is full: {free_bytes} bytes are free"


def run_server(serve: Serve, settings: StandaloneSettings, *, name: str) -> None:
    """Run a server process until SIGINT or SIGTERM. ``name``: in logs and spans. Raises what ``serve`` raises."""
    log_to_stderr(form=settings.log_format)
    raise_limit()
    tune_allocator()
    tune_collector()
    with tracing(name, on=settings.traces):
        uvloop.run(_until_signal(serve))


async def _until_signal(serve: Serve) -> None:
    stop, opened = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.ensure_future(serve(stop, opened))
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
