"""The worker processes of a server: started, watched, started again, stopped."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from typing import Any

from penstock.app.access.refusal_audit import Record
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.tier2 import tier2_of_worker
from penstock.app.workers.heartbeats import Heartbeats
from penstock.app.workers.layout import WorkerLayout, check_workers_there, worker_directory
from penstock.app.workers.reports import Guard, WorkerRemovals, WorkerReports
from penstock.core.segments.readiness import FUNCTIONS
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.values.dataclass import dataclass
from penstock.net.tasks import together
from penstock.net.workers.line import WorkerLine
from penstock.net.workers.link import WorkerLink, open_link
from penstock.net.workers.worker_segments import WorkerSegments
from penstock.ports.control.layout import Endpoint
from penstock.storage.access.store_key import load_key
from penstock.storage.machine.shared_counts import CountsMemory

log = logging.getLogger(__name__)

_HOPELESS = (CorruptDataError, VersionTooNewError, InvalidArgumentError)
"""Errors that another attempt cannot fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How a server treats workers that die or hang.

    A worker that dies is started again after ``pause_s``. The pause doubles each time it dies within ``steady_s`` of its
    start, up to ``pause_max_s``. After ``attempts`` such deaths or failed starts in a row, the server ends with the reason.
    ``stop_s`` is how long a worker may take to flush everything to disk before it is killed.

    The server sends a heartbeat to each worker every ``pulse_s``, and the worker's event loop answers. A worker that does
    not answer for ``silent_s`` counts as hung and is killed. That time is shorter than the timeout of calls, and longer
    than a slow disk blocks a loop. The first answer may take ``start_s``, because the process has to start.
    """

    pause_s: float = 0.1
    pause_max_s: float = 5.0
    steady_s: float = 3.0
    attempts: int = 8
    stop_s: float = 30.0
    pulse_s: float = 1.0
    silent_s: float = 15.0
    start_s: float = 60.0


class Worker:
    """One share of the store, and the process that serves it now. All arguments are borrowed."""

    def __init__(
        self,
        number: int,
        settings: StandaloneSettings,
        layout: WorkerLayout,
        counts: CountsMemory,
        patience: Patience,
    ) -> None:
        self.number = number
        self.line = WorkerLine(number)
        self.endpoint: Endpoint | None = None
        self.removals = WorkerRemovals()
        self.heartbeats = Heartbeats(pulse_s=patience.pulse_s, silent_s=patience.silent_s)
        self._patience = patience
        self._sending: asyncio.Task[None] | None = None
        self._settings = settings
        self._layout = layout
        self._counts = counts
        self._process: asyncio.subprocess.Process | None = None
        self._link: WorkerLink | None = None
        self._token_key: bytes | None = None
        """The public key of tokens: a worker verifies them, and cannot issue any."""

    @property
    def pid(self) -> int | None:
        """The id of the current process; None if there is none."""
        return None if self._process is None or self.line.link is None else self._process.pid

    @property
    def silent(self) -> bool:
        """Whether the worker has missed several heartbeats."""
        return self.heartbeats.silent

    async def launch(self, handlers: Mapping[str, Callable[..., Awaitable[Any]]]) -> WorkerLink:
        """Start a process, let it recover, and return the line to it. If this raises, nothing is left running.

        Raises CorruptDataError if its directory is missing: a process would create an empty store in its place.
        """
        check_workers_there(self._settings.store.data, [self.number])
        ours, theirs = socket.socketpair()
        numbers = (theirs.fileno(), self._counts.fileno(), self.number, self._layout.workers)
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "penstock.app.workers.process", *map(str, numbers)),
                    *(str(self._settings.log_format), *(["traces"] if self._settings.traces else [])),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=2,  # Standard output belongs to the server, and programs read it.
                    pass_fds=numbers[:2],
                )
            link = await open_link(ours, name=f"worker {self.number}", handlers=handlers)
        except BaseException:
            ours.close()
            await self.end(0)
            raise
        self._sending = asyncio.create_task(
            self._send_heartbeats(link, self._process), name=f"heartbeats of worker {self.number}"
        )
        try:
            await link.call("open", self._own_settings(), self._layout.workers, self._layout.containers)
        except BaseException:
            link.close()
            await self.end(0)
            raise
        self._link = link
        return link

    async def _send_heartbeats(self, link: WorkerLink, process: asyncio.subprocess.Process) -> None:
        """Send heartbeats to the process until the line ends; kill it if it does not answer."""
        if await self.heartbeats.until_silent(link, first_s=self._patience.start_s):
            log.error("worker does not answer, and is killed", extra={"worker": self.number, "pid": process.pid})
            if process.returncode is None:
                process.kill()

    async def metrics(self) -> Any:
        """The metrics of the process, as ``Snapshot.to_lists``. Raises NotConnectedError."""
        link = self.line.link
        if link is None:
            raise NotConnectedError("the worker is being started again", worker=self.number)
        return await link.call("metrics")

    def hang_up(self) -> None:
        """Close the line. The process then ends at once."""
        if self._link is not None:
            self._link.close()
        self.line.attach(None)

    def _own_settings(self) -> Mapping[str, Any]:
        store = self._settings.store
        own = replace(
            store, data=worker_directory(store.data, self.number).absolute(), tier2=tier2_of_worker(store, self.number)
        )
        return {field.name: getattr(own, field.name) for field in fields(EmbeddedSettings)} | {"data": str(own.data)}

    async def serve(self, link: WorkerLink) -> None:
        """Accept clients, always at the first address, because they know it."""
        wanted = self._settings.worker_port(self.number) if self.endpoint is None else self.endpoint.port
        settings = self._settings
        tls = None if settings.tls is None else settings.tls.to_plain()
        if settings.access is not None and self._token_key is None:
            # Read once: the server goes on signing with the key that it has read, even if the file is removed.
            self._token_key = load_key(settings.store.data).public_bytes()
        port = await link.call("serve", settings.host, wanted, tls, self._token_key)
        self.endpoint = Endpoint(host=self._settings.advertised, port=port)

    async def end(self, patience_s: float) -> int | None:
        """Wait until the process ends, and kill it after ``patience_s``. Returns its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            async with asyncio.timeout(patience_s):
                return await process.wait()
        except (TimeoutError, asyncio.CancelledError) as why:
            if process.returncode is None:
                process.kill()
            status = await _reaped(process)
            if isinstance(why, asyncio.CancelledError):
                raise
            return status
        finally:
            await self._end_heartbeats()

    async def _end_heartbeats(self) -> None:
        sending, self._sending = self._sending, None
        self.heartbeats.reset()
        if sending is not None:
            sending.cancel()
            await asyncio.wait([sending])


