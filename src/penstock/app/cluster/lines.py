"""The active controller's links to all containers, whichever store serves them. Source: docs/design/0065-cluster.md,
"Links"."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NoReturn

from penstock.app.access.refusal_audit import Record
from penstock.app.cluster.keeper import RETRY_S, UNREADABLE, first_of, wake_on_changes
from penstock.app.cluster.registration import FailedOpenings
from penstock.app.workers.heartbeats import Heartbeats
from penstock.app.workers.reports import Guard, WorkerRemovals, WorkerReports
from penstock.codec.store.cluster_nodes import (
    HOLDERS,
    REQUESTS,
    STORES,
    HeldContainer,
    Requests,
    StoreEntry,
    decode_node,
)
from penstock.core.segments.readiness import FUNCTIONS
from penstock.model.errors import (
    ContainerOfflineError,
    InternalError,
    NodeNotFoundError,
    NotConnectedError,
    PenstockError,
    SessionEndedError,
    UnavailableError,
)
from penstock.model.values.dataclass import dataclass
from penstock.net.dial.addresses import host_of, parse_address
from penstock.net.workers.line import WorkerLine
from penstock.net.workers.link import Handler, WorkerLink
from penstock.net.workers.worker_segments import WorkerSegments
from penstock.ports.cluster.coordination import Coordination
from penstock.ports.control.layout import Endpoint

log = logging.getLogger(__name__)

Dial = Callable[[int, str, Mapping[str, Handler]], Awaitable[WorkerLink]]
"""Opens a link to a container at ``HOST:PORT``, with what its store may call here. Raises PenstockError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePatience:
    """How a controller treats containers that it does not reach. Seconds.

    A dial that fails is repeated after ``pause_s``, doubled each time up to ``pause_max_s``; so is one whose link lived
    for less than ``steady_s``. It never gives up: another store takes the container over. ``pulse_s`` and ``silent_s``:
    as for workers. The link of a store that hangs is closed, so that callers do not wait; the store is left alone.
    ``earlier_s``: how long a hold or a lock waits for a container that was not reached since the election. ``retry_s``:
    after the coordinator did not answer. ``unreached_s``: after this long, another store gets a container whose store
    cannot be reached. ``trial_s``: how often such a store is
    tried again. ``failures_s``: how long its first failure counts if it is not reached.
    """

    pause_s: float = 0.1
    pause_max_s: float = 2.0
    steady_s: float = 3.0
    pulse_s: float = 1.0
    silent_s: float = 15.0
    earlier_s: float = 30.0
    retry_s: float = RETRY_S
    unreached_s: float = 15.0
    trial_s: float = 5.0
    failures_s: float = 600.0


class ContainerLine:
    """One container: who holds it, and the link to it."""

    def __init__(self, number: int, patience: LinePatience) -> None:
        self.number = number
        self.line = WorkerLine(number)
        self.held: HeldContainer | None = None
        """The store that serves it, as far as it is known; None: nobody does."""
        self.ready = False
        """Whether the link is open, and the store knows the limits of writers."""
        self.was_reached = False
        """Whether there ever was a link. If so, removals that an earlier controller allowed in this container have
        ended: its store accepts a link only after that, and from then on no earlier controller can reach it."""
        self.problem: str | None = None
        """Why the last dial failed."""
        self.unreached: tuple[str, float] | None = None
        """The store that could not be reached, and since when."""
        self.undialled: set[str] = set()
        """Stores that were left because no link to them could be opened."""
        self.disabled: str | None = None
        """Why an operator has disabled it; None: it is enabled."""
        self.heartbeats = Heartbeats(pulse_s=patience.pulse_s, silent_s=patience.silent_s)
        self.removals = WorkerRemovals()

    def may_try(self, store: str) -> bool:
        """Whether a dial shows if the store is reached again. It would end the link to a store that has the container."""
        return store in self.undialled and (self.held is None or self.held.store != store)

    def failure(self) -> str | None:
        """Why it takes no requests now, or None."""
        if self.ready:
            return "does not answer" if self.heartbeats.silent else None
        if self.held is None:
            return "no store serves it" if self.disabled is None else f"disabled by an operator: {self.disabled}"
        return "cannot be reached" if self.problem is None else f"cannot be reached: {self.problem}"


