"""An event loop with a virtual clock and a seeded order of task steps.

Time passes only when nothing is runnable; then it jumps to the next timer. Runs of task steps are shuffled by the seed;
plain callbacks stay in order, as asyncio promises. The same seed gives the same trace in every process.

Source: docs/design/0010-simulation.md.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

from penstock.model.errors import InternalError
from penstock.testing.simulation.machine.network import SimNetwork

T = TypeVar("T")
_SHUFFLE_MAX = 16  # steps that are put in a random order together


class DeadlockError(InternalError):
    """Nothing is runnable and no timer is set: a task waits for an event that never happens."""


class VirtualDeadlineError(InternalError):
    """The run took more virtual time than allowed."""


class Process:
    """A simulated process: everything started in its ``context`` belongs to it and ends with it.

    With ``alive=False`` failures of its tasks are ignored, as for a dead process. With ``paused=True`` the loop holds back
    everything that is its own, until ``SimLoop.resume``.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._prune_at = 256
        self._context = copy_context()
        self._context.run(_PROCESS.set, self)

    @property
    def context(self) -> Context:
        """A context in which everything belongs to the process. A new one each time, because no context may be entered
        twice."""
        return self._context.copy()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        self._tasks[task] = None
        if len(self._tasks) >= self._prune_at:
            self._tasks = dict.fromkeys(self.running())
            self._prune_at = max(256, 2 * len(self._tasks))

    def running(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if not task.done()]

    def die(self) -> None:
        """The process ends silently. Its tasks are cancelled, and their later file operations must fail."""
        self.alive = False
        for task in self.running():
            task.cancel()


_PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


def current_process() -> Process | None:
    """The simulated process that runs now; None: a client, or the test itself."""
    return _PROCESS.get()


class _SimTask(asyncio.Task[Any]):
    """A task whose hash is its number: sets of tasks iterate in the same order in every process."""

    _number = 0

    def __init__(self, *args: Any, context: Context | None = None, **kwargs: Any) -> None:
        _SimTask._number += 1
        self._hash = _SimTask._number
        self.process = _PROCESS.get() if context is None else context.get(_PROCESS)
        super().__init__(*args, context=context, **kwargs)
        if self.process is not None:
            self.process.adopt(self)

    def __hash__(self) -> int:
        return self._hash


class _SimFuture(asyncio.Future[Any]):
    _number = 1 << 40

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _SimFuture._number += 1
        self._hash = _SimFuture._number
        self.process = _PROCESS.get()
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._hash


def _process_of(handle: Any) -> Process | None:
    context: Context | None = getattr(handle, "_context", None)
    return None if context is None else context.get(_PROCESS)


def _is_task_step(handle: events.Handle) -> bool:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    return isinstance(getattr(callback, "__self__", None), asyncio.Task)


def _is_timer(handle: events.Handle) -> bool:
    """Whether the process has set it. What a connection delivers is also a timer here, because it is under way."""
    callback: Any = handle._callback  # type: ignore[attr-defined]
    arrives = isinstance(getattr(callback, "__self__", None), asyncio.BaseTransport)
    return isinstance(handle, events.TimerHandle) and not arrives


class SimLoop(asyncio.AbstractEventLoop):
    """The loop. ``rng`` orders task steps; give other parts their own generators (``fork``), so that a new draw in one
    part changes no other."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"{seed}/order")
        self.network = SimNetwork(self, self.fork("network"))
        self.steps = 0
        self._trace = hashlib.sha256()
        self._ready: list[events.Handle] = []
        self._timers: list[tuple[float, int, events.TimerHandle]] = []
        self._sequence = 0
        self._now = 0.0
        self._failure: BaseException | None = None
        self._held: dict[Process, list[events.Handle]] = {}
        self._closed = False
        self._running = False
        _SimTask._number = 0
        _SimFuture._number = 1 << 40

    def fork(self, label: str) -> random.Random:
        """A generator of its own for the named part."""
        return random.Random(f"{self.seed}/{label}")

    def note(self, text: str) -> None:
        """Add an observation to the trace."""
        self._trace.update(f"{self._now:.6f} {text}\n".encode())

    @property
    def trace(self) -> str:
        """Digest of every choice made and observation noted so far."""
        return self._trace.hexdigest()

    def pause(self, process: Process) -> None:
        """Stop the process, as SIGSTOP does: nothing of it runs, and its timers are late."""
        process.paused = True
        self._held.setdefault(process, [])

    def resume(self, process: Process) -> None:
        """Let the process continue with what was held back. Does nothing if it is not paused.

        As in asyncio, what arrives from outside comes before the timers that are due, each in order."""
        process.paused = False
        held = self._held.pop(process, [])
        self._ready += sorted(held, key=_is_timer)

    # --- what asyncio asks of a loop --------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    def create_future(self) -> asyncio.Future[Any]:
        return _SimFuture(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return _SimTask(coro, loop=self, name=name or "task", context=context)

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        handle = events.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, handle))
        return handle

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """asyncio reports cancelled timers here. They are dropped when they are due."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        source = context.get("task") or context.get("future")
        process = source.process if source is not None else _process_of(context.get("handle"))
        if process is not None and not process.alive:
            return
        error = context.get("exception") or InternalError(str(context.get("message")))
        self._failure = self._failure or error

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    async def shutdown_asyncgens(self) -> None: ...

    async def shutdown_default_executor(self, timeout: float | None = None) -> None: ...

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return self.network.listen(protocol_factory, str(host), int(port or 0))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.network.connect(protocol_factory, str(host), int(port))

    # --- running ----------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, T], *, max_seconds: float = 1e9) -> T:
        """Run ``main`` to its end. Raises what it raises, DeadlockError, VirtualDeadlineError, or the first failure
        that a callback or an abandoned task left behind."""
        asyncio._set_running_loop(self)
        self._running = True
        try:
            task = self.create_task(main, name="main")
            while not task.done():
                if not self._ready:
                    self._advance(max_seconds)
                    continue
                self._step()
            return task.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)

    def _advance(self, max_seconds: float) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        if not self._timers:
            raise DeadlockError("no task can run and no timer is set", seed=self.seed, at_s=round(self._now, 3))
        self._now = max(self._now, self._timers[0][0])
        if self._now > max_seconds:
            raise VirtualDeadlineError("the run takes too much virtual time", seed=self.seed, max_s=max_seconds)
        while self._timers and self._timers[0][0] <= self._now:
            handle = heapq.heappop(self._timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)

    def _step(self) -> None:
        choice = 0
        if len(self._ready) > 1 and _is_task_step(self._ready[0]):
            run = 1
            while run < min(len(self._ready), _SHUFFLE_MAX) and _is_task_step(self._ready[run]):
                run += 1
            choice = self.rng.randrange(run) if run > 1 else 0
        handle = self._ready.pop(choice)
        if handle.cancelled():
            return
        if self._held and (process := _process_of(handle)) is not None and process.paused:
            self._held[process].append(handle)
            return
        self.steps += 1
        if self.steps & 63 == 0:
            self._trace.update(b"%d,%.6f,%d;" % (choice, self._now, len(self._ready)))
        handle._run()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure


def make_loop(seed: int) -> SimLoop:
    """A loop for product code, which uses only the methods that ``SimLoop`` has."""
    return SimLoop(seed)  # type: ignore[abstract]
