"""Single appends to a store in this process: the writing thread passes each one to the store's loop and waits."""

from __future__ import annotations

import threading  # noqa: TID251 - the writing thread waits for an answer that the loop gives
from asyncio import AbstractEventLoop
from uuid import UUID

from penstock.model.errors import NotConnectedError, PenstockError
from penstock.ports.data.direct_appends import OpenDirect, SubmitAppend
from penstock.ports.data.segments import Append, Appended
from penstock.ports.data.service import SegmentService
from penstock.ports.files import Buffer


class _Sent:
    """One append and its outcome. If the line sends another append first, the loop still completes this one."""

    __slots__ = ("answered", "outcome", "request")

    def __init__(self, request: Append) -> None:
        self.request: Append | None = request
        self.outcome: Appended | PenstockError | None = None
        self.answered = threading.Lock()
        self.answered.acquire()

    def done(self, outcome: Appended | PenstockError) -> None:
        self.outcome = outcome
        self.answered.release()


class LocalLine:
    """Implements ``ports.data.direct_appends.DirectLine`` without a socket: two thread switches, no task and no frame."""

    def __init__(
        self, loop: AbstractEventLoop, submit: SubmitAppend, segment: str, writer: UUID, last_number: int
    ) -> None:
        self.last_number = last_number
        self._loop = loop
        self._submit = submit
        self._segment = segment
        self._writer = writer
        self._sent_number = last_number
        self._sent: _Sent | None = None

    def send(self, data: Buffer, count: int, number: int) -> None:
        request = Append(
            segment=self._segment,
            writer=self._writer,
            data=data,
            event_number=number,
            event_count=count,
            previous=self._sent_number,
        )
        self._sent_number = number
        self._sent = sent = _Sent(request)
        try:
            self._loop.call_soon_threadsafe(self._perform, sent)
        except RuntimeError as error:
            raise NotConnectedError("store is closed") from error

    def acknowledged(self, timeout_s: float) -> bool:
        sent = self._sent
        if sent is None:
            return False
        if sent.outcome is None and timeout_s > 0 and sent.answered.acquire(timeout=timeout_s):
            sent.answered.release()  # an interrupted wait asks again
        if isinstance(sent.outcome, PenstockError):
            raise NotConnectedError("append was refused", reason=str(sent.outcome))
        return sent.outcome is not None

    def _perform(self, sent: _Sent) -> None:
        """Runs in the loop."""
        request, sent.request = sent.request, None
        if request is not None:
            self._submit(request, sent.done)

    def close(self) -> None:
        """As in the port. Runs in the loop: an append that it has not begun is never performed."""
        if self._sent is not None:
            self._sent.request = None


class LocalLines:
    """Lines to the segments of a store in this process, which runs in ``loop``."""

    def __init__(self, loop: AbstractEventLoop, segments: SegmentService, submit: SubmitAppend) -> None:
        self._loop = loop
        self._segments = segments
        self._submit = submit

    async def open(self, segment: str, writer: UUID) -> LocalLine:
        """See ``ports.data.direct_appends.DirectAppends``."""
        last_number = await self._segments.setup_append(segment, writer)
        return LocalLine(self._loop, self._submit, segment, writer, last_number)


def direct_lines(loop: AbstractEventLoop, segments: SegmentService, *, local: bool) -> OpenDirect | None:
    """How a thread of the caller may append to the store directly; None if it cannot.

    ``local``: the store runs in ``loop``.
    """
    if not local:
        return segments.open_direct
    submit = segments.submit_append
    return None if submit is None else LocalLines(loop, segments, submit).open
