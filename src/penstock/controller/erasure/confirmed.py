"""Statements of people about the tables of deleted streams, which end what is pending there for a case.

The store cannot search such a table, and no job knows it any more. So a case records who states that it is clean, and why;
it never counts as verified. Source: docs/design/0056-erasure-cases.md.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.codec.control.cases import CaseRecord, CaseState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.case_answers import CaseAnswers
from penstock.controller.erasure.subjects import ID_MAX, check_text
from penstock.controller.erasure.tables import (
    ErasedTables,
    check_deleted_for_good,
    confirmation_entry,
    statement,
)
from penstock.controller.metadata import Stored, changing
from penstock.model.errors import ConflictError, NotFoundError
from penstock.model.names import StreamName
from penstock.ports.data.tables import VALUE_MAX_BYTES

RECORD_MAX_BYTES = VALUE_MAX_BYTES - (128 << 10)
"""Of a case with statements. The rest of the value is for its end, which must always fit."""


class ConfirmedTables:
    """Records such statements in cases, and in their erasures."""

    def __init__(self, ctx: Context, answers: CaseAnswers, tables: ErasedTables) -> None:
        self._ctx = ctx
        self._answers = answers
        self._tables = tables

    async def confirm(self, case: str, table: str, stream: StreamName, *, who: str, why: str) -> CaseRecord:
        """See ``ports.control.erasures.Cases.confirm_table``."""
        check_text("confirming a table needs who and why", who=who, why=why)
        record = _open_one(case, await self._ctx.metadata.get(keys.case(case), CaseRecord))
        view = await self._ctx.streams.find(stream)
        pending = await self._answers.pending_erasures(case, stream, table)
        erasures = {one: of for one, of in pending.items() if view is None or of != view.record.incarnation}
        left = await self._answers.pending_incarnations(case, record, stream, table)
        known = await self._answers.is_confirmed(case, record, stream, table)
        if not erasures and not left and not known:
            for incarnation in pending.values():
                await check_deleted_for_good(self._ctx, stream, incarnation)
            raise ConflictError(
                "nothing is pending for the case in such a table of a deleted stream; penstock erase case show lists them",
                case=case,
                stream=str(stream),
                table=table[:120],
            )
        for incarnation in sorted({*erasures.values(), *left}):
            # All are checked before anything is recorded.
            await check_deleted_for_good(self._ctx, stream, incarnation)
        for erasure in erasures:
            await self._tables.confirm(erasure, table, who=who, why=why)
        if left:
            record = await changing(lambda: self._put(case, table, stream, left, who, why))
            self._ctx.audit.soon()
        return record

    async def _put(self, case: str, table: str, stream: StreamName, left: list[int], who: str, why: str) -> CaseRecord:
        found = await self._ctx.metadata.get(keys.case(case), CaseRecord)
        record = _open_one(case, found)
        known = {(item["stream"], item["incarnation"], item["table"]) for item in record.confirmed}
        new = [incarnation for incarnation in left if (str(stream), incarnation, table) not in known]
        if not new:
            return record
        stated = statement(who, why, at_ms=self._ctx.clock.now_ms())
        where = {"stream": str(stream), "table": table}
        confirmed = [*record.confirmed, *({**where, "incarnation": item, **stated} for item in new)]
        now = replace(record, confirmed=confirmed)
        if len(now.encode()) > RECORD_MAX_BYTES:
            raise ConflictError(
                "the record of the case has no room for more statements; shorten the reason, or close it with pending tables",
                case=case,
                statements=len(record.confirmed),
            )
        entry = confirmation_entry(str(stream), table, stated, case=case)
        await self._ctx.metadata.put(found.put(now), *self._ctx.audit.puts([entry]))
        return now


def _open_one(case: str, found: Stored[CaseRecord]) -> CaseRecord:
    """The case, if it can take a statement. Raises NotFoundError, ConflictError."""
    record = found.value
    if record is None:
        raise NotFoundError("no such case", case=case[:ID_MAX])
    if record.state.is_final or record.state is CaseState.REQUESTED:
        raise ConflictError("the case has ended, or waits for approval", case=case, state=record.state.value)
    return record