class ContainerLines:
    """All containers of a cluster. ``segments`` is their store. Opened by ``open_lines``."""

    def __init__(self, coordination: Coordination, dial: Dial, *, containers: int, patience: LinePatience) -> None:
        self.lines = [ContainerLine(number, patience) for number in range(containers)]
        self.segments = WorkerSegments([one.line for one in self.lines], containers=containers)
        self._coordination = coordination
        self._dial = dial
        self._patience = patience
        self._reports = WorkerReports(self.segments)
        self._failure: PenstockError | None = None
        self._failures = FailedOpenings(coordination, again_s=patience.failures_s)
        self._changed = asyncio.Event()
        self._unreached_since: float | None = None

    @property
    def failure(self) -> PenstockError | None:
        """Why the controller cannot go on, or None: the session with the coordinator has ended."""
        return self._failure

    def not_ready(self) -> Mapping[str, str]:
        """The functions that do not work in at least one container, each with these containers and their reasons."""
        found: dict[str, list[tuple[int, str]]] = {}
        for one in self.lines:
            away = one.failure()
            own = one.heartbeats.not_ready if away is None else dict.fromkeys(FUNCTIONS, away)
            for function, reason in own.items():
                found.setdefault(function, []).append((one.number, reason))
        return {function: _by_reason(reasons) for function, reasons in found.items()}

    def away(self) -> str | None:
        """Which containers take no requests now, and why; None: all do."""
        found = [(one.number, reason) for one in self.lines if (reason := one.failure()) is not None]
        return _by_reason(found) or None

    def endpoint_of(self, segment: str) -> Endpoint:
        """Where clients reach the segment. Raises UnavailableError while nobody serves it, or its store does not know the
        limits of writers yet."""
        one = self.lines[self.segments.worker_of(segment)]
        if one.disabled is not None and not one.ready:
            raise _disabled(one.number, one.disabled)
        if one.held is None or not one.ready:
            raise UnavailableError(
                "no store serves the container of this segment now; try again",
                segment=segment,
                container=one.number,
                reason=one.failure(),
            )
        return _endpoint(one.held.clients)

    async def until_served(self, first: int, *, patience_s: float, reach_s: float) -> None:
        """Wait until all enabled containers are reached; after ``patience_s``, only until the container ``first`` is.

        Raises SessionEndedError, and UnavailableError: a store serves that container, and was not reached for ``reach_s``
        more. Another controller may reach it.
        """
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(loop.time() + patience_s):
                await self._until(self.lines)
                return
        one = self.lines[first]
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(loop.time() + reach_s):
                    await self._until([one])
                    break
            if one.held is not None:
                raise _unreachable(one, one.held)
        log.warning("some containers are not served", extra={"reason": self.away()})

    def unreachable(self, number: int, *, reach_s: float) -> UnavailableError | None:
        """The error, if a store serves the container and has not been reached for ``reach_s``, as seen by calls of this
        function."""
        one, now = self.lines[number], asyncio.get_running_loop().time()
        if one.ready or one.held is None:
            self._unreached_since = None
            return None
        if self._unreached_since is None:
            self._unreached_since = now
        return _unreachable(one, one.held) if now - self._unreached_since >= reach_s else None

    async def _until(self, lines: Sequence[ContainerLine]) -> None:
        await self._until_all(lambda: all(one.ready or one.disabled is not None for one in lines))

    async def _until_all(self, done: Callable[[], bool]) -> None:
        while not done():
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    async def earlier_removals_passed(self, segments: Collection[str] | None) -> None:
        """Wait until no removal is in progress that an earlier controller has allowed in these segments; None: in any. Raises
        SessionEndedError, and UnavailableError after the patience: one of their containers was not reached since the
        election."""
        numbers = range(len(self.lines)) if segments is None else sorted({*map(self.segments.worker_of, segments)})
        lines = [self.lines[number] for number in numbers]
        try:
            async with asyncio.timeout(self._patience.earlier_s):
                await self._until_all(lambda: all(one.was_reached for one in lines))
        except TimeoutError:
            away = [(one.number, one.failure() or "not reached yet") for one in lines if not one.was_reached]
            raise UnavailableError(
                "removals that an earlier controller allowed may still be in progress in containers that have not been"
                " reached since the election; try again",
                reason=_by_reason(away),
            ) from None

    def serve(self, guard: Guard, record: Record) -> None:
        """Answer the stores from now on. ``guard`` is called before requests of clients remove bytes, and ``record`` writes
        what their ports refuse."""
        self._reports.guard, self._reports.record = guard, record

    async def keep(self, one: ContainerLine) -> None:
        """Keep the link to a container. Runs until it is cancelled, and closes the link then. Raises SessionEndedError."""
        wake = asyncio.Event()
        watching = asyncio.ensure_future(wake_on_changes(self._coordination, [f"{HOLDERS}/{one.number}"], wake))
        failures = 0
        loop = asyncio.get_running_loop()
        try:
            while True:
                wake.clear()
                held = one.held = await self._holder(one, wake)
                if held is None:
                    await first_of(wake, [watching])
                    continue
                since = loop.time()
                failed = await self._connect(one, held, wake, watching)
                if failed:
                    await self._leave_unreached(one, held)
                failures = failures + 1 if failed or loop.time() - since < self._patience.steady_s else 0
                if failures:
                    await first_of(wake, [watching], timeout_s=self._pause_s(failures))
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await one.removals.end_all()

    async def _leave_unreached(self, one: ContainerLine, held: HeldContainer) -> None:
        """Let another store have a container whose store is not reached, as with a wrong address or an expired certificate.
        If no other store is reached either, the fault is ours. Raises SessionEndedError."""
        now_s = asyncio.get_running_loop().time()
        if one.unreached is None or one.unreached[0] != held.store:
            one.unreached = held.store, now_s
        is_over = now_s - one.unreached[1] >= self._patience.unreached_s
        if is_over and any(other.ready and other.held and other.held.store != held.store for other in self.lines):
            one.unreached = held.store, now_s
            reason = f"the controller cannot reach it: {one.problem}"
            if one.problem is not None:
                one.undialled.add(held.store)
            await self._failures.add(one.number, held.store, reason)

    async def try_unreached(self) -> NoReturn:
        """Let stores have containers again once they are reached. Runs until it is cancelled. Raises SessionEndedError."""
        while True:
            await asyncio.sleep(self._patience.trial_s)
            for number, store in self._failures.on_trial():
                if self.lines[number].may_try(store) and await self._answers(number, store):
                    log.info("store is reached again", extra={"container": number, "store": store})
                    await self._failures.lift(number, store)

    async def _answers(self, number: int, store: str) -> bool:
        """Whether the store is reached for a container that it does not have, or is not registered any more. A restarted
        store is tried like any other."""
        try:
            entry = decode_node(StoreEntry, (await self._coordination.read(f"{STORES}/{store}")).data)
            link = await self._dial(number, entry.links, {})
        except NodeNotFoundError:
            return True
        except ContainerOfflineError:
            return True  # it knows the secret, and answers
        except SessionEndedError:
            raise
        except PenstockError:
            return False
        link.abort()
        await link.closed
        return True

    def _pause_s(self, failures: int) -> float:
        return min(self._patience.pause_max_s, self._patience.pause_s * float(1 << min(failures - 1, 16)))

    async def _holder(self, one: ContainerLine, wake: asyncio.Event) -> HeldContainer | None:
        """The store that serves the container now; None: there is none. If the coordinator does not answer: the last
        known one, and ``wake`` is set soon, because no other notice of this change follows."""
        try:
            node = await self._coordination.read(f"{HOLDERS}/{one.number}")
            held = decode_node(HeldContainer, node.data)
        except NodeNotFoundError:
            return None
        except UnavailableError as error:
            log.warning("owner of a container is unknown", extra={"container": one.number, "reason": str(error)})
            asyncio.get_running_loop().call_later(self._patience.retry_s, wake.set)
            return one.held
        except UNREADABLE as error:
            log.error("owner of a container cannot be read", extra={"container": one.number, "reason": str(error)})
            return None
        return held if held.serving else None

    async def _connect(
        self, one: ContainerLine, held: HeldContainer, wake: asyncio.Event, watching: asyncio.Future[None]
    ) -> bool:
        """Dial the store and use the link until it ends. Returns True if there was no usable link."""
        removals = WorkerRemovals()
        try:
            link = await self._dial(one.number, held.links, self._reports.handlers(removals, one.number))
        except PenstockError as error:
            if one.problem != str(error):
                one.problem = str(error)
                log.warning("container cannot be reached", extra={"container": one.number, "reason": one.problem})
            return True
        # The store dropped its earlier link before it accepted this one, so its earlier removals have ended.
        one.was_reached, one.problem = True, None
        self._changed.set()
        earlier, one.removals = one.removals, removals
        await earlier.end_all()
        beating = asyncio.ensure_future(one.heartbeats.until_silent(link, first_s=self._patience.silent_s))
        try:
            return not await self._use(one, held, link, wake, [watching, beating])
        finally:
            one.ready = False
            one.line.attach(None)
            one.heartbeats.reset()
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            # A store that hangs reads nothing, so waiting for queued bytes would take long.
            link.abort()
            await asyncio.shield(link.closed)

    async def _use(
        self,
        one: ContainerLine,
        held: HeldContainer,
        link: WorkerLink,
        wake: asyncio.Event,
        tasks: list[asyncio.Future[Any]],
    ) -> bool:
        """Use the link until it ends, the store hangs, or another one serves the container. False: it could not be used."""
        one.line.attach(link)
        try:
            await self.segments.restore_limits(one.number)
        except PenstockError as error:
            log.warning(
                "limits of writers could not be sent to a container",
                extra={"container": one.number, "reason": str(error)},
            )
            return False
        one.ready, one.unreached = True, None
        self._changed.set()
        await self._failures.clear(one.number, held.store)
        log.info("container is reached", extra={"container": one.number, "store": held.store})
        _, beating = tasks
        while True:
            await first_of(wake, [*tasks, link.closed])
            if link.closed.done():
                log.info("link to a container has ended", extra={"container": one.number, "store": held.store})
                return True
            if beating.done() and beating.result():
                log.error("container does not answer", extra={"container": one.number, "store": held.store})
                return True
            wake.clear()
            now = await self._holder(one, wake)
            # Without a holder, the store is closing it, and still answers calls that are under way.
            if now is not None and now != held:
                return True

    async def follow_requests(self) -> None:
        """Keep ``disabled`` of all containers up to date. While the requests cannot be read, it does not change. Runs
        until it is cancelled. Raises SessionEndedError."""
        async with aclosing(self._coordination.notices(REQUESTS)) as notices:
            async for _ in notices:
                await self._read_requests()

    async def _read_requests(self) -> None:
        while True:
            try:
                requests = decode_node(Requests, (await self._coordination.read(REQUESTS)).data)
                break
            except UnavailableError as error:
                log.warning("requests of operators (node requests) are not known", extra={"reason": str(error)})
            except UNREADABLE as error:
                log.error("requests of operators (node requests) cannot be decoded", extra={"reason": str(error)})
                return
            await asyncio.sleep(self._patience.retry_s)
        for one in self.lines:
            one.disabled = requests.disabled.get(one.number)
            one.line.refuse(None if one.disabled is None else _disabled(one.number, one.disabled))
        self._changed.set()

    async def run(self) -> None:
        """Keep all links. Runs until it is cancelled, or the session has ended: see ``failure``."""
        keeping = [asyncio.ensure_future(self.keep(one)) for one in self.lines]
        keeping.append(asyncio.ensure_future(self.follow_requests()))
        keeping.append(asyncio.ensure_future(self._failures.forget()))
        keeping.append(asyncio.ensure_future(self.try_unreached()))
        try:
            done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except PenstockError as error:
            self._failure = error
        except Exception as error:
            self._failure = InternalError("links to containers failed", reason=repr(error))
            raise
        finally:
            self._changed.set()
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            for one in self.lines:
                one.line.give_up(self._failure or NotConnectedError("the controller is closing"))


