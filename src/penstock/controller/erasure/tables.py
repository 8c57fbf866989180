"""Tables with copies of a stream's events, and which erasures were performed in them too.

The job that deletes the rows reports it. Source: docs/how-to/erasure.md, docs/formats/erasure.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.codec.control.streams import HIDDEN
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.subjects import ID_MAX, tables_of
from penstock.controller.grace.left_tables import left_tables
from penstock.controller.metadata import changing
from penstock.model.answers.erasure import ErasureTable
from penstock.model.errors import InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName


class ErasedTables:
    """Notes which tables are done. A table is known as long as it is a subscriber of the stream. The tables of a deleted
    stream stay known, because their rows stay."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def names(self, record: ErasureRecord) -> Sequence[str]:
        """The tables that are subscribers of the stream of the erasure, sorted. If it was deleted, even if a new stream has
        its name: those that were subscribers when the erasure was decided or done, or when the stream was deleted."""
        stream = StreamName.parse(record.stream)
        view = await self._ctx.streams.find(stream)
        if view is not None and view.record.incarnation == record.incarnation and view.record.state not in HIDDEN:
            return await tables_of(self._ctx, view)
        # Earlier versions have them in the receipt only.
        remains = [] if record.receipt is None else record.receipt["remains"]
        left = await left_tables(self._ctx, stream, record.incarnation)
        known = [*record.known_tables, *(() if left is None else left.tables)]
        return sorted({*known, *(str(item["table"]) for item in remains if "table" in item)})

    async def of(self, record: ErasureRecord) -> Sequence[ErasureTable]:
        """How an erasure stands in each table of its stream, and in those that have left it since."""
        names = dict.fromkeys([*await self.names(record), *sorted(record.tables)])
        return [
            ErasureTable(table=name, state="done", **record.tables[name])
            if name in record.tables
            else ErasureTable(table=name, state="pending")
            for name in names
        ]

    async def note(self, erasure: str, table: str, *, rows: int) -> ErasureRecord:
        """See ``ports.control.erasures.Erasures.note_table``."""
        return await self._ctx.tasks.run(changing(lambda: self._note(erasure, table, rows)))

    async def _note(self, erasure: str, table: str, rows: int) -> ErasureRecord:
        found = await self._ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        record = found.value
        if record is None:
            raise NotFoundError("no such erasure", erasure=erasure[:ID_MAX])
        if table in record.tables:
            return record
        if record.state is not ErasureState.DONE or rows < 0:
            raise InvalidArgumentError(
                "only an erasure with a receipt is performed in tables", erasure=erasure, rows=rows
            )
        if table not in await self.names(record):
            raise InvalidArgumentError("no such table is a subscriber of the stream", table=table[:120])
        done = {"rows": rows, "at_ms": self._ctx.clock.now_ms()}
        now = replace(record, tables={**record.tables, table: done})
        await self._ctx.metadata.put(found.put(now))
        return now
