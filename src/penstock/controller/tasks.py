"""Owned tasks, bounded parallel work, and locks by name."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, TypeVar

from penstock.model.errors import FencedError, PenstockError, UnavailableError, leaves

T = TypeVar("T")
V = TypeVar("V")

log = logging.getLogger(__name__)

PARALLEL = 64
"""Store calls of one workflow in flight: enough to share syncs, too few to crowd out users' requests."""


class OwnedTasks:
    """Tasks with an owner: none outlives ``close``, no failure is lost.

    ``run`` is for work that must not stop half-way because its caller went away; ``start`` for background work.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and return its result. If cancelled, the work continues, and its failure is logged.

        Raises: UnavailableError once closed.
        """
        if self._closed:
            work.close()
            raise UnavailableError("the controller is closed")
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                # The caller was cancelled, possibly in the same moment as the work.
                task.add_done_callback(_log_failure)
                raise
            raise UnavailableError("the controller was closed before the work was done") from None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work`` in the background; a failure is logged."""
        if self._closed:
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)

    def start_own(self, work: Coroutine[Any, Any, None]) -> None:
        """As ``start``, for work that a call triggers but does not request: its audit entries do not name the
        caller."""
        Context().run(self.start, work)

    async def close(self) -> None:
        """Cancel what is running and wait for it. Durable intents let the next controller finish it."""
        self._closed = True
        while self._tasks:
            running = list(self._tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        # An error of the store is logged in one line, because the sweeper retries, or the next owner does once this one is
        # deposed; any other with its traceback.
        shown = None if isinstance(error, UnavailableError | FencedError) else error
        log.warning("background work of the controller failed", extra={"error": str(error)}, exc_info=shown)


async def each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, limit: int = PARALLEL) -> None:
    """Do ``work`` for every item, at most ``limit`` at a time. Raises the first failure after all running ones have
    ended."""
    waiting = list(items)
    if len(waiting) == 1:
        await work(waiting[0])
        return
    waiting.reverse()

    async def worker() -> None:
        while waiting:
            await work(waiting.pop())

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(limit, len(waiting))):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None


async def collect(items: Iterable[T], work: Callable[[T], Awaitable[V]], *, limit: int = PARALLEL) -> dict[T, V]:
    """Results of ``work`` by item, in the order of the items. As ``each``."""
    order = list(items)
    found: dict[T, V] = {}

    async def keep(item: T) -> None:
        found[item] = await work(item)

    await each(order, keep, limit=limit)
    return {item: found[item] for item in order}


def first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """The most informative error: one of ours before any other."""
    flat = list(leaves(errors))
    return next((error for error in flat if isinstance(error, PenstockError)), flat[0])


class NamedLocks:
    """One lock for each name that is in use. They keep workflows of this process apart; compare-and-set does so for
    all others."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def hold(self, name: str) -> AsyncIterator[None]:
        lock, users = self._locks.get(name) or (asyncio.Lock(), 0)
        self._locks[name] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = (lock, users - 1)

    async def passed(self, prefix: str) -> None:
        """Wait until every current holder of and waiter for a lock with that prefix has released it."""
        for name in [name for name in self._locks if name.startswith(prefix)]:
            async with self.hold(name):
                continue