def _disabled(number: int, reason: str) -> UnavailableError:
    return UnavailableError(
        "an operator has disabled this part of the store; `penstock cluster enable` enables it again",
        container=number,
        reason=reason,
    )


def _unreachable(one: ContainerLine, held: HeldContainer) -> UnavailableError:
    return UnavailableError(
        "this controller cannot reach the container that has its own table, so it ends and another one takes over",
        container=one.number,
        store=held.store,
        reason=one.problem,
    )


def _by_reason(found: Sequence[tuple[int, str]]) -> str:
    """Containers with the same reason together."""
    numbers: dict[str, list[str]] = {}
    for number, reason in found:
        numbers.setdefault(reason, []).append(str(number))
    return "; ".join(f"container {', '.join(those)}: {reason}" for reason, those in numbers.items())


def _endpoint(address: str) -> Endpoint:
    return Endpoint(host=host_of(address), port=int(parse_address(address).rpartition(":")[2]))


@asynccontextmanager
async def open_lines(
    coordination: Coordination, dial: Dial, *, containers: int, patience: LinePatience | None = None
) -> AsyncIterator[ContainerLines]:
    """Keep links to all containers until the block ends."""
    lines = ContainerLines(coordination, dial, containers=containers, patience=patience or LinePatience())
    running = asyncio.create_task(lines.run(), name="links to containers")
    try:
        yield lines
    finally:
        running.cancel()
        (failure,) = await asyncio.gather(running, return_exceptions=True)
        if isinstance(failure, Exception):
            raise failure
