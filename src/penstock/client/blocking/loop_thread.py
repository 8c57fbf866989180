"""One event loop in one background thread, and how other threads call into it."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401, TID251 - its end of executors must be registered before ours
import logging
import threading  # noqa: TID251 - the blocking API is the one place where the client has a thread
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future  # noqa: TID251 - answers cross from the loop's thread to the caller's
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar
from weakref import WeakSet

from penstock.client.blocking.answer import Answer
from penstock.model.errors import InternalError, InvalidArgumentError, NotConnectedError, PenstockError
from penstock.ports import forks
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService

T = TypeVar("T")
Close = Callable[[], Awaitable[None]]
Services = tuple[SegmentService, ControlPlane]
Opener = Callable[[], AbstractAsyncContextManager[Services]]

log = logging.getLogger(__name__)

FLUSH_S = 10.0
"""How long closing a store waits for what its open writers hold."""

POLL_S = 1.0
"""How often a wait checks that the background thread is alive; an answer ends the wait at once."""


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """One event loop in one daemon thread, with the services open for as long as it runs."""

    def __init__(self, opener: Opener, *, local: bool = False) -> None:
        """``local``: the services belong to this process and run in this loop."""
        self.loop = _new_loop()
        self.is_local = local
        self._opened: Future[Services] = Future()
        self._closing = False
        self._failure: BaseException | None = None
        self._is_inherited = False
        self._stop = asyncio.Event()
        self._calls: dict[asyncio.Task[Any], None] = {}
        self._submitted: dict[Answer[Any], Coroutine[Any, Any, Any]] = {}
        """What was submitted and has not begun."""
        self._owned: dict[int, tuple[object, Close, Close | None]] = {}  # with the thing, so that its id stays its own
        self._posted: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._posting = False
        self._thread = threading.Thread(target=self._run, args=(opener,), name="penstock-client", daemon=True)
        forks.register(self)
        self._thread.start()
        try:
            self.services = self._opened.result()
        except BaseException:
            self.close()
            raise
        _open_threads.add(self)

    def _run(self, opener: Opener) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._serve(opener))
        except BaseException as error:  # noqa: BLE001 - kept, and raised by every later call
            self._failure = error
            if not self._opened.done():
                self._opened.set_exception(error)
        finally:
            self._end_tasks()
            self.loop.close()
            self._drop_submitted()

    async def _serve(self, opener: Opener) -> None:
        async with opener() as services:
            self._opened.set_result(services)
            await self._stop.wait()
            # Our tasks end first: the services must not close while they run.
            await self._flush_owned()
            for _, close, _ in list(self._owned.values()):
                await close()
            calls = list(self._calls)
            for call in calls:
                call.cancel()
            if calls:
                await asyncio.wait(calls)

    async def _flush_owned(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_S):
                for _, _, flush in list(self._owned.values()):
                    if flush is not None:
                        await flush()
        except (PenstockError, TimeoutError) as error:
            log.warning("store is closed before its writers were done", extra={"error": str(error)})

    def _end_tasks(self) -> None:
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.wait(left))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    def _drop_submitted(self) -> None:
        """What never began never will."""
        while self._submitted:
            answer, work = self._submitted.popitem()
            work.close()
            answer.cancel()

    def own(
        self,
        thing: object,
        close: Close,
        flush: Close | None = None,
    ) -> None:
        """Flush and close ``thing`` before the services, in case its user does not."""
        self._owned[id(thing)] = thing, close, flush

    def disown(self, thing: object) -> None:
        self._owned.pop(id(thing), None)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. The loop and its thread belong to the parent."""
        self._is_inherited = True

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked child, and the store belongs to its parent."""
        return self._is_inherited

    def check_process(self) -> None:
        """Raise ForkedError in a forked child."""
        if self._is_inherited:
            raise forks.refusal()

    @property
    def closed(self) -> bool:
        """Whether calls are refused by now."""
        return self._closing or not self._thread.is_alive()

    def check(self) -> None:
        """Raise ForkedError in a forked child, InvalidArgumentError once closed, NotConnectedError where the store failed."""
        self.check_process()
        if self.closed:
            if self._failure is not None:
                raise NotConnectedError("store has failed", reason=str(self._failure)) from self._failure
            raise InvalidArgumentError("store is closed")

    def check_caller(self) -> None:
        """As ``check``, and raise InvalidArgumentError in the store's own thread."""
        self.check()
        if threading.current_thread() is self._thread:
            raise InvalidArgumentError("blocking calls cannot be made from the store's own thread")

    def submit(self, work: Coroutine[Any, Any, T]) -> Answer[T]:
        """Start ``work`` in the loop. Raises InvalidArgumentError once closed, or what the store failed with."""
        answer: Answer[T] = Answer()
        self._submit(work, answer)
        return answer

    def _submit(self, work: Coroutine[Any, Any, T], answer: Answer[T]) -> None:
        try:
            self.check_caller()
        except PenstockError:
            work.close()
            raise
        self._submitted[answer] = work
        try:
            self.loop.call_soon_threadsafe(self._begin, answer)
        except RuntimeError as error:  # the loop was closed meanwhile
            if self._submitted.pop(answer, None) is not None:
                work.close()
            raise NotConnectedError("store is closed") from error

    def _begin(self, answer: Answer[Any]) -> None:
        work = self._submitted.pop(answer)
        if answer.cancelled:
            work.close()
            return
        task = self.loop.create_task(self._perform(work, answer))
        self._calls[task] = None
        task.add_done_callback(lambda done: self._end(done, work, answer))
        answer.on_cancel(lambda: self._cancel(task))

    @staticmethod
    async def _perform(work: Coroutine[Any, Any, Any], answer: Answer[Any]) -> None:
        if answer.cancelled:
            return  # Its caller has continued and may have written more. This work must not run after that.
        # From here, a pass of the loop before the task is done.
        answer.set_result(await work)

    def _end(self, task: asyncio.Task[None], work: Coroutine[Any, Any, Any], answer: Answer[Any]) -> None:
        del self._calls[task]
        work.close()  # cancelled before its first step, the task has never awaited it
        error = None if task.cancelled() else task.exception()
        if error is not None:
            answer.set_error(error)
        else:
            answer.cancel()  # where it has no result

    def _cancel(self, task: asyncio.Task[None]) -> None:
        """Nobody waits for the answer any more. Called in the thread that cancelled it."""
        if not task.done():
            with suppress(RuntimeError):  # the loop is closed, and all of its tasks have ended
                self.loop.call_soon_threadsafe(task.cancel)

    def post(self, call: Callable[..., object], *arguments: object) -> None:
        """Call in the loop, soon, in order of posting. The loop is woken once for all calls that are still queued."""
        self.check_process()
        self._posted.append((call, arguments))
        # Checked after the append: the loop clears the mark before it empties the queue.
        if self._posting:
            return
        try:
            self._posting = True
            self.loop.call_soon_threadsafe(self._run_posted)
        except RuntimeError as error:  # the loop is closed
            self._posting = False
            raise NotConnectedError("store is closed") from error
        except BaseException:
            self._posting = False  # interrupted: the next post wakes the loop for this call too
            raise

    def _run_posted(self) -> None:
        self._posting = False
        posted = self._posted
        for _ in range(len(posted)):
            call, arguments = posted.popleft()
            try:
                call(*arguments)
            except Exception as error:  # noqa: BLE001 - a bug in one call must not stop the calls after it
                self.loop.call_exception_handler({"message": "call into the loop failed", "exception": error})

    def wait(self, answer: Answer[T], timeout_s: float | None = None) -> T:
        """The answer. Raises TimeoutError, with the work still going on, or what the work raised."""
        self.check_process()
        left_s = timeout_s
        while True:
            step_s = POLL_S if left_s is None else max(0.0, min(POLL_S, left_s))
            try:
                return answer.result(step_s)
            except CancelledError as error:
                raise NotConnectedError("store was closed") from error
            except TimeoutError:
                # Checked before the answer: the thread may give its last answer just before it ends.
                ended = not self._thread.is_alive()
                if answer.done:
                    return answer.result(0)
                if ended:
                    raise NotConnectedError("store has failed", reason=str(self._failure)) from self._failure
                if left_s is not None:
                    left_s -= step_s
                    if left_s <= 0:
                        raise

    def call_back(self, start: Callable[[Callable[[], None]], object]) -> None:
        """Call ``start`` in the loop with a function, and return once that was called. One switch each way, no task.

        Raises as ``submit``, NotConnectedError where the store failed meanwhile, and InternalError where ``start`` raised.
        """
        self.check_caller()
        answered = threading.Lock()
        answered.acquire()
        failures: list[BaseException] = []

        def answer() -> None:
            if answered.locked():
                answered.release()

        def begin() -> None:
            try:
                start(answer)
            except BaseException as error:
                failures.append(error)
                answer()
                raise

        self.post(begin)
        while not answered.acquire(timeout=POLL_S):
            if not self._thread.is_alive():
                raise NotConnectedError("store has failed", reason=str(self._failure)) from self._failure
        if failures:
            raise InternalError("call into the loop failed", reason=repr(failures[0])) from failures[0]

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` in the loop and return its answer. Interrupted: it is cancelled."""
        answer: Answer[T] = Answer()
        try:
            # Inside the ``try``: if interrupted after the handover, the work is cancelled too.
            self._submit(work, answer)
            return self.wait(answer)
        except BaseException:
            answer.cancel()
            raise

    def close(self) -> None:
        """Flush open writers for up to ``FLUSH_S``, end the loop and close the services. Idempotent.

        In a forked child nothing happens: everything belongs to its parent.
        """
        _open_threads.discard(self)
        if self._is_inherited:
            return
        if not self._closing:
            self._closing = True
            with suppress(RuntimeError):  # the loop is closed: its thread is ending by itself
                self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


_open_threads: WeakSet[LoopThread] = WeakSet()


def _close_open_threads() -> None:
    for thread in list(_open_threads):
        thread.close()


# A plain ``atexit`` runs after the executors have ended, which do the writing of an embedded store: its log would go
# offline, and log that on top of the script's own error.
getattr(threading, "_register_atexit", atexit.register)(_close_open_threads)
