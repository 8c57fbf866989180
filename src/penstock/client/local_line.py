"""Single appends to a store in this process: the writing thread performs each one itself, on a visit to the store's loop."""

from __future__ import annotations

import threading  # noqa: TID251 - the writing thread may wait for an answer that the loop's gives
from asyncio import AbstractEventLoop
from typing import cast
from uuid import UUID

from penstock.client.visited_loop import VisitedLoop
from penstock.model.errors import NotConnectedError, PenstockError
from penstock.ports.direct_appends import OpenDirect
from penstock.ports.files import Buffer
from penstock.ports.segment_service import Append, Appended, LocalSegmentService, SegmentService


class LocalLine:
    """Implements ``ports.direct_appends.DirectLine``. What is sent is performed once its acknowledgement is waited for."""

    def __init__(
        self, loop: VisitedLoop, segments: LocalSegmentService, segment: str, writer: UUID, last_number: int
    ) -> None:
        self.last_number = last_number
        self._loop = loop
        self._segments = segments
        self._segment = segment
        self._writer = writer
        self._sent_number = last_number
        self._request: Append | None = None
        self._outcome: Appended | PenstockError | None = None
        self._answered = threading.Lock()

    def send(self, data: Buffer, count: int, number: int) -> None:
        self._outcome = None
        self._answered = threading.Lock()
        self._answered.acquire()
        self._request = Append(
            segment=self._segment,
            writer=self._writer,
            data=data,
            event_number=number,
            event_count=count,
            previous=self._sent_number,
        )
        self._sent_number = number

    def acknowledged(self, timeout_s: float) -> bool:
        if self._request is not None and (timeout_s <= 0 or not self._loop.visit(self._perform, timeout_s)):
            return False
        if self._outcome is None and timeout_s > 0:
            self._answered.acquire(timeout=timeout_s)
        if isinstance(self._outcome, PenstockError):
            raise NotConnectedError("append was refused", reason=str(self._outcome))
        return self._outcome is not None

    def _perform(self) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        answered = self._answered

        def done(outcome: Appended | PenstockError) -> None:
            if self._answered is answered:
                self._outcome = outcome
                answered.release()

        self._segments.submit_append(request, done)

    def close(self) -> None:
        self._request = None


class LocalLines:
    """Lines to the segments of a store in this process, whose loop lets visitors in."""

    def __init__(self, loop: VisitedLoop, segments: LocalSegmentService) -> None:
        self._loop = loop
        self._segments = segments

    async def open(self, segment: str, writer: UUID) -> LocalLine:
        """As ``ports.direct_appends.OpenDirect`` says."""
        last_number = await self._segments.setup_append(segment, writer)
        return LocalLine(self._loop, self._segments, segment, writer, last_number)


def direct_lines(loop: AbstractEventLoop, segments: SegmentService) -> OpenDirect | None:
    """How a thread of the caller's may append to the store by itself; None: it may not."""
    if isinstance(loop, VisitedLoop):
        return LocalLines(loop, cast("LocalSegmentService", segments)).open
    return getattr(segments, "open_direct", None)
