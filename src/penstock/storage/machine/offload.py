"""Threads for blocking work."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from penstock.model.errors import InternalError
from penstock.ports import forks

T = TypeVar("T")
_log = logging.getLogger(__name__)


class ThreadOffload:
    """Implements ``ports.offload.Offload`` with a bounded pool of threads.

    At most ``threads`` calls run and ``queue`` more wait inside; further callers wait outside, in call order. The
    default of eight lets the log write even while four containers sync chunks. Threads are started on demand. ``close``
    waits for all started calls; without it, the threads end with the process.

    A pool of ``concurrent.futures`` creates a condition, a second future and two callbacks for each call: half the cost
    of a thread hop here.
    """

    def __init__(self, *, threads: int = 8, queue: int = 64) -> None:
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[_Call[Any] | None] = SimpleQueue()
        self._slots = asyncio.Semaphore(threads + queue)
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._owner = forks.current()
        self._waiting: dict[asyncio.Future[Any], None] = {}
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. The child has no threads: waiting work fails."""
        for done in self._waiting:
            if not done.done():
                done.set_exception(forks.refusal())
                done.exception()
        self._running = 0
        self._idle.set()

    def part(self) -> OffloadPart:
        """The same threads, for one borrower that must know when all of its calls have ended."""
        return OffloadPart(self)

    async def run(self, work: Callable[[], T], part: OffloadPart | None = None) -> T:
        """Run ``work`` in a thread. If cancelled, it still runs to its end, and occupies its thread until then. ``part``: by
        which it was called.

        Raises ForkedError in a forked child.
        """
        forks.check(self._owner)
        if self._closed:
            raise InternalError("work is offloaded after close")
        await self._slots.acquire()
        try:
            # Fewer threads than running calls, including this one.
            if self._running >= len(self._threads) < self._limit:
                self._start_thread()
        except BaseException:
            self._slots.release()
            raise
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._running += 1
        self._idle.clear()
        self._waiting[done] = None
        if part is None:
            self._calls.put(_Call(work, loop, done, self._finish))
        else:
            part.running += 1
            self._calls.put(_Call(work, loop, done, partial(self._finish_in, part)))
        return await done

    def _finish_in(self, part: OffloadPart, done: asyncio.Future[T], result: T, error: BaseException | None) -> None:
        self._finish(done, result, error)
        part.finish()

    def _start_thread(self) -> None:
        # A daemon: when the process ends, unfinished work was never acknowledged and can be dropped.
        name = f"penstock-offload-{len(self._threads)}"
        thread = threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _finish(self, done: asyncio.Future[T], result: T, error: BaseException | None) -> None:
        self._slots.release()
        del self._waiting[done]
        self._running -= 1
        if self._running == 0:
            self._idle.set()
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    async def close(self, *, wait_s: float | None = None) -> None:
        """Refuse new work, wait for running work, end the threads. In a forked child there are none.

        Work that takes longer than ``wait_s`` seconds, such as in a file system that hangs, is left to the end of the
        process; None: no limit.
        """
        self._closed = True
        if self._owner is not forks.current():
            return
        try:
            async with asyncio.timeout(wait_s):
                await self._idle.wait()
        except TimeoutError:
            _log.warning("calls that hang are left behind", extra={"calls": self._running, "waited_s": wait_s})
        for _ in self._threads:
            self._calls.put(None)
        if self._running:
            return
        for thread in self._threads:
            thread.join()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class OffloadPart:
    """Implements ``ports.offload.Offload`` with the threads of a pool, for one borrower. A call counts until its function has
    returned, also if the wait for it was cancelled. ``running``: how many calls count now."""

    def __init__(self, pool: ThreadOffload) -> None:
        self.running = 0
        self._pool = pool
        self._idle: list[Callable[[], object]] = []

    async def run(self, work: Callable[[], T]) -> T:
        """As ``ThreadOffload.run``."""
        return await self._pool.run(work, self)

    def when_idle(self, then: Callable[[], object]) -> None:
        """Call ``then`` once no call is running: now, or from the event loop."""
        if self.running:
            self._idle.append(then)
        else:
            then()

    def finish(self) -> None:
        """A call has ended. For the pool."""
        self.running -= 1
        if not self.running:
            idle, self._idle = self._idle, []
            for then in idle:
                then()


class _Call(Generic[T]):
    """A call, and the future that receives its outcome."""

    __slots__ = ("_done", "_finish", "_loop", "_work")

    def __init__(
        self,
        work: Callable[[], T],
        loop: asyncio.AbstractEventLoop,
        done: asyncio.Future[T],
        finish: Callable[[asyncio.Future[T], Any, BaseException | None], None],
    ) -> None:
        self._work = work
        self._loop = loop
        self._done = done
        self._finish = finish

    def run(self) -> None:
        result, error = None, None
        try:
            result = self._work()
        except BaseException as failure:  # noqa: BLE001 - the caller gets it
            error = failure
        try:
            self._loop.call_soon_threadsafe(self._finish, self._done, result, error)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The loop is closed: no caller waits for the outcome.
        finally:
            # An error's traceback holds this frame, which would hold the error.
            del result, error


def _serve(calls: SimpleQueue[_Call[Any] | None]) -> None:
    """Run calls until a None. Keep no reference to the last call: its buffers may be reused."""
    while (call := calls.get()) is not None:
        call.run()
        del call
