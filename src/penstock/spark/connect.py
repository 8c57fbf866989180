"""Blocking access to a Penstock from a Spark process, on the driver and in tasks.

Spark's Python workers are single-threaded, forked, reused for many tasks, and killed without notice. So each process
has one event loop, run only while a call waits, and keeps its connections for the next task; the data is safe without
closing anything here. A notebook's kernel calls from inside its own running loop, so there another thread runs ours.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from contextvars import copy_context
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from penstock.client.retry import FULL_S, RETRYABLE, retrying
from penstock.model.errors import PenstockError, leaves
from penstock.model.retention import PolicyTarget
from penstock.model.traces.spans import active
from penstock.model.values.dataclass import dataclass
from penstock.ports.telemetry import NoTelemetry
from penstock.spark.worker.collector import spare
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

if TYPE_CHECKING:
    from penstock.net.dial.security import DialSecurity
    from penstock.ports.control.plane import ControlPlane
    from penstock.ports.data.service import SegmentService

T = TypeVar("T")

_BLOCKS = "blockmgr-"
"""Name prefix of the directories that Spark creates for one driver or executor."""

RETRY_S = 30.0
"""How long a call that is safe to repeat waits for an unavailable server, in seconds."""

ATTEMPT_S = 2.0
"""How long one attempt of such a call waits for the server. Short, so that the waiting times of both do not add up."""


PlanTokenCall: TypeAlias = Callable[[Sequence[PolicyTarget], str, int], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Services:
    """An open Penstock. ``close`` releases its connections."""

    controller: ControlPlane
    segments: SegmentService
    close: Callable[[], Awaitable[None]]
    plan_token: PlanTokenCall | None = None
    """Asks for the token of a plan, as ``About.plan``; None: this process has no identity that it could delegate."""


Connector: TypeAlias = Callable[[str], Awaitable[Services]]
"""Opens the Penstock at a controller's address. Can be pickled, and compared with others: a function of a module, or the
access of a plan (``worker.plan_access``)."""


async def dial(address: str) -> Services:
    """Open the Penstock whose controller listens at an address; ``tls://`` in it asks for TLS.

    The environment of this process names its credentials and the authorities to trust: no plan or checkpoint has them.
    Raises: NotConnectedError, InvalidArgumentError (not an address), TlsError, UnauthenticatedError.
    """
    security = _security(address)
    # Without an identity there is nothing to delegate, and a sink would ask for it in each batch.
    return await open_services(
        address,
        security,
        delegates=security.presenting is not None or (security.tls and security.tls.own()) is not None,
    )


async def open_services(address: str, security: DialSecurity, *, delegates: bool = False) -> Services:
    """As ``dial``, with this protection. ``delegates``: for a process that plans, with the credentials of a user."""
    # Imported late, because gRPC must not be in memory when Spark's daemon forks its workers.
    from penstock.net.dial.controller import dial_controller
    from penstock.net.dial.segment_tokens import SegmentTokens
    from penstock.net.dial.segments import DialLimits, RemoteSegments

    async with AsyncExitStack() as stack:
        controller = await stack.enter_async_context(dial_controller(address, patience_s=ATTEMPT_S, security=security))
        segments = await stack.enter_async_context(
            RemoteSegments(
                controller,
                native=controller.segments,
                rng=RealRng(),
                telemetry=NoTelemetry(),  # Spark shows no figures of Python sources
                limits=DialLimits(retry_for_s=ATTEMPT_S),
                security=security,
                tokens=SegmentTokens(controller.segment_token),
            )
        )
        plan_token = controller.plan_token if delegates else None
        return Services(controller, segments, stack.pop_all().aclose, plan_token)


def _security(address: str) -> DialSecurity:
    from penstock.net.dial.security import security_for
    from penstock.net.presented import presented

    shown = presented()
    return security_for(
        address,
        default_tls=shown.default_tls,
        credentials=shown.credentials,
        clock=RealClock(),
        insecure=shown.insecure,
    )


class Link:
    """One process's connection to one Penstock. Made by ``link``; dials on the first call."""

    def __init__(self, connector: Connector, address: str) -> None:
        self._connector = connector
        self._address = address
        # With a factory, the runner does not replace the current event loop of the caller's thread.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._running = threading.Lock()
        """Held while another thread runs the loop for a caller that is inside its own."""
        self._services: Services | None = None
        self._was_open = False

    def run(self, work: Callable[[Services], Coroutine[Any, Any, T]]) -> T:
        """The result of ``work``. Raises what it raised; the next call dials again after a failed connection."""
        return self._run(self._once(work))

    def ask(self, work: Callable[[Services], Coroutine[Any, Any, T]], *, full_s: float = FULL_S) -> T:
        """As ``run``, for work that is safe to repeat: waits up to ``RETRY_S`` for an unavailable server.

        ``full_s``: how long it waits for space on a full disk. Running queries and writing tasks pass ``RETRY_S``.
        """
        return self._run(patiently(lambda: self._once(work), full_s=full_s))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``. Interrupted: ``work`` is cancelled and has ended when this raises."""
        if _is_in_loop():
            return self._run_in_thread(work)
        # The caller's context has the span around the work. Otherwise the runner's own, as it always is.
        return self._runner.run(work, context=None if active() is None else copy_context())

    def _run_in_thread(self, work: Coroutine[Any, Any, T]) -> T:
        """As ``_run``, for a caller inside a running event loop: a thread runs only one loop at a time."""
        loop = self._runner.get_loop()
        task: asyncio.Task[T] | None = None
        answer: Future[T] | None = None
        is_interrupted = False

        async def cancellable() -> T:
            nonlocal task
            task = asyncio.ensure_future(work)
            if is_interrupted:
                task.cancel()
            return await task

        def run() -> T:
            with self._running:
                return self._runner.run(cancellable())

        def cancel() -> None:
            if task is not None:
                task.cancel()

        with ThreadPoolExecutor(1, "penstock-link") as thread:
            try:
                answer = thread.submit(run)
                return answer.result()
            except BaseException:
                # An interrupt may also arrive during ``submit``: then the work may run although nobody has its result.
                if answer is None or not answer.done():
                    is_interrupted = True
                    loop.call_soon_threadsafe(cancel)
                    with self._running:
                        pass  # the work has ended
                raise

    async def _once(self, work: Callable[[Services], Coroutine[Any, Any, T]]) -> T:
        if self._services is None:
            self._services = await self._connector(self._address)
            self._was_open = True
            spare("connection")
        try:
            return await _ungrouped(work(self._services))
        except RETRYABLE:
            services, self._services = self._services, None
            if services is not None:
                await services.close()
            raise

    def served(self) -> Link:
        """Return this link if a server listens. The first call of a query or job uses it to report a missing server at once.

        Raises NotConnectedError. A process that was connected before waits for a server that restarts.
        """
        if not self._was_open and self._connector is dial:
            from penstock.net.dial.checking import check_listens

            self._run(check_listens(self._address, security=_security(self._address)))
        return self

    def served_first(self) -> Link:
        """As ``served``, for a sink: checks only the first connection of all sinks of this driver to this address.

        Spark creates a new sink for each batch and each commit, in processes that share no memory. A running query must
        survive a restart of the server. So a file in the driver's own directory records that a server was reached.
        Without such a directory, nothing is checked.
        """
        seen = _seen_by_driver(self._address)
        if seen is None or seen.exists():
            return self
        try:
            # Before the check: if nothing can be recorded, a later batch would look like the first.
            seen.touch(mode=0o600)
        except OSError:
            return self
        try:
            return self.served()
        except BaseException:
            seen.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """Release connection and event loop."""
        services, self._services = self._services, None
        if services is not None:
            self._run(_closed(services))
        if _is_in_loop():
            with ThreadPoolExecutor(1, "penstock-link") as thread:
                thread.submit(self._runner.close).result()
        else:
            self._runner.close()


def _seen_by_driver(address: str) -> Path | None:
    """The file that records that a sink of this driver was connected to ``address``; None outside of Spark's processes.

    It is in the driver's block directory. Spark passes its path to all Python processes that it starts, and deletes it
    at the end.
    """
    directory = Path(os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0])
    # Elsewhere the variable is a machine-wide setting and names a directory that several drivers share.
    if not directory.name.startswith(_BLOCKS):
        return None
    return directory / f"penstock-{sha256(address.encode()).hexdigest()[:16]}"


def _is_in_loop() -> bool:
    """Whether the calling thread runs an event loop, as a notebook's kernel does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def patiently(call: Callable[[], Awaitable[T]], *, full_s: float = RETRY_S) -> T:
    """The answer of ``call``, which must be safe to repeat. It is retried for ``RETRY_S`` while the server is
    unavailable.

    ``full_s``: how long it is retried while the disk is full.

    Raises what ``call`` raised last. If that error states a waiting time, it is the total.
    """
    try:
        return await retrying(call, RealRng(), deadline_s=RETRY_S, full_s=full_s)
    except RETRYABLE as error:
        if "waited_s" in error.fields:
            error.fields["waited_s"] = RETRY_S
        raise


