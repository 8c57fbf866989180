"""The times that a writer notes."""

from __future__ import annotations

import logging

from penstock.client.retry import retrying
from penstock.client.writing.layout import Layout
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)


class NotedTimes:
    """Notes of one writer, under a name that no other writer has."""

    def __init__(self, layout: Layout, rng: Rng) -> None:
        self._layout = layout
        self._rng = rng
        self._writer = ""

    async def note(self, time_ms: int) -> None:
        """Note the time; every event written before must be durable. Raises as ``AsyncWriter.note_time``."""
        if isinstance(time_ms, bool) or not isinstance(time_ms, int):
            raise InvalidArgumentError("a time is a whole number, such as milliseconds", time_ms=repr(time_ms)[:60])
        writer = self._writer or self._rng.uuid().hex
        await retrying(lambda: self._layout.note_time(writer, time_ms), self._rng)
        self._writer = writer

    async def leave(self) -> None:
        """Hold the watermark back no longer. If that fails, the timeout of the stream does the same later."""
        writer, self._writer = self._writer, ""
        if not writer:
            return
        try:
            await self._layout.note_time(writer, None)
        except PenstockError as error:
            log.info("writer leaves without being removed", extra={"writer": writer, "error": str(error)})
