"""The outcome of work in the event loop, for the thread that waits for it.

``concurrent.futures.Future`` serves many waiting threads, and costs a waiting thread 20 us more per answer.
"""

from __future__ import annotations

import threading  # noqa: TID251 - the answer crosses from the loop's thread to the caller's
from collections.abc import Callable
from concurrent.futures import CancelledError  # noqa: TID251 - as a future's
from typing import Generic, TypeVar

T = TypeVar("T")


class Answer(Generic[T]):
    """Settled once: by a result, an error, or a cancellation, whichever comes first. One thread waits for it at a time."""

    __slots__ = ("_done", "_error", "_gave_up", "_result", "_settled", "_waiting", "cancelled")

    def __init__(self) -> None:
        self._settled = threading.Lock()  # taken by the thread that settles it
        self._waiting = threading.Lock()
        self._waiting.acquire()
        self._done = False
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._gave_up: list[Callable[[], None]] = []
        self.cancelled = False

    def _settle(self) -> bool:
        return self._settled.acquire(blocking=False)

    def _tell(self) -> None:
        self._done = True
        self._waiting.release()

    @property
    def done(self) -> bool:
        """Whether ``result`` returns or raises at once."""
        return self._done

    def set_result(self, result: T) -> None:
        """Dropped where it was cancelled."""
        if self._settle():
            self._result.append(result)
            self._tell()

    def set_error(self, error: BaseException) -> None:
        """Dropped where it was cancelled."""
        if self._settle():
            self._error = error
            self._tell()

    def cancel(self) -> None:
        """``result`` raises CancelledError, unless it has an outcome already; the work is ended. From any thread."""
        if self._settle():
            self.cancelled = True
            self._tell()
        self._end_work()

    def on_cancel(self, call: Callable[[], None]) -> None:
        """Call it on cancellation, in the thread that cancels; at once if it is already cancelled."""
        self._gave_up.append(call)
        self._end_work()

    def _end_work(self) -> None:
        while self.cancelled and self._gave_up:
            try:
                call = self._gave_up.pop()
            except IndexError:
                return  # taken by the other thread
            call()

    def result(self, timeout_s: float) -> T:
        """The result, or the error raised. Raises TimeoutError after ``timeout_s``: the call may be repeated."""
        if not self._done and not self._waiting.acquire(timeout=timeout_s) and not self._done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        if self.cancelled:
            raise CancelledError
        return self._result[0]
