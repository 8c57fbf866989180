"""Tables with copies of a stream's events, and which erasures were performed in them too.

The job that deletes the rows reports it. For a table of a deleted stream, a person may state it instead.
Source: docs/how-to/erasure.md, docs/formats/erasure.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from msgspec import convert

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.erasures import ErasureRecord, ErasureState
from penstock.codec.control.streams import HIDDEN
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.erasure.subjects import ID_MAX, check_text, tables_of
from penstock.controller.grace.left_tables import left_tables
from penstock.controller.metadata import changing
from penstock.model.answers.erasure import ErasureTable, TableConfirmation
from penstock.model.callers import verified_name
from penstock.model.errors import ConflictError, InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName
from penstock.ports.data.tables import KEY_ABSENT


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
        names = dict.fromkeys([*await self.names(record), *sorted(record.confirmed), *sorted(record.tables)])
        return [_answer(record, name) for name in names]

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

    async def confirm(self, erasure: str, table: str, *, who: str, why: str) -> ErasureRecord:
        """See ``ports.control.erasures.Erasures.confirm_table``."""
        check_text("confirming a table needs who and why", who=who, why=why)
        now = await self._ctx.tasks.run(changing(lambda: self._confirm(erasure, table, who, why)))
        self._ctx.audit.soon()
        return now

    async def _confirm(self, erasure: str, table: str, who: str, why: str) -> ErasureRecord:
        found = await self._ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        record = found.value
        if record is None:
            raise NotFoundError("no such erasure", erasure=erasure[:ID_MAX])
        if table in record.tables or table in record.confirmed:
            return record
        if record.state is not ErasureState.DONE:
            raise InvalidArgumentError("only an erasure with a receipt has tables to confirm", erasure=erasure)
        await check_deleted_for_good(self._ctx, StreamName.parse(record.stream), record.incarnation)
        if table not in await self.names(record):
            raise InvalidArgumentError("no such table was a subscriber of the stream", table=table[:120])
        stated = statement(who, why, at_ms=self._ctx.clock.now_ms())
        now = replace(record, confirmed={**record.confirmed, table: stated})
        entry = confirmation_entry(record.stream, table, stated, erasure=erasure)
        await self._ctx.metadata.put(found.put(now), *self._ctx.audit.puts([entry]))
        return now


def _answer(record: ErasureRecord, table: str) -> ErasureTable:
    if table in record.tables:
        return ErasureTable(table=table, state="done", **record.tables[table])
    if table in record.confirmed:
        stated = convert(record.confirmed[table], TableConfirmation)
        return ErasureTable(table=table, state="confirmed", confirmed=stated)
    return ErasureTable(table=table, state="pending")


def statement(who: str, why: str, *, at_ms: int) -> dict[str, Any]:
    """What a person states about a table, with the identity that was verified for the call."""
    identity = verified_name()
    return {"who": who, "why": why, "at_ms": at_ms, **({} if identity is None else {"identity": identity})}


def confirmation_entry(stream: str, table: str, stated: dict[str, Any], **of: str) -> AuditEntry:
    """The audit entry of a statement. ``of``: the erasure or the case that it is about."""
    known = {name: value for name, value in stated.items() if name != "at_ms"}
    return AuditEntry(kind=AuditKind.TABLE_CONFIRMED, target=stream, fields={**of, "table": table, **known})


async def check_deleted_for_good(ctx: Context, stream: StreamName, incarnation: int) -> None:
    """Raises ConflictError: the stream exists, or can be restored. Then the job that erases the rows can be run."""
    view = await ctx.streams.find(stream)
    if view is not None and view.record.incarnation == incarnation:
        raise ConflictError(
            "the stream exists; delete the rows of its tables with penstock spark erase --tables", stream=str(stream)
        )
    (kept,) = await ctx.metadata.entries([retention_keys.deleted(stream, incarnation)])
    if kept.version != KEY_ABSENT:
        raise ConflictError(
            "the stream is deleted and can still be restored; wait for the end of its grace, or restore it",
            stream=str(stream),
        )