async def _ungrouped(work: Awaitable[T]) -> T:
    """The result of ``work``. If it raises several errors together, raises one of them: preferably one that no retry
    can fix."""
    try:
        return await work
    except ExceptionGroup as group:
        errors = list(leaves(group))
        lasting = [error for error in errors if not isinstance(error, RETRYABLE)]
        ours = [error for error in lasting if isinstance(error, PenstockError)]
        raise (ours or lasting or errors)[0] from None


async def _closed(services: Services) -> None:
    await services.close()


_LINKS_MAX = 32
"""Connections of one thread: a worker serves tasks of many plans, each with a token. The one unused longest is closed."""

# Keyed by process and thread: a forked worker must not use its parent's sockets, and a loop has one thread.
_links: dict[tuple[int, int, Connector, str], Link] = {}


def link(connector: Connector, address: str) -> Link:
    """This process's and thread's link to the Penstock at ``address``, opened once and kept."""
    key = (os.getpid(), threading.get_ident(), connector, address)
    found = _links.pop(key, None) or Link(connector, address)
    _links[key] = found
    mine = [item for item in list(_links) if item[:2] == key[:2]]  # a copy: other threads change it
    for oldest in mine[: max(0, len(mine) - _LINKS_MAX)]:
        _links.pop(oldest).close()
    return found


def close_links() -> None:
    """Close the links that this process and thread opened; for tests and long-lived drivers."""
    here = (os.getpid(), threading.get_ident())
    for key in [key for key in list(_links) if key[:2] == here]:
        _links.pop(key).close()
