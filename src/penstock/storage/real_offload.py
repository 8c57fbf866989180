"""Threads for blocking work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from penstock.model.errors import InternalError

T = TypeVar("T")


class ThreadOffload:
    """Implements ``ports.offload.Offload`` with a bounded pool of threads.

    At most ``threads`` calls run and ``queue`` more wait inside; further callers wait outside, in call order. Eight, so
    that the log's write never queues behind four containers that sync chunks; threads are started as they are needed.
    ``close`` waits for everything that was started.
    """

    def __init__(self, *, threads: int = 8, queue: int = 64) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="penstock-offload")
        self._slots = asyncio.Semaphore(threads + queue)
        self._running = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread. Cancelled: it still runs to its end, and holds its place until then."""
        if self._closed:
            raise InternalError("work is offloaded after close")
        await self._slots.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        try:
            started = self._pool.submit(work)
        except BaseException:
            self._slots.release()
            raise
        self._running += 1
        self._idle.clear()
        started.add_done_callback(lambda future: loop.call_soon_threadsafe(partial(self._finish, future, done)))
        return await done

    def _finish(self, future: Future[T], done: asyncio.Future[T]) -> None:
        self._slots.release()
        self._running -= 1
        if self._running == 0:
            self._idle.set()
        error = future.exception()
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(future.result())

    async def close(self) -> None:
        """Refuse new work, wait for the running, end the threads."""
        self._closed = True
        await self._idle.wait()
        self._pool.shutdown(wait=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
