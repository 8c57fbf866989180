"""Tables with copies of a stream's events, and which erasures were performed in them too.

The job that deletes the rows reports it. Source: docs/how-to/erasure.md, docs/formats/erasure.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.subjects import ID_MAX
from penstock.controller.metadata import changing
from penstock.controller.retention.facts import load_subscribers
from penstock.core.streams.query_source import TABLE_PREFIX
from penstock.model.answers.erasure import ErasureTable
from penstock.model.errors import InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName


class ErasedTables:
    """Notes which tables are done. A table is known as long as it is a subscriber of the stream."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    async def names(self, stream: StreamName) -> Sequence[str]:
        """The tables that are subscribers of the stream, sorted; none: it was deleted."""
        view = await self._ctx.streams.find(stream)
        known = {} if view is None else await load_subscribers(self._ctx, view)
        queries = [item.query for item in known.values() if item.query.startswith(TABLE_PREFIX)]
        return sorted(item.removeprefix(TABLE_PREFIX) for item in queries)

    async def of(self, record: ErasureRecord) -> Sequence[ErasureTable]:
        """How an erasure stands in each table of its stream, and in those that have left it since."""
        names = dict.fromkeys([*await self.names(StreamName.parse(record.stream)), *sorted(record.tables)])
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
        if table not in await self.names(StreamName.parse(record.stream)):
            raise InvalidArgumentError("no such table is a subscriber of the stream", table=table[:120])
        done = {"rows": rows, "at_ms": self._ctx.clock.now_ms()}
        now = replace(record, tables={**record.tables, table: done})
        await self._ctx.metadata.put(found.put(now))
        return now
