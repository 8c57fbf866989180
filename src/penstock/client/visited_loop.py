"""A loop whose work another thread may do while the loop's own thread rests: a store in this process, without a switch.

The loop's thread has its turn from the moment at which it finds something to do until it waits again. Between two turns a
visitor may have one: it calls what only the loop may call, and whatever that asks to be called soon.
Source: docs/design/0008-client.md.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # ``signal`` makes an enumeration of each answer, which costs as much as an append
import asyncio
import selectors
import sys
import threading  # noqa: TID251 - a turn passes between the loop's thread and its visitors
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from types import FrameType
from typing import Any, TypeAlias, TypeVarTuple, Unpack

from penstock.model.errors import NotConnectedError

_Ts = TypeVarTuple("_Ts")
_Handler: TypeAlias = Callable[[int, FrameType | None], Any]
_TASKS_ARE_OF_THREADS = sys.version_info >= (3, 14)
"""Whether a thread has one task at a time, whatever its loops; before, a loop has."""
_SIGNALS = tuple(number for number in range(1, 32) if number not in (_signal.SIGKILL, _signal.SIGSTOP))


class VisitedLoop(asyncio.SelectorEventLoop):
    """An event loop that ``visit`` may use from other threads."""

    def __init__(self) -> None:
        # Whoever waits for its turn holds the gate: a visitor that comes again and again keeps nobody out.
        self._gate = threading.Lock()
        self._turn = threading.Lock()
        self._turn.acquire()
        self._soon: deque[asyncio.Handle] | None = None
        self._timed = False
        super().__init__(_RestingSelector(self))

    def rest(self) -> None:
        """Let visitors in. In the loop's thread, which does nothing else until ``go_on``."""
        self._turn.release()

    def go_on(self) -> None:
        """Wait until no visitor is inside, and let none in."""
        with self._gate:
            self._turn.acquire()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for a turn."""
        return self._gate.locked()

    def visit(self, work: Callable[[], None], timeout_s: float) -> bool:
        """Call ``work`` in this thread as if it were the loop's, then what it has asked to be called soon, once.

        ``work`` had better not raise. What those ask for in their turn is the loop's. Returns False after ``timeout_s``
        without a turn, having done nothing. Signals whose handlers are Python's are handled at the end: one that raises in
        between would leave the store in pieces. Raises what such a handler raises, and NotConnectedError once the loop is
        closed.
        """
        if self.is_closed():
            raise NotConnectedError("store is closed")
        if self.get_debug():
            return False  # asyncio's own checks forbid it
        if _TASKS_ARE_OF_THREADS and asyncio._get_running_loop() is not None:
            return False  # a task that the visit begins would be refused while one of the caller's runs
        if threading.current_thread() is not threading.main_thread():
            return self._visit(work, timeout_s)  # handlers run in the main thread alone
        with _SignalsHeld():
            return self._visit(work, timeout_s)

    def _visit(self, work: Callable[[], None], timeout_s: float) -> bool:
        if not self._gate.acquire(timeout=timeout_s):
            return False
        try:
            if not self._turn.acquire(timeout=timeout_s):
                return False
        finally:
            self._gate.release()
        try:
            self._visited(work)
        finally:
            self._turn.release()
        return True

    def _visited(self, work: Callable[[], None]) -> None:
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        soon: deque[asyncio.Handle] = deque()
        later: deque[asyncio.Handle] = deque()
        self._soon = soon
        try:
            work()
            self._soon = later
            while soon:
                _run(soon.popleft())
        finally:
            self._soon = None
            asyncio._set_running_loop(before)
            if later or soon or self._timed:
                self._timed = False
                self.call_soon_threadsafe(_run_all, (*soon, *later))

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As every loop's. Of a visitor it is kept."""
        if self._soon is None:
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._soon.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """As every loop's. A visitor's wakes the loop, which looks again how long it may rest."""
        if self._soon is not None:
            self._timed = True
        return super().call_at(when, callback, *args, context=context)


class _RestingSelector(selectors.DefaultSelector):
    """Where the loop waits, and others may have their turn."""

    def __init__(self, loop: VisitedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0 and not self._loop.is_awaited:
            return super().select(timeout)
        self._loop.rest()
        try:
            return super().select(timeout)
        finally:
            self._loop.go_on()


def _run(handle: asyncio.Handle) -> None:
    if not handle.cancelled():
        handle._run()


def _run_all(handles: Iterable[asyncio.Handle]) -> None:
    for handle in handles:
        _run(handle)


class _SignalsHeld:
    """Lets handlers written in Python run at the end of the block."""

    # What handlers there are is asked each time, and worked out only where it differs from the last time.
    _known: tuple[object, ...] = ()
    _written_here: tuple[tuple[int, _Handler], ...] = ()

    def __enter__(self) -> None:
        self._came: list[tuple[int, FrameType | None]] = []
        self._held: tuple[tuple[int, _Handler], ...] = ()
        found = tuple(map(_signal.getsignal, _SIGNALS))
        if found != _SignalsHeld._known:
            written = tuple((number, one) for number, one in zip(_SIGNALS, found, strict=True) if callable(one))
            _SignalsHeld._known, _SignalsHeld._written_here = found, written
        self._held = _SignalsHeld._written_here
        try:
            for number, _ in self._held:
                _signal.signal(number, self._note)
        except BaseException:  # of a handler that was not replaced yet
            self._settle()
            raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))

    def _settle(self) -> None:
        """Give all of them back, whatever those that are back already raise meanwhile, and call each whose signal came, were
        the one before to raise. Raises the last of that."""
        raised: BaseException | None = None
        left, came, handlers = list(self._held), self._came, dict(self._held)
        while left or came:
            try:
                while left:
                    _signal.signal(*left[-1])
                    left.pop()
                while came:
                    number, frame = came.pop(0)
                    handlers[number](number, frame)
            except BaseException as error:  # noqa: BLE001 - raised by whoever calls
                raised = error
        if raised is not None:
            raise raised

    def __exit__(self, *error: object) -> None:
        self._settle()