async def _reaped(process: asyncio.subprocess.Process) -> int:
    """Wait for a killed process and return its exit status. Waits even if cancelled: otherwise a zombie would remain."""
    wait = asyncio.ensure_future(process.wait())
    cancelled: asyncio.CancelledError | None = None
    while not wait.done():
        try:
            await asyncio.shield(wait)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return wait.result()


def worker_failure(worker: Worker) -> str | None:
    """Why the worker takes no requests now, or None."""
    if worker.line.link is None:
        return "is being started again"
    return "does not answer" if worker.silent else None


class Workers:
    """All workers of a server. ``segments`` is their store. Opened by ``open_workers``."""

    def __init__(
        self, settings: StandaloneSettings, layout: WorkerLayout, counts: CountsMemory, patience: Patience
    ) -> None:
        self.workers = [Worker(number, settings, layout, counts, patience) for number in range(layout.workers)]
        self.segments = WorkerSegments(
            [worker.line for worker in self.workers], containers=layout.containers, rows=counts
        )
        self._patience = patience
        self._reports = WorkerReports(self.segments)
        self._serving = False
        self._stopping = False
        self._watching: list[asyncio.Task[None]] = []
        self._failure: PenstockError | None = None

    @property
    def failure(self) -> PenstockError | None:
        """Why the server cannot go on, or None."""
        return self._failure

    def not_ready(self) -> Mapping[str, str]:
        """The functions that do not work in every worker, each with the workers and their reasons."""
        reasons: dict[str, list[str]] = {}
        for worker in self.workers:
            away = worker_failure(worker)
            own = worker.heartbeats.not_ready if away is None else dict.fromkeys(FUNCTIONS, away)
            for function, reason in own.items():
                reasons.setdefault(function, []).append(f"worker {worker.number}: {reason}")
        return {function: "; ".join(texts) for function, texts in reasons.items()}

    def endpoint_of(self, segment: str) -> Endpoint:
        """Where clients reach the segment. Raises UnavailableError before ``serve``."""
        found = self.workers[self.segments.worker_of(segment)].endpoint
        if found is None:
            raise UnavailableError("the workers do not serve yet", segment=segment)
        return found

    @property
    def endpoints(self) -> Sequence[Endpoint]:
        """Where the workers listen, in order, once they serve."""
        return [worker.endpoint for worker in self.workers if worker.endpoint is not None]

    # --- start, and start again ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all workers and wait until they have recovered. Raises the error of a worker that cannot."""
        for worker, link in zip(
            self.workers, await together([self._bring_up(one) for one in self.workers]), strict=True
        ):
            worker.line.attach(link)
            self._watching.append(asyncio.ensure_future(self._watch(worker, link)))

    async def _bring_up(self, worker: Worker) -> WorkerLink:
        """Start a process and wait until it has recovered. Retries errors that can pass: for example, a worker of a server
        that was just killed can still hold the directory."""
        patience = self._patience
        attempt = 0
        while True:
            try:
                return await worker.launch(self._reports.handlers(worker.removals, worker.number))
            except _HOPELESS:
                raise
            except PenstockError as error:
                attempt += 1
                if attempt >= patience.attempts:
                    if isinstance(error, NotConnectedError):
                        raise UnavailableError(
                            "worker does not start; its log says why", worker=worker.number, attempts=attempt
                        ) from error
                    raise
                log.warning("worker was not started", extra={"worker": worker.number, "reason": str(error)})
                await asyncio.sleep(self._pause_s(attempt))

    def _pause_s(self, attempt: int) -> float:
        return min(self._patience.pause_max_s, self._patience.pause_s * float(1 << (attempt - 1)))

    async def _watch(self, worker: Worker, link: WorkerLink) -> None:
        """Restart the worker whenever it dies, until a restart cannot succeed."""
        patience, loop = self._patience, asyncio.get_running_loop()
        deaths = 0
        while True:
            since = loop.time()
            await asyncio.shield(link.closed)
            worker.line.attach(None)
            status = await worker.end(patience.stop_s if self._stopping else 1.0)
            # From here on, none of the removal requests can reach the log of the worker.
            await worker.removals.end_all()
            if self._stopping:
                return
            deaths = 1 if loop.time() - since >= patience.steady_s else deaths + 1
            log.error("worker died", extra={"worker": worker.number, "status": status, "deaths": deaths})
            try:
                if deaths >= patience.attempts:
                    raise UnavailableError("worker keeps dying; its log says why", worker=worker.number, deaths=deaths)
                await asyncio.sleep(self._pause_s(deaths))
                link = await self._bring_up(worker)
                await self._resume(worker, link)
            except PenstockError as error:
                self._give_up(worker, error)
                return

    async def _resume(self, worker: Worker, link: WorkerLink) -> None:
        """Let a restarted worker serve. It gets the limits first, because appends that it accepted before would stay."""
        worker.line.attach(link)
        try:
            await self.segments.restore_limits(worker.number)
            if self._serving:
                await worker.serve(link)
        except PenstockError as error:
            # Let the watching task count this as a death: the worker may have died again, or its port may be taken.
            log.warning("worker does not serve", extra={"worker": worker.number, "reason": str(error)})
            link.close()
            return
        log.info("worker is back", extra={"worker": worker.number, "pid": worker.pid})

    def _give_up(self, worker: Worker, error: PenstockError) -> None:
        log.error(
            "worker failed too often and is not started again", extra={"worker": worker.number, "reason": str(error)}
        )
        self._failure = error
        worker.line.give_up(error)

    # --- serving ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self, guard: Guard, record: Record | None = None) -> AsyncIterator[Sequence[Endpoint]]:
        """Accept clients until the block ends. ``guard`` is called before their requests remove bytes. ``record`` writes
        what the workers' ports refuse, also while the block ends."""
        self._reports.guard, self._reports.record = guard, record
        self._serving = True
        await together([worker.serve(link) for worker in self.workers if (link := worker.line.link) is not None])
        yield self.endpoints
        self._serving = False
        await self._each_up("drain", self._patience.stop_s)

    async def stop(self) -> None:
        """Order all workers to flush everything to disk and end. Kill those that do not end in time."""
        self._stopping = True
        await self._each_up("close", self._patience.stop_s)
        await self._end()

    async def abort(self) -> None:
        """End all workers at once, without a flush."""
        self._stopping = True
        await self._end()

    async def _end(self) -> None:
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        for worker in self.workers:
            worker.hang_up()
        await together([_ended(worker, self._patience.stop_s) for worker in self.workers])

    async def _each_up(self, order: str, patience_s: float) -> None:
        async def one(worker: Worker) -> None:
            link = worker.line.link
            if link is None:
                return
            try:
                async with asyncio.timeout(patience_s):
                    await link.call(order)
            except TimeoutError:
                log.error("worker did not complete an order in time", extra={"worker": worker.number, "order": order})
            except PenstockError as error:
                log.error(
                    "worker failed to complete an order",
                    extra={"worker": worker.number, "order": order, "reason": str(error)},
                )

        await together([one(worker) for worker in self.workers])


async def _ended(worker: Worker, patience_s: float) -> None:
    status = await worker.end(patience_s)
    if status:
        log.warning("worker exited with an error", extra={"worker": worker.number, "status": status})


@asynccontextmanager
async def open_workers(
    settings: StandaloneSettings, layout: WorkerLayout, *, patience: Patience | None = None
) -> AsyncIterator[Workers]:
    """Start the workers and wait until they have recovered. They serve clients within ``Workers.serving``.

    The caller holds the data directory. After a normal exit, everything that the workers acknowledged is on disk and
    checkpointed. Raises what opening a store raises, UnavailableError if a worker does not start, and
    InvalidArgumentError if ports collide.
    """
    for number in range(layout.workers):
        settings.worker_port(number)
    counts = CountsMemory(layout.workers)
    try:
        workers = Workers(settings, layout, counts, patience or Patience())
        try:
            await workers.start()
            yield workers
        except BaseException:
            await workers.abort()
            raise
        await workers.stop()
    finally:
        counts.close()
