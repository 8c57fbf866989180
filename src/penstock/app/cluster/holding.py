"""One container at a store, from when the assignment names the store until it names another one.

Source: docs/design/0065-cluster.md, "Moving a container".
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

from penstock.app.cluster.registration import FailedOpenings, Registration
from penstock.app.cluster.unit_links import UnitLinks
from penstock.app.cluster.units_router import UnitsRouter
from penstock.codec.store.cluster_nodes import (
    HOLDERS,
    REQUESTS,
    TERM,
    HeldContainer,
    Requests,
    Term,
    decode_node,
    encode_node,
)
from penstock.model.errors import (
    ConflictError,
    ContainerOfflineError,
    NodeNotFoundError,
    PenstockError,
    SessionEndedError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.coordination import Coordination
from penstock.segmentstore.store import SegmentStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingLimits:
    """Seconds, and a number.

    ``openings``: containers that open at the same time; each waits half of its time, for bookies, ZooKeeper and tier 2.
    ``flush_s``: how long a container that moves away may be written to tier 2 while it still serves. ``close_s``: how
    long its close may take then; it gives up waiting for bookies and tier 2 by itself before that, after at most 49 s.
    ``pause_s``, ``pause_max_s``: between attempts to open it, doubled each time. One that served for ``steady_s``
    begins with the first pause again. ``give_up_s``: after this long without success, other stores may try to open it.
    ``hang_s``: the same for one attempt that does not end; an opening takes seconds. ``again_s``: after this long, the
    container may be assigned to this store again; doubled after each failure, up to ``again_max_s``.
    """

    openings: int = 8
    flush_s: float = 10.0
    close_s: float = 60.0
    pause_s: float = 0.5
    pause_max_s: float = 30.0
    steady_s: float = 60.0
    give_up_s: float = 30.0
    hang_s: float = 60.0
    again_s: float = 600.0
    again_max_s: float = 14_400.0


class HoldingState(enum.Enum):
    """``WAITING``: for another store to close it. ``FAILED``: opening it is repeated after a pause."""

    WAITING = "waiting"
    OPENING = "opening"
    SERVING = "serving"
    CLOSING = "closing"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitHost:
    """What serves units in this process. ``open``: see ``unit.open_unit``."""

    open: Callable[[int], AbstractAsyncContextManager[SegmentStore]]
    router: UnitsRouter
    links: UnitLinks

    def serve(self, number: int, store: SegmentStore, *, term: int) -> None:
        """Clients and controllers reach the unit from now on."""
        self.router.open(number, store)
        self.links.open(number, store, term=term)

    def withdraw(self, number: int) -> None:
        """Nobody reaches the unit any more. Links to it end."""
        self.router.close(number)
        self.links.close(number)


class Holding:
    """Holds one container until ``release``. ``entry``: its registration, without ``serving``. ``failures``: of the
    session."""

    def __init__(
        self,
        number: int,
        session: Coordination,
        entry: HeldContainer,
        host: UnitHost,
        *,
        slots: asyncio.Semaphore,
        failures: FailedOpenings,
        limits: HoldingLimits,
    ) -> None:
        self.number = number
        self.state = HoldingState.WAITING
        self.failure: str | None = None
        """Why the last attempt to open it failed; None: it did not."""
        self._session = session
        self._entry = entry
        self._host = host
        self._slots = slots
        self._failures = failures
        self._limits = limits
        self._registration = Registration(session, f"{HOLDERS}/{number}", HeldContainer)
        self._released = asyncio.Event()
        self._served_at_s: float | None = None
        self._failing_since_s: float | None = None

    def release(self) -> None:
        """The container should be elsewhere: close it, and let others have it. ``run`` returns then."""
        self._released.set()

    async def run(self) -> None:
        """Take the container once nobody else holds it, serve it, and let it go after ``release``.

        A container that cannot be opened, or that stops, is opened again after a pause. Raises SessionEndedError. Cancelled:
        the container is dropped at once, without a checkpoint, and stays registered as long as the session.
        """
        released = asyncio.ensure_future(self._released.wait())
        work = asyncio.ensure_future(self._hold())
        try:
            await asyncio.wait({work, released}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                if self.state is HoldingState.SERVING:
                    await asyncio.wait({work}, timeout=self._limits.flush_s + self._limits.close_s)
                if not work.done():
                    work.cancel()
                    await asyncio.wait({work})
        finally:
            for one in (work, released):
                one.cancel()
            await asyncio.wait({work, released})
            failure = None if work.cancelled() else work.exception()  # retrieved also if this is cancelled
        if failure is not None:
            raise failure
        await self._registration.drop()
        log.info("container is released", extra={"container": self.number})

    async def _hold(self) -> None:
        pause_s, loop = self._limits.pause_s, asyncio.get_running_loop()
        while not self._released.is_set():
            self._served_at_s = None
            try:
                await self._registration.take(lambda: self._data(serving=False))
                log.info("container is taken", extra={"container": self.number})
                await self._serve()
                continue
            except SessionEndedError:
                raise
            except (PenstockError, OSError) as error:
                self._note(error)
            except Exception as error:
                # A bug that shows in one container must not stop the others.
                log.error("container failed", extra={"container": self.number}, exc_info=error)
                self._note(error)
            self.state = HoldingState.FAILED
            with suppress(NodeNotFoundError):  # an operator has deleted it: it is taken again
                await self._registration.set(self._data(serving=False))
            if self._served_s() >= self._limits.steady_s:
                pause_s, self._failing_since_s = self._limits.pause_s, None
            if self._failing_since_s is None:
                self._failing_since_s = loop.time()
            if loop.time() - self._failing_since_s >= self._limits.give_up_s:
                await self._failures.add(self.number, self._entry.store, self.failure or "")
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, self._limits.pause_max_s)

    def _served_s(self) -> float:
        """How long ago the last opening succeeded; 0: it did not."""
        return 0.0 if self._served_at_s is None else asyncio.get_running_loop().time() - self._served_at_s

    async def _serve(self) -> None:
        """Open the container and serve it until it is released. Raises why it could not be opened, or has stopped."""
        async with AsyncExitStack() as stack:
            async with self._slots:
                self.state = HoldingState.OPENING
                async with self._noticing_hang():
                    term = await self._term()
                    await self._check_enabled()
                    store = await stack.enter_async_context(self._host.open(self.number))
            self._host.serve(self.number, store, term=term)
            stack.callback(self._host.withdraw, self.number)
            self.state, self.failure = HoldingState.SERVING, None
            self._served_at_s = asyncio.get_running_loop().time()
            await self._registration.set(self._data(serving=True))
            log.info("container is served", extra={"container": self.number, "term": term})
            await self._failures.clear(self.number, self._entry.store)
            await self._until_released(store)
            await self._flush(store)
            self.state = HoldingState.CLOSING

    @asynccontextmanager
    async def _noticing_hang(self) -> AsyncIterator[None]:
        """Offer the container to other stores if the block takes too long. The block continues, and is cancelled once
        the container is assigned to another store."""

        async def notice() -> None:
            await asyncio.sleep(self._limits.hang_s)
            self.failure = f"opening it has not finished after {self._limits.hang_s:.0f} s"
            log.error("container cannot be served", extra={"container": self.number, "reason": self.failure})
            with suppress(SessionEndedError):  # the node learns that by itself
                await self._failures.add(self.number, self._entry.store, self.failure)

        noticing = asyncio.ensure_future(notice())
        try:
            yield
        finally:
            noticing.cancel()
            await asyncio.wait({noticing})
        if not noticing.cancelled():
            noticing.result()

    async def _term(self) -> int:
        await self._session.sync()
        return decode_node(Term, (await self._session.read(TERM)).data).term

    async def _check_enabled(self) -> None:
        """Raise ConflictError if an operator has disabled the container. The holder is registered, and a ``sync`` came
        after: an operator who has disabled it and then sees no holder knows that nobody opens it."""
        requests = decode_node(Requests, (await self._session.read(REQUESTS)).data)
        reason = requests.disabled.get(self.number)
        if reason is not None:
            raise ConflictError("the container is disabled", container=self.number, reason=reason)

    async def _until_released(self, store: SegmentStore) -> None:
        """Raises ContainerOfflineError if the container stops first."""
        stopped = asyncio.ensure_future(store.until_offline())
        released = asyncio.ensure_future(self._released.wait())
        try:
            await asyncio.wait({stopped, released}, return_when=asyncio.FIRST_COMPLETED)
            if (error := store.offline) is not None:
                raise ContainerOfflineError(error.message, **error.fields)
        finally:
            for one in (stopped, released):
                one.cancel()
            await asyncio.wait({stopped, released})

    async def _flush(self, store: SegmentStore) -> None:
        """Write to tier 2 what can be written while clients are still served, so that the close is short."""
        try:
            async with asyncio.timeout(self._limits.flush_s):
                await store.flush()
        except (TimeoutError, PenstockError, OSError) as error:
            log.warning(
                "container moves before its flush is complete", extra={"container": self.number, "reason": repr(error)}
            )

    def _data(self, *, serving: bool) -> bytes:
        return encode_node(replace(self._entry, serving=serving))

    def _note(self, error: Exception) -> None:
        self.failure = str(error) or repr(error)
        log.error("container cannot be served", extra={"container": self.number, "reason": self.failure})
