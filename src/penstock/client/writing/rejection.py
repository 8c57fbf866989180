"""What a quota refused of a writer, until its user knows."""

from __future__ import annotations

from penstock.client.writing.write_blocks import WriteBlock
from penstock.model.errors import InternalError, QuotaExceededError


class Rejections:
    """Refusals of one writer, each told once. While one is not told, all that is written is dropped, and counted: stored
    behind a gap, it would have overtaken what the user is going to write again.

    ``open_blocks``: of so many it is not known yet whether they are stored. They are waited for, so that what is told to be
    lost is lost. ``told`` counts the refusals that the user was told of.
    """

    __slots__ = ("_bytes", "_cause", "_events", "_last", "_stream", "open_blocks", "told")

    def __init__(self, stream: str) -> None:
        self.open_blocks = 0
        self.told = 0
        self._stream = stream
        self._cause: QuotaExceededError | None = None
        self._last: QuotaExceededError | None = None
        self._events = 0
        self._bytes = 0

    @property
    def is_on(self) -> bool:
        """Whether something was refused that the user does not know of."""
        return self._cause is not None

    @property
    def is_known(self) -> bool:
        """Whether it is known what was lost: the user may be told. May be asked in any thread."""
        return self._cause is not None and not self.open_blocks

    def begin(self, cause: QuotaExceededError) -> None:
        if self._cause is None:
            self._cause = cause

    def add(self, block: WriteBlock) -> None:
        """The block is lost."""
        self._events += block.count
        self._bytes += block.size

    def take(self) -> QuotaExceededError:
        """What to tell the user, after which the writer goes on."""
        cause = self._cause
        if cause is None:
            raise InternalError("nothing was refused", stream=self._stream)
        fields = {"stream": self._stream} | cause.fields
        fields |= {"unacked_events": self._events, "unacked_bytes": self._bytes}
        error = QuotaExceededError(cause.message, **fields)
        error.__cause__ = cause
        self._cause, self._last = None, error
        self._events = self._bytes = 0
        self.told += 1
        return error

    def check_since(self, told: int) -> None:
        """Raise what was told to another caller since so many were told: it is this one's loss as well."""
        if self.told != told and self._last is not None:
            raise QuotaExceededError(self._last.message, **self._last.fields)
