"""Where a writer's events go: the segments it writes to, and what follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from penstock.core.segments.writer_memory import born_writer
from penstock.model.errors import PenstockError, StreamSealedError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId, SegmentRange
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane


class Layout(Protocol):
    """The segments that a writer writes to, and the successors of a segment that is sealed."""

    stream: StreamName

    async def segments(self) -> Sequence[SegmentRange]:
        """Raises StreamSealedError where there is none."""
        ...

    def name_of(self, segment: SegmentId) -> str: ...

    def writer_id(self, random: UUID, *, least_ms: int = 0) -> UUID:
        """An id that no writer had. If it holds its birth, the birth is ``least_ms`` (since the Unix epoch) or later."""
        ...

    async def successors(self, segment: SegmentId, cause: PenstockError) -> Sequence[SegmentRange]:
        """Raises the error that ends the writer if there are no successors."""
        ...

    async def note_time(self, writer: str, time_ms: int | None) -> None:
        """Note the time at the tail; None: the writer leaves. Raises as ``Watermarks.note_time``."""
        ...


class StreamLayout:
    """The active segments of a stream; sealed ones are followed by their successors."""

    def __init__(
        self, stream: StreamName, controller: ControlPlane, name_of: Callable[[SegmentId], str], clock: Clock
    ) -> None:
        self.stream = stream
        self.name_of = name_of
        self._clock = clock
        self._controller = controller

    async def segments(self) -> Sequence[SegmentRange]:
        found = await self._controller.layout.current(self.stream)
        if not found:
            raise StreamSealedError(StreamSealedError.TO_WRITE, stream=str(self.stream))
        return found

    def writer_id(self, random: UUID, *, least_ms: int = 0) -> UUID:
        return born_writer(random, max(self._clock.now_ms(), least_ms))

    async def successors(self, segment: SegmentId, cause: PenstockError) -> Sequence[SegmentRange]:
        found = await self._controller.layout.successors(self.stream, segment)
        if not found:
            raise StreamSealedError(StreamSealedError.TO_WRITE, stream=str(self.stream), segment=segment) from cause
        return [item.range for item in found]

    async def note_time(self, writer: str, time_ms: int | None) -> None:
        if time_ms is None:
            await self._controller.cuts.remove_writer(self.stream, writer)
        else:
            await self._controller.cuts.note_time(self.stream, writer, time_ms)
