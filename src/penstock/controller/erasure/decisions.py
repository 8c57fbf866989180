"""Decides an erasure: checks that its request is complete, that no hold covers it, and that it has any approval it
needs.

Source: docs/how-to/erasure.md, docs/design/0055-four-eyes.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.codec.audit import AuditKind
from penstock.codec.control.erasures import ErasurePartRecord, ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.deferral import deferral_entry, judge, withdrawn_error
from penstock.controller.erasure.parts import Parts
from penstock.controller.erasure.repeats import Repeats
from penstock.controller.erasure.subjects import Request, check_complete, check_receipt_fits, ends_of, tables_of
from penstock.controller.metadata import Stored
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.workflows import settled
from penstock.core.segments.erasure import size_of
from penstock.model.callers import verified_name
from penstock.model.errors import ConflictError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.ports.data.tables import TableCheck, TablePut


class Decisions:
    """Decides complete requests. The caller has the locks of the erasure and of its stream, and repeats a step whose
    batch was refused."""

    def __init__(self, ctx: Context, parts: Parts, repeats: Repeats) -> None:
        self._ctx = ctx
        self._parts = parts
        self._repeats = repeats

    def asked(self, request: Request, view: StreamView) -> ErasureRecord:
        """The record of the request once it is decided."""
        return ErasureRecord(
            stream=str(request.stream),
            incarnation=view.record.incarnation,
            state=ErasureState.ASKED,
            asked=request.asked,
            asked_ms=self._ctx.clock.now_ms(),
            run=request.run(view.record.incarnation),
            request=request.fields(),
            identity=request.identity,
        )

    async def decide(self, request: Request, positions: Mapping[SegmentId, Sequence[int]]) -> ErasureRecord:
        """Decide a complete request in one step, or defer it: see ``judge``.

        Raises ApprovalRequiredError: it waits for another identity, and nothing is decided.
        """
        ctx, erasure = self._ctx, request.erasure
        view = await settled(ctx, request.stream)
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        if found.value is None:
            raise ConflictError("erasure expired before its last page; run it again", erasure=erasure)
        if found.value.state is ErasureState.WITHDRAWN:
            raise withdrawn_error(erasure, found.value)
        if found.value.state is not ErasureState.GATHERING:
            await self._repeats.check(request, found.value, positions, last=True)
            return found.value
        asked = self.asked(request, view)
        parts = await self._parts.of_run(erasure, asked.run)
        check_complete(request, parts)
        check_receipt_fits(asked, parts)
        gate: Sequence[TablePut | TableCheck] = ()
        if not request.of_case:
            if await ctx.gate.needs("erase", request.stream):
                # The request for approval depends on this record. A replacement of the record makes the approval void.
                waiting = replace(asked, state=ErasureState.GATHERING)
                versions = await ctx.metadata.put(found.put(waiting))
                found = replace(found, value=waiting, version=versions[0])
            gate = await ctx.gate.puts("erase", request.stream, arguments_of(erasure, asked, parts))
        return await self._put(view, found, asked, parts, gate, now_ms=asked.asked_ms)

    async def approved(self, stream: StreamName, arguments: Mapping[str, Any]) -> ErasureRecord:
        """Decide the request that an approval names, now that it is given. Raises ConflictError: it has changed."""
        ctx, erasure = self._ctx, str(arguments["erasure"])
        view = await settled(ctx, stream)
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        record = found.value
        if record is None or not record.is_requested or record.incarnation != view.record.incarnation:
            raise ConflictError("the approved erasure is no longer waiting", erasure=erasure)
        # Another identity may have repeated the waiting request. The caller is the one whose request was approved.
        asked = replace(record, state=ErasureState.ASKED, identity=verified_name())
        parts = await self._parts.of_run(erasure, record.run)
        gate = await ctx.gate.puts("erase", stream, arguments_of(erasure, asked, parts))
        return await self._put(view, found, asked, parts, gate, now_ms=ctx.clock.now_ms())

    async def _put(
        self,
        view: StreamView,
        found: Stored[ErasureRecord],
        asked: ErasureRecord,
        parts: Sequence[ErasurePartRecord],
        gate: Sequence[TablePut | TableCheck],
        *,
        now_ms: int,
    ) -> ErasureRecord:
        ctx, erasure, ends = self._ctx, str(asked.asked["erasure"]), ends_of(parts)
        judgement = await judge(ctx, view, ends)
        asked = replace(asked, known_tables=await tables_of(ctx, view))
        decided = judgement.applied_to(asked, ends, now_ms=now_ms)
        entries = [deferral_entry(AuditKind.ERASE_DEFERRED, erasure, decided)] if judgement.holds else []
        await ctx.metadata.put(found.put(decided), *judgement.checks, *gate, *ctx.audit.puts(entries))
        ctx.audit.soon()
        return decided


def arguments_of(erasure: str, asked: ErasureRecord, parts: Sequence[ErasurePartRecord]) -> dict[str, Any]:
    """What an approval of an erasure names. It holds no digest of the values, because the audit stream keeps it."""
    return {
        "erasure": erasure,
        **{name: asked.asked[name] for name in ("who", "why")},
        "events": sum(part.events for part in parts),
        "bytes": sum(size_of(part.ranges) for part in parts),
    }
