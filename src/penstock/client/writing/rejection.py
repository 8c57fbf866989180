"""Events of a writer that a quota refused, until the refusal is reported to the user."""

from __future__ import annotations

from penstock.client.writing.write_blocks import WriteBlock
from penstock.model.errors import InternalError, QuotaExceededError


class Rejections:
    """Refusals of one writer, each reported once. Until it is reported, all written events are dropped and counted: if
    they were stored, they would overtake the refused events that the user is going to write again.

    ``open_blocks``: number of blocks in flight, which may or may not be stored. The report waits for them, so that
    every event that it counts as lost is lost. ``reported`` counts the refusals that were reported.
    """

    __slots__ = ("_bytes", "_cause", "_events", "_last", "_stream", "is_on", "open_blocks", "reported")

    def __init__(self, stream: str) -> None:
        self.open_blocks = 0
        self.reported = 0
        self._stream = stream
        self._cause: QuotaExceededError | None = None
        self._last: QuotaExceededError | None = None
        self._events = 0
        self._bytes = 0
        self.is_on = False
        """Whether there is a refusal that was not reported yet."""

    @property
    def is_known(self) -> bool:
        """Whether the loss is fully known, so that it can be reported. May be read in any thread."""
        return self._cause is not None and not self.open_blocks

    def begin(self, cause: QuotaExceededError) -> None:
        if self._cause is None:
            self._cause, self.is_on = cause, True

    def add(self, block: WriteBlock) -> None:
        """The block is lost."""
        self._events += block.event_count
        self._bytes += block.size
        if block.receipts and self._cause is not None:
            block.fail(self._cause)

    def take(self) -> QuotaExceededError:
        """The error to raise to the user; afterwards the writer continues."""
        cause = self._cause
        if cause is None:
            raise InternalError("nothing was refused", stream=self._stream)
        fields = {"stream": self._stream} | cause.fields
        fields |= {"unacked_events": self._events, "unacked_bytes": self._bytes}
        error = QuotaExceededError(cause.message, **fields)
        error.__cause__ = cause
        self._cause, self._last, self.is_on = None, error, False
        self._events = self._bytes = 0
        self.reported += 1
        return error

    def check_since(self, reported: int) -> None:
        """Raise the last refusal again if another caller got it since ``reported``: this caller's events are lost
        too."""
        if self.reported != reported and self._last is not None:
            raise QuotaExceededError(self._last.message, **self._last.fields)
