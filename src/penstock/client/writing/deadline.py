"""How long a writer waits for an acknowledgement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.model.errors import DeadlineExceededError, PenstockError, QuotaHeldError, StorageFullError


class Deadline:
    """Fails a writer after ``deadline_s`` seconds without progress while events wait for their acknowledgement.

    The writer sets ``progress_at`` (the loop's time) and ``trouble`` itself: a call for each acknowledgement would cost
    more than the assignments. ``trouble`` is why the last attempt failed; the error that is passed to ``fail`` reports
    it.
    """

    __slots__ = ("_deadline_s", "_fail", "_is_waiting", "_loop", "_watchdog", "progress_at", "trouble")

    def __init__(
        self, deadline_s: float, is_waiting: Callable[[], bool], fail: Callable[[PenstockError], None]
    ) -> None:
        self.progress_at = 0.0
        self.trouble: BaseException | None = None
        self._deadline_s = deadline_s
        self._is_waiting = is_waiting
        self._fail = fail
        self._watchdog: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The first event waits from now on."""
        self._loop = loop
        self.progress_at = loop.time()
        if self._watchdog is None:
            self._watch()

    def cancel(self) -> None:
        """Stop watching. Idempotent."""
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def _watch(self) -> None:
        self._watchdog = self._loop.call_at(self.progress_at + self._deadline_s, self._look)

    def _look(self) -> None:
        self._watchdog = None
        if not self._is_waiting():
            return
        if self._loop.time() < self.progress_at + self._deadline_s:
            self._watch()
        else:
            self._fail(_overdue(self.trouble, self._deadline_s))


def _overdue(trouble: BaseException | None, deadline_s: float) -> PenstockError:
    """The error for a passed deadline. A full disk or a quota has its own error, because waiting longer will not help."""
    error: PenstockError
    if isinstance(trouble, StorageFullError):
        error = StorageFullError("events are not acknowledged: disk is full", deadline_s=deadline_s)
    elif isinstance(trouble, QuotaHeldError):
        fields = trouble.fields | {"deadline_s": deadline_s}
        error = QuotaHeldError("events wait for their acknowledgement: the backlog quota is reached", **fields)
    else:
        error = DeadlineExceededError("events are not acknowledged", deadline_s=deadline_s)
    if trouble is None:
        # A slow store stops reading from the connection, and its protocol has no message to report that.
        error.fields["hint"] = "the store sent no answer and may be overloaded; see its log"
    error.__cause__ = trouble
    return error
