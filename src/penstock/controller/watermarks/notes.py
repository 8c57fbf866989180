"""Notes of writers, one row each."""

from __future__ import annotations

import logging

from penstock.codec.control.watermarks import WriterMarkRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import changing
from penstock.core.cuts.order import Positions
from penstock.core.streams.watermarks import WriterMark, noted
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    NotFoundError,
    StreamNotFoundError,
    VersionTooNewError,
)
from penstock.model.names import StreamName
from penstock.ports.control.transactions import NotedTime

log = logging.getLogger(__name__)


_NOT_NOTED = (InvalidArgumentError, CorruptDataError, VersionTooNewError, NotFoundError)
"""What no repetition of a note changes. While a store is unavailable, the commit is repeated with its note."""


async def note_time(
    ctx: Context, stream: StreamName, writer: str, time_ms: int, position: Positions, *, incarnation: int
) -> None:
    """Remember what a writer noted, and look at the watermark soon. Raises as ``Watermarks.note_time``.

    ``incarnation``: of the stream that has the position. A stream that was created since under the same name has not.
    """

    async def attempt() -> None:
        view = await ctx.streams.get(stream)
        if view.record.incarnation != incarnation:
            raise StreamNotFoundError("the stream was deleted and created again meanwhile", stream=str(stream))
        history = await ctx.histories.of(view)
        found = await ctx.metadata.get(keys.writer_mark(stream, writer), WriterMarkRecord)
        known = found.value
        before = None
        if known is not None:
            before = WriterMark(time_ms=known.time_ms, position=known.position, noted_ms=known.noted_ms)
        mark = noted(history, before, time_ms=time_ms, position=position, now_ms=ctx.clock.now_ms())
        record = WriterMarkRecord(time_ms=mark.time_ms, position=mark.position, noted_ms=mark.noted_ms)
        await ctx.metadata.put(found.put(record), view.check())

    await changing(attempt)
    ctx.watermarks.soon(stream)


async def note_commit(ctx: Context, stream: StreamName, note: NotedTime, position: Positions, incarnation: int) -> None:
    """Note the time of a transaction that was committed. A note that is refused is logged: the commit stands."""
    try:
        await note_time(ctx, stream, note.writer, note.time_ms, position, incarnation=incarnation)
    except _NOT_NOTED as error:
        log.info("time of a commit is not noted", extra={"stream": str(stream), "error": str(error)})
