"""The times that a writer notes."""

from __future__ import annotations

import logging

from penstock.client.options import COUNT_MAX, check_printable
from penstock.client.retry import retrying
from penstock.client.writing.layout import Layout
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.ports.control.transactions import WRITER_NAME_MAX
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)


def checked_time(name: str, given: object) -> None:
    """Raises InvalidArgumentError unless ``given`` is a whole number of 64 bits."""
    if isinstance(given, bool) or not isinstance(given, int):
        raise InvalidArgumentError("a time must be a whole number, such as milliseconds", **{name: repr(given)[:60]})
    if not -COUNT_MAX <= given <= COUNT_MAX:
        raise InvalidArgumentError("time does not fit into 64 bits", **{name: repr(given)[:60]})


def check_writer(given: object) -> None:
    """Raises InvalidArgumentError unless ``given`` is a name under which times can be noted."""
    check_printable("writer", given)
    if not isinstance(given, str) or not 0 < len(given) <= WRITER_NAME_MAX:
        raise InvalidArgumentError(
            f"a writer needs a name of 1 to {WRITER_NAME_MAX} characters", writer=repr(given)[:60]
        )


class NotedTimes:
    """Notes of one writer, under a name that no other writer has."""

    def __init__(self, layout: Layout, rng: Rng) -> None:
        self._layout = layout
        self._rng = rng
        self._writer = ""

    async def note(self, time_ms: int) -> None:
        """Note the time; every event written before must be durable. Raises as ``AsyncWriter.note_time``."""
        checked_time("time_ms", time_ms)
        # Set before the call: if its answer is lost, the store may have the note, and another id would be another writer.
        writer = self._writer = self._writer or self._rng.uuid().hex
        await retrying(lambda: self._layout.note_time(writer, time_ms), self._rng)

    async def leave(self) -> None:
        """Hold the watermark back no longer. If that fails, the timeout of the stream does the same later."""
        writer, self._writer = self._writer, ""
        if not writer:
            return
        try:
            await self._layout.note_time(writer, None)
        except PenstockError as error:
            log.info("writer could not be removed from the watermark", extra={"writer": writer, "error": str(error)})
