"""Erasures that holds and retention locks defer: they continue once nothing covers them, or are withdrawn.

A deferral is durable, and nothing is blanked before its end. It is checked when a hold ends, in each sweep, and when
its request is repeated. Source: docs/how-to/erasure.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.erasures import Deferral, ErasureRecord, ErasureState
from penstock.codec.control.streams import StreamRecord
from penstock.codec.control.truncations import DeletedState
from penstock.controller import keys, retention_keys
from penstock.controller.context import Context
from penstock.controller.erasure.subjects import ID_MAX, check_text, covering, hold_fields
from penstock.controller.grace.deleted_records import load_deleted
from penstock.controller.metadata import Stored, changing
from penstock.controller.protection.guard import as_holds, guard_of
from penstock.controller.retention.holds import Placed
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.workflows import exclusive, settle
from penstock.model.callers import unattributed, verified_name
from penstock.model.errors import ConflictError, ErasureWithdrawnError, NotFoundError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import TableCheck, TablePut

log = logging.getLogger(__name__)

HOLDS_MAX = 16
"""The most holds that a deferral names. With long reasons, more would not fit into the record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The holds that cover an erasure now, and the checks for the batch that acts on them."""

    holds: Sequence[Placed]
    checks: Sequence[TableCheck | TablePut]

    def applied_to(self, record: ErasureRecord, ends: Mapping[SegmentId, int], *, now_ms: int) -> ErasureRecord:
        """The record in its next state: decided, newly deferred, or still deferred since the earlier time."""
        if not self.holds:
            return replace(record, state=ErasureState.ASKED, deferred=None)
        deferral = Deferral(
            holds=[hold_fields(item) for item in self.holds[:HOLDS_MAX]],
            count=len(self.holds),
            since_ms=now_ms if record.deferred is None else record.deferred.since_ms,
            ends=ends,
        )
        return replace(record, state=ErasureState.DEFERRED, deferred=deferral)


async def judge(ctx: Context, view: StreamView, ends: Mapping[SegmentId, int]) -> Judgement:
    """Find the holds that cover an erasure of a stream. A retention lock defers an erasure as a hold does.

    A decision to erase writes the stream's record and checks the scope's. So if a hold is placed at the same time, either
    this sees the hold or the hold sees the decision. A deferral checks the holds that it names. So if one ends at the same
    time, either this sees its end or the end sees the deferral.
    """
    guard = await guard_of(ctx, view)
    holds = covering(await ctx.histories.of(view), [*guard.holds, *as_holds(view, guard)], ends)
    if holds:
        return Judgement(holds=holds, checks=[item.check() for item in holds[:HOLDS_MAX]])
    return Judgement(holds=(), checks=[view.put(view.record), *guard.checks])


async def judge_deleted(ctx: Context, record: ErasureRecord, deferral: Deferral) -> Judgement:
    """As ``judge``, for a deleted stream. While it can be restored, the holds on its scope cover all of it."""
    name = StreamName.parse(record.stream)
    deleted = await load_deleted(ctx, name, record.incarnation)
    own = retention_keys.deleted_row(name, record.incarnation, keys.stream(name))
    kept: Stored[StreamRecord] = await ctx.metadata.get(own, StreamRecord)
    if deleted.value is None or deleted.value.state is not DeletedState.KEPT or kept.value is None:
        return Judgement(holds=(), checks=())
    guard = await guard_of(ctx, StreamView(name=name, record=kept.value, version=kept.version))
    if guard.holds and deferral.ends:
        return Judgement(holds=guard.holds, checks=[item.check() for item in guard.holds[:HOLDS_MAX]])
    # If the stream is restored at the same time, it may be held by then.
    unchanged = TableCheck(key=deleted.key, version=deleted.version)
    return Judgement(holds=(), checks=[*guard.checks, unchanged])


def deferral_entry(kind: AuditKind, erasure: str, record: ErasureRecord, **fields: object) -> AuditEntry:
    """An audit entry about a deferral. ``fields`` override ``who``, ``why`` and ``identity`` of the request."""
    asked = {name: record.asked.get(name) for name in ("who", "why")}
    identity = fields.pop("identity", record.identity)
    if identity is not None:
        asked["identity"] = identity
    known = {"erasure": erasure, **asked, "asked_ms": record.asked_ms}
    if record.deferred is not None:
        known |= {"since_ms": record.deferred.since_ms, "holds": [dict(item) for item in record.deferred.holds]}
    return AuditEntry(kind=kind, target=record.stream, fields={**known, **fields})


def withdrawn_error(erasure: str, record: ErasureRecord) -> ErasureWithdrawnError:
    return ErasureWithdrawnError(
        "the erasure was withdrawn and erased nothing; use another id", erasure=erasure, **(record.withdrawn or {})
    )


class Deferrals:
    """Deferred erasures. ``perform_soon`` starts a decided one."""

    def __init__(self, ctx: Context, perform_soon: Callable[[str], None]) -> None:
        self._ctx = ctx
        self._perform_soon = perform_soon

    async def look(self, erasure: str) -> None:
        """Decide a deferred erasure again if the holds that cover it have changed."""
        async with self._ctx.locks.hold(f"erasure/{erasure}"):
            await self.look_alone(erasure)

    async def look_alone(self, erasure: str) -> ErasureRecord | None:
        """As ``look``, for a caller that has the erasure's lock. Returns the resulting record; None: there is none."""
        ctx = self._ctx
        record = (await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)).value
        if record is None or record.deferred is None or await self._is_as_named(record, record.deferred):
            return record
        # The end of a hold lets it continue; a call that repeats the request does not.
        async with exclusive(ctx, StreamName.parse(record.stream)):
            with unattributed():
                found = await changing(lambda: self._decide_again(erasure))
        if found is not None and found.state is ErasureState.ASKED:
            self._perform_soon(erasure)
        ctx.audit.soon()
        return found

    async def _is_as_named(self, record: ErasureRecord, deferral: Deferral) -> bool:
        """Whether the same holds still cover it. Takes no lock of the stream, because most sweeps find no change."""
        view = _of_erasure(record, await self._ctx.streams.find(StreamName.parse(record.stream)))
        if view is None:
            holds = (await judge_deleted(self._ctx, record, deferral)).holds
        else:
            guard = await guard_of(self._ctx, view)
            found = [*guard.holds, *as_holds(view, guard)]
            holds = covering(await self._ctx.histories.of(view), found, deferral.ends)
        named = [hold_fields(item) for item in holds[:HOLDS_MAX]]
        return bool(holds) and (named, len(holds)) == (list(deferral.holds), deferral.count)

    async def _decide_again(self, erasure: str) -> ErasureRecord | None:
        ctx = self._ctx
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        record = found.value
        if record is None or record.deferred is None:
            return record
        ends = record.deferred.ends
        view = _of_erasure(record, await settle(ctx, StreamName.parse(record.stream)))
        if view is None:
            judgement = await judge_deleted(ctx, record, record.deferred)
        else:
            judgement = await judge(ctx, view, ends)
        now = judgement.applied_to(record, ends, now_ms=ctx.clock.now_ms())
        entries = [] if judgement.holds else [deferral_entry(AuditKind.ERASE_CONTINUED, erasure, record)]
        await ctx.metadata.put(found.put(now), *judgement.checks, *ctx.audit.puts(entries))
        return now

    async def withdraw(self, erasure: str, *, who: str, why: str) -> ErasureRecord:
        """See ``ControlPlane.erasures.withdraw``."""
        check_text("the withdrawal of an erasure needs who and why", who=who, why=why)
        return await self._ctx.tasks.run(self._withdraw(erasure, who, why))

    async def _withdraw(self, erasure: str, who: str, why: str) -> ErasureRecord:
        ctx = self._ctx
        async with ctx.locks.hold(f"erasure/{erasure}"):
            record = await changing(lambda: self._put_withdrawn(erasure, who, why))
            ctx.audit.soon()
            await self.forget_pages(erasure)
        return record

    async def _put_withdrawn(self, erasure: str, who: str, why: str) -> ErasureRecord:
        ctx = self._ctx
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        record = found.value
        if record is None:
            raise NotFoundError("no such erasure", erasure=erasure[:ID_MAX])
        if record.state is ErasureState.WITHDRAWN:
            return record
        if record.state not in (ErasureState.GATHERING, ErasureState.DEFERRED):
            raise ConflictError(
                "the erasure is decided and cannot be withdrawn", erasure=erasure, state=record.state.value
            )
        identity = verified_name()
        withdrawal: dict[str, Any] = {"who": who, "why": why, "at_ms": ctx.clock.now_ms()}
        if identity is not None:
            withdrawal["identity"] = identity
        now = replace(record, state=ErasureState.WITHDRAWN, deferred=None, withdrawn=withdrawal)
        entry = deferral_entry(AuditKind.ERASE_WITHDRAWN, erasure, record, who=who, why=why, identity=identity)
        await ctx.metadata.put(found.put(now), *ctx.audit.puts([entry]))
        return now

    async def forget_pages(self, erasure: str) -> None:
        """Remove the positions of a withdrawn erasure, then its mark. Repeatable."""
        await self._ctx.metadata.remove_prefix(keys.erasure_parts(erasure))
        await self._ctx.metadata.remove_keys([keys.erasure_mark(erasure)])


def _of_erasure(record: ErasureRecord, view: StreamView | None) -> StreamView | None:
    """The stream if it is the one of the erasure; None if that one was deleted and this one was created later."""
    return None if view is None or view.record.incarnation != record.incarnation else view
