"""One worker: a process that serves a share of a server's segments and takes orders from that server.

Only ``penstock standalone`` starts it: it inherits a descriptor, which is the line to its server. When the line ends, the
worker stops at once, as if killed. Everything that it acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from penstock.app.access.refusal_audit import RefusalAudit
from penstock.app.descriptors import connections_allowed, raise_limit
from penstock.app.logs import LogFormat, log_to_stderr
from penstock.app.memory_watch import MemoryWatch
from penstock.app.metrics.process import ProcessMetrics
from penstock.app.process_memory import tune_allocator, tune_collector
from penstock.app.segments import open_segments, wire_limits
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.app.workers.layout import WorkerLayout
from penstock.model.errors import InternalError, PenstockError, UnavailableError
from penstock.model.values.dataclass import dataclass
from penstock.net.security import Security
from penstock.net.tls.server_tls import ServerTls
from penstock.net.tls.settings import TlsSettings
from penstock.net.traces.start import tracing
from penstock.net.wire.requests import RemovalGuard
from penstock.net.wire.wire_server import WireServer
from penstock.net.workers.link import Answer, Handler, WorkerLink, open_link
from penstock.net.workers.worker_server import WorkerServer
from penstock.segmentstore.store import SegmentStore
from penstock.storage.access.delegation import Verifier
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.rng import RealRng
from penstock.storage.machine.shared_counts import WorkerCounts

log = logging.getLogger(__name__)

_WATCH_S = 0.2
_ORDERS_MAX = 16  # orders in the queue
_LEAVE_S = 5.0


@dataclass(frozen=True, slots=True)
class _Order:
    """An action that the server waits for. Orders run one at a time, in order."""

    name: str
    arguments: tuple[Any, ...]
    done: asyncio.Future[Any]


class WorkerProcess:
    """The life of a worker: open, serve, drain, close, as the server orders."""

    def __init__(self, descriptor: int, worker: int, workers: int) -> None:
        self._number = worker
        self._counts = WorkerCounts(descriptor, worker=worker, workers=workers)
        self._server = WorkerServer(self._counts)
        self._orders: asyncio.Queue[_Order] = asyncio.Queue(_ORDERS_MAX)
        self._rng = RealRng()
        self._telemetry = Counters()
        self._metrics = ProcessMetrics(self._telemetry, RealClock(), not_ready=self._not_ready)
        self._wire = AsyncExitStack()
        self._settings: EmbeddedSettings | None = None
        self._store: SegmentStore | None = None
        self._leaving = False

    async def run(self, sock: socket.socket) -> None:
        """Serve the server's calls until it orders close. Raises what opening the store raises, ContainerOfflineError if
        the store can no longer write, and CancelledError if the server has ended."""
        link = await open_link(
            sock,
            name=f"worker {self._number}",
            handlers=self._handlers(),
            takers={**self._server.takers(), "pulse": self._answer_heartbeat, "metrics": self._answer_metrics},
        )
        own = asyncio.current_task()
        link.closed.add_done_callback(lambda _: own.cancel() if own is not None and not self._leaving else None)
        order = await self._orders.get()
        outcome: PenstockError | None = None
        try:
            async with AsyncExitStack() as stack:
                store = await self._open(order, stack)
                limits = asyncio.ensure_future(self._server.report_limits(lambda met: link.call("limits_reached", met)))
                stack.callback(limits.cancel)
                rates = asyncio.ensure_future(
                    self._server.report_rates(lambda found: link.call("rates_reported", found))
                )
                stack.callback(rates.cancel)
                stack.push_async_exit(self._wire)
                order = await self._run_orders(link, store, (limits, rates))
        except PenstockError as error:
            outcome = error
        except OSError as error:
            outcome = UnavailableError("system call failed", worker=self._number, reason=str(error))
        self._leaving = True
        if order.done.done():
            link.close()
        else:
            # The server closes the line after it has received the answer.
            _answer(order, outcome)
        await asyncio.wait([link.closed], timeout=_LEAVE_S)
        if outcome is not None:
            raise outcome

    def _answer_heartbeat(self, answer: Answer) -> None:
        """Answer a heartbeat with the functions that do not work now."""
        answer(dict(self._not_ready()))

    def _answer_metrics(self, answer: Answer) -> None:
        settings = self._settings
        budget_bytes = 0 if settings is None else settings.memory_bytes
        answer(self._metrics.snapshot(budget_bytes=budget_bytes, store=self._store).to_lists())

    def _not_ready(self) -> Mapping[str, str]:
        return {} if self._store is None else self._store.not_ready()

    def _handlers(self) -> Mapping[str, Handler]:
        def order(name: str) -> Handler:
            async def call(*arguments: Any) -> Any:
                done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                await self._orders.put(_Order(name, arguments, done))
                return await done

            return call

        return {**self._server.handlers(), **{name: order(name) for name in ("open", "serve", "drain", "close")}}

    async def _open(self, order: _Order, stack: AsyncExitStack) -> SegmentStore:
        fields, workers, containers = order.arguments
        settings = EmbeddedSettings(**{**fields, "data": Path(fields["data"])})
        layout = WorkerLayout(workers=workers, containers=containers)
        directory = DataDirectory.open(settings.data)
        stack.callback(directory.close)
        store = await stack.enter_async_context(
            open_segments(
                settings,
                clock=RealClock(),
                rng=self._rng,
                telemetry=self._telemetry,
                containers=layout.containers,
                owned=layout.owned(self._number),
                shared=self._counts,
            )
        )
        directory.mark_complete()
        self._settings, self._store = settings, store
        self._server.serve(store)
        _answer(order, None)
        return store

    async def _run_orders(
        self, link: WorkerLink, store: SegmentStore, reports: Sequence[asyncio.Future[None]]
    ) -> _Order:
        """Run orders until the one to close, and return that. ``reports`` are tasks that report to the server meanwhile.

        Raises the error because of which the store or the worker cannot continue.
        """
        while True:
            try:
                order = await asyncio.wait_for(self._orders.get(), _WATCH_S)
            except TimeoutError:
                if store.offline is not None:
                    raise store.offline from None
                for task in reports:
                    if task.done():
                        task.result()
                continue
            try:
                if order.name == "close":
                    return order
                _answer(order, await self._do(order, link, store))
            except PenstockError as error:
                _answer(order, error)

    async def _do(self, order: _Order, link: WorkerLink, store: SegmentStore) -> int | None:
        if order.name == "drain":
            await self._wire.aclose()
            return None
        host, port, plain_tls, token_key = order.arguments

        settings = self._settings
        if settings is None:
            raise InternalError("a worker serves before it has opened its store", worker=self._number)
        tls = None
        if plain_tls is not None:
            tls = await self._wire.enter_async_context(
                ServerTls(TlsSettings.from_plain(plain_tls), clock=RealClock(), telemetry=self._telemetry)
            )
        verifier = refused = None
        if token_key is not None:
            verifier = Verifier(token_key, RealClock())
            # Before the port: what its last connections were refused is sent after it has closed.
            refused = await self._wire.enter_async_context(
                RefusalAudit(lambda entries: link.call("refusals", list(entries)), RealClock())
            )
        wire = await self._wire.enter_async_context(
            WireServer(
                store,
                host=host,
                port=port,
                rng=self._rng,
                telemetry=self._telemetry,
                limits=wire_limits(settings, connections=connections_allowed()),
                guard=removal_guard(link),
                security=Security(tls=tls, verifier=verifier, refused=refused),
            )
        )
        await self._wire.enter_async_context(
            MemoryWatch(
                store,
                budget_bytes=settings.memory_bytes,
                drop=wire.give_back_memory,
                report=wire.memory_is_short,
                telemetry=self._telemetry,
            )
        )
        return wire.port


def removal_guard(link: WorkerLink) -> RemovalGuard:
    """The removal guard of the server's controller, reached over the line. The guard's block in the server lasts as long
    as the one here."""
    numbers = itertools.count()

    @asynccontextmanager
    async def guard(segment: str, offset: int | None) -> AsyncIterator[None]:
        number = next(numbers)
        try:
            await link.call("begin_removal", number, segment, offset)
            yield
        finally:
            # If the line is closed, the server ends all removals of this process itself.
            if link.is_open:
                link.start(_ignore, "end_removal", number)

    return guard


def _ignore(_: object) -> None:
    """Report the end of a removal. No caller waits for an answer."""


def _answer(order: _Order, outcome: Any) -> None:
    if order.done.done():
        return
    if isinstance(outcome, PenstockError):
        order.done.set_exception(outcome)
    else:
        order.done.set_result(outcome)


def main() -> None:
    """Run a worker. Arguments: descriptor of the line, descriptor of the counts, own number, number of workers, format of
    the log; and ``traces`` if it makes spans."""
    line, counts, worker, workers = map(int, sys.argv[1:5])
    log_to_stderr(f"worker-{worker}", LogFormat(sys.argv[5]))
    raise_limit()
    tune_allocator()
    tune_collector()
    # A signal to the whole process group is meant for the server, which stops its workers in order.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    async def run() -> None:
        await WorkerProcess(counts, worker, workers).run(socket.socket(fileno=line))

    try:
        with tracing(f"worker-{worker}", on="traces" in sys.argv[6:]):
            uvloop.run(run())
    except asyncio.CancelledError:
        log.warning("the server has ended, so this worker ends too")
        sys.exit(1)
    except PenstockError as error:
        log.error("worker stops", extra={"error": str(error)})
        sys.exit(1)


if __name__ == "__main__":
    main()
