"""Cases of erasure: opened, searched, erased, verified and closed. The controller does all steps by itself.

A case goes on after a crash and when holds end, because each pass starts from records. Until it is closed, each pass
also finds matching events that have arrived since the last one. Source: docs/design/0056-erasure-cases.md.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.cases import CaseRecord, CaseState
from penstock.codec.control.streams import HIDDEN
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.case_answers import CaseAnswers
from penstock.controller.erasure.case_search import Case, CaseSearch, Note, asking
from penstock.controller.erasure.confirmed import ConfirmedTables
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.erasure.reapply import Reapplied, Reapply
from penstock.controller.erasure.subjects import check_text
from penstock.controller.erasure.targets import check_exist, concerned, restorable
from penstock.controller.metadata import Stored, changing
from penstock.controller.stream_view import StreamView
from penstock.core.cases.case import (
    DUE_MS,
    after_proof,
    after_search,
    approval_arguments,
    check_key,
    checked_targets,
    has_key,
    is_overdue,
    level_of,
    matcher_of,
    stored_subject,
    with_key,
    without_values,
)
from penstock.core.cases.ledger import Ledger, key_digest
from penstock.model.answers.erasure import CaseHold, CaseProgress, ErasureCase
from penstock.model.callers import verified_name
from penstock.model.errors import (
    AlreadyExistsError,
    ApprovalRequiredError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
)
from penstock.model.names import StreamName

log = logging.getLogger(__name__)

ID_MAX = 40  # characters; ids of the erasures of a case begin with it
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_PAUSE_S = 2.0
"""Pause between two looks at the streams of open cases: an event that arrives late is readable about that long."""
_PAUSE_MAX_S = 300.0
_PAUSE_FACTOR = 10  # pauses are that many times as long as the last pass, so that cases cost a tenth of a core at most
_ROUNDS = 4  # searches and proofs in one pass while matching events go on arriving
_REMIND_MS = 3_600_000


class Cases:
    """``ports.control.erasures.Cases``. ``run`` is a task of the controller."""

    def __init__(self, ctx: Context, erasures: Erasures) -> None:
        self._ctx = ctx
        self._erasures = erasures
        self._search = CaseSearch(ctx, erasures)
        self._answers = CaseAnswers(ctx, erasures)
        self._confirmed = ConfirmedTables(ctx, self._answers, erasures.tables)
        self._wake = asyncio.Event()
        self._wake.set()
        self._reminded: dict[str, int] = {}
        self._found = 0

    # --- calls --------------------------------------------------------------------------------------------

    async def open(
        self,
        case: str,
        *,
        targets: Sequence[str],
        subject: Mapping[str, Any],
        who: str,
        why: str,
        due_ms: int | None = None,
        keep_values: bool = True,
    ) -> ErasureCase:
        """See ``ports.control.erasures.Cases.open``."""
        self._erasures.check_possible()
        _check_id(case)
        check_text("a case needs who and why", who=who, why=why)
        now_ms = self._ctx.clock.now_ms()
        record = CaseRecord(
            targets=checked_targets(targets),
            subject=stored_subject(subject, self._ctx.settings.erasure_key, keep_values=keep_values),
            who=who,
            why=why,
            opened_ms=now_ms,
            due_ms=now_ms + DUE_MS if due_ms is None else due_ms,
            identity=verified_name(),
        )
        record = with_key(record, self._ctx.settings.erasure_key)
        found = await changing(lambda: self._open(case, record, is_due_given=due_ms is not None))
        self._ctx.audit.soon()
        self._wake.set()
        return await self._answers.full(case, found)

    async def _open(self, case: str, record: CaseRecord, *, is_due_given: bool) -> CaseRecord:
        found = await self._ctx.metadata.get(keys.case(case), CaseRecord)
        if found.value is None:
            await check_exist(self._ctx, record.targets)
            return await self._put_open(case, found, record)
        same = ["targets", "subject", "who", "why"] + (["due_ms"] if is_due_given else [])
        differs = [name for name in same if getattr(found.value, name) != getattr(record, name)]
        if differs:
            raise AlreadyExistsError("another case has this id", case=case, differs=", ".join(differs))
        if found.value.state is CaseState.REQUESTED:
            return await self._put_open(case, found, found.value)
        return found.value

    async def _put_open(self, case: str, found: Stored[CaseRecord], record: CaseRecord) -> CaseRecord:
        """Open the case. Raises ApprovalRequiredError: the case is stored, and waits for the approval of another
        identity."""
        ctx, level = self._ctx, level_of(record.targets)
        if await ctx.gate.needs("erase", level, targets=record.targets):
            found = await self._wait_for_approval(found, record)
        try:
            gate = await ctx.gate.puts("erase", level, approval_arguments(case, record), targets=record.targets)
        except ApprovalRequiredError as error:
            request, waiting = error.fields.get("request"), found.value
            # The case may wait for a request of another caller, which this refused call must not end.
            if waiting is not None and not await self._is_requested(waiting):
                if request is not None:
                    await ctx.metadata.put(found.put(replace(waiting, approval=str(request))))
                elif waiting.approval is None:
                    await ctx.metadata.remove(found.remove())
            raise
        # Several identities may have asked for a waiting case. The caller is the one whose request was approved.
        now = replace(record, state=CaseState.OPEN, identity=verified_name())
        entry = _entry(AuditKind.CASE_OPENED, case, now, due_ms=now.due_ms)
        await ctx.metadata.put(found.put(now), *gate, *ctx.audit.puts([entry]))
        return now

    async def _wait_for_approval(self, found: Stored[CaseRecord], record: CaseRecord) -> Stored[CaseRecord]:
        """Keep the case before its request for approval, which depends on this record."""
        if found.value is not None:
            return found
        waiting = replace(record, state=CaseState.REQUESTED)
        (version,) = await self._ctx.metadata.put(found.put(waiting))
        return replace(found, value=waiting, version=version)

    async def open_approved(self, case: str) -> None:
        """Open the case that an approval names. Raises ConflictError: it is no longer waiting."""
        await changing(lambda: self._open_approved(case))
        self._ctx.audit.soon()
        self._wake.set()

    async def _open_approved(self, case: str) -> None:
        found = await self._ctx.metadata.get(keys.case(case), CaseRecord)
        if found.value is None or found.value.state is not CaseState.REQUESTED:
            raise ConflictError("the approved case is no longer waiting", case=case)
        await self._put_open(case, found, found.value)

    async def _end_request(self, case: str) -> None:
        """Remove a case whose request for approval has ended without one: it was never opened."""
        found = await self._ctx.metadata.get(keys.case(case), CaseRecord)
        record = found.value
        if record is None or record.state is not CaseState.REQUESTED or record.approval is None:
            return
        if not await self._is_requested(record):
            await self._ctx.metadata.remove(found.remove())

    async def _is_requested(self, record: CaseRecord) -> bool:
        request = record.approval
        return request is not None and await self._ctx.gate.state(request) in ("requested", "approved")

    async def get(self, case: str) -> ErasureCase:
        """See ``ports.control.erasures.Cases.get``."""
        return await self._answers.full(case, await self._record(case))

    async def list(self) -> Sequence[ErasureCase]:
        """See ``ports.control.erasures.Cases.list``."""
        found = [await self._answers.short(case, record) async for case, record in self._all()]
        return sorted(found, key=lambda item: (item.state in ("closed", "withdrawn"), item.due_ms, item.case))

    async def look(self, case: str) -> ErasureCase:
        """See ``ports.control.erasures.Cases.look``."""
        await self._record(case)
        await self._ctx.tasks.run(self._pass(case))
        return await self.get(case)

    async def close(self, case: str, *, who: str, why: str, pending_tables: bool = False) -> ErasureCase:
        """See ``ports.control.erasures.Cases.close``."""
        check_text("closing a case needs who and why", who=who, why=why)
        record = await self._record(case)
        tables: Sequence[str] = ()
        if not record.state.is_final:
            await self._ctx.tasks.run(self._pass(case))
            waits_for = await restorable(self._ctx, record.targets)
            if waits_for:
                raise ConflictError(waits_for, case=case)
            tables = await self._answers.pending_tables(case, record)
            if tables and not pending_tables:
                raise ConflictError(
                    "tables still have rows of the case's events; erase them there (penstock spark erase --tables), confirm "
                    "those of deleted streams (erase case confirm-table), or close the case with pending tables",
                    case=case,
                    tables=", ".join(tables)[:500],
                )
        await self._end(case, CaseState.CLOSED, who, why, tables)
        self._ctx.audit.soon()
        return await self.get(case)

    async def confirm_table(self, case: str, table: str, *, stream: StreamName, who: str, why: str) -> ErasureCase:
        """See ``ports.control.erasures.Cases.confirm_table``."""
        return await self._answers.full(case, await self._confirmed.confirm(case, table, stream, who=who, why=why))

    async def withdraw(self, case: str, *, who: str, why: str) -> ErasureCase:
        """See ``ports.control.erasures.Cases.withdraw``."""
        check_text("withdrawing a case needs who and why", who=who, why=why)
        await self._record(case)
        await self._end(case, CaseState.WITHDRAWN, who, why)
        for stream in await self._answers.streams(case):
            if stream.pending:
                # One that is decided goes on; one that was never asked for does not exist.
                with suppress(NotFoundError, ConflictError):
                    await self._erasures.withdraw(stream.pending, who=who, why=why)
        self._ctx.audit.soon()
        return await self.get(case)

    async def subject(self, case: str, *, with_values: bool = False) -> Mapping[str, Any]:
        """See ``ports.control.erasures.Cases.subject``."""
        record = await self._record(case)
        key = self._ctx.settings.erasure_key
        # Without the key of its digests nobody can use them.
        return dict(record.subject) if with_values and has_key(record, key) else without_values(record, key)

    async def key(self) -> str | None:
        """See ``ports.control.erasures.Cases.key``."""
        key = self._ctx.settings.erasure_key
        return None if key is None else key_digest(key)

    async def _end(self, case: str, state: CaseState, who: str, why: str, tables: Sequence[str] = ()) -> None:
        # A pass that runs asks for an erasure either before this or not at all.
        async with self._ctx.locks.hold(asking(case)):
            await changing(lambda: self._put_end(case, state, who, why, tables))

    async def _put_end(self, case: str, state: CaseState, who: str, why: str, tables: Sequence[str]) -> None:
        found = await self._ctx.metadata.get(keys.case(case), CaseRecord)
        record = _present(case, found)
        if record.state is state:
            return
        if record.state.is_final or (state is CaseState.CLOSED and record.state is not CaseState.VERIFIED):
            raise ConflictError("the case has ended, or is not verified yet", case=case, state=record.state.value)
        ended: dict[str, Any] = {"who": who, "why": why, "at_ms": self._ctx.clock.now_ms()}
        identity = verified_name()
        if identity is not None:
            ended["identity"] = identity
        if tables:
            ended["tables"] = list(tables)
        kind = AuditKind.CASE_CLOSED if state is CaseState.CLOSED else AuditKind.CASE_WITHDRAWN
        now = replace(record, state=state, ended=ended)
        entry = _entry(kind, case, record, who=who, why=why, identity=identity)
        await self._ctx.metadata.put(found.put(now), *self._ctx.audit.puts([entry]))

    # --- passes -------------------------------------------------------------------------------------------

    def soon(self) -> None:
        """Look at all open cases soon: a hold has ended."""
        self._wake.set()

    async def run(self) -> None:
        """Look at open cases forever: often while that is quick, rarely where it takes long."""
        loop = asyncio.get_running_loop()
        pause_s = _PAUSE_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()
            began = loop.time()
            self._found = 0
            try:
                await self.run_once()
            except PenstockError as error:
                log.warning("cases of erasure could not be listed", extra={"error": str(error)})
            except Exception:
                log.exception("cases of erasure could not be listed because of an unexpected error")
            # A pass that has erased something waited for the disk; one that found nothing has only read.
            passed_s = 0 if self._found else loop.time() - began
            pause_s = min(_PAUSE_MAX_S, max(_PAUSE_S, _PAUSE_FACTOR * passed_s))

    async def run_once(self) -> None:
        """One pass of every case that has not ended. A failure is logged and stops no other case."""
        async for case, record in self._all():
            if record.state.is_final:
                continue
            try:
                if record.state is CaseState.REQUESTED:
                    await changing(lambda case=case: self._end_request(case))  # type: ignore[misc]
                else:
                    self._remind(case, record)
                    await self._pass(case)
            except PenstockError as error:
                log.warning("case of erasure waits", extra={"case": case, "error": str(error)})
            except Exception:
                log.exception("case of erasure waits because of an unexpected error", extra={"case": case})

    def _remind(self, case: str, record: CaseRecord) -> None:
        now_ms = self._ctx.clock.now_ms()
        last = self._reminded.get(case)
        if is_overdue(record.state, due_ms=record.due_ms, now_ms=now_ms) and (
            last is None or now_ms - last >= _REMIND_MS
        ):
            self._reminded[case] = now_ms
            extra = {"case": case, "state": record.state.value, "due_ms": record.due_ms}
            log.error("case of erasure is overdue", extra=extra)

    async def _pass(self, case: str) -> None:
        """Search, erase and verify up to the current tails."""
        async with self._ctx.locks.hold(f"case/{case}"):
            try:
                for _ in range(_ROUNDS):
                    if not await self._round(case):
                        break
            except Exception as error:
                self._answers.failed(case, error)
                raise
            finally:
                self._answers.progress.pop(case, None)
            record = await self._record(case)
            waits_for = "" if record.state.is_final else await restorable(self._ctx, record.targets)
            if waits_for:
                self._answers.failures[case] = waits_for
            else:
                self._answers.failures.pop(case, None)
            self._ctx.audit.soon()

    async def _round(self, case: str) -> bool:
        """One search with erasure, and a proof if nothing is left to erase. Returns whether to go on at once."""
        record = await self._record(case)
        if record.state.is_final or record.state is CaseState.REQUESTED:
            return False
        check_key(record, self._ctx.settings.erasure_key)
        one = Case(id=case, record=record, matcher=matcher_of(record.subject, self._ctx.settings.erasure_key))
        found, holds = 0, list[CaseHold]()

        async def erase(view: StreamView, note: Note) -> None:
            nonlocal found
            count, own = await self._search.erase(one, view, note)
            found += count
            self._found += count
            holds.extend(own)

        await self._each(one, erase)
        state = await self._move(case, lambda now: after_search(now, found=found, is_held=bool(holds)))
        if state is not CaseState.PERFORMED:
            return False
        left = 0

        async def prove(view: StreamView, note: Note) -> None:
            nonlocal left
            left += await self._search.prove(one, view, note)

        await self._each(one, prove)
        if await restorable(self._ctx, record.targets):
            # A deleted stream may hold matching events, and cannot be searched. The case is verified once it is
            # restored or freed.
            return False
        return await self._move(case, lambda now: after_proof(now, found=left)) is CaseState.OPEN

    async def reapply(self, ledger: Ledger) -> Reapplied:
        """Erase again what the ledger lists, in a store from an older copy: see ``Reapply``."""
        views: dict[str, list[StreamView]] = {}
        waiting: set[str] = set()
        for fields in ledger.cases:
            names = await concerned(self._ctx, fields["targets"])
            found = [await self._ctx.streams.find(name) for name in names]
            if await restorable(self._ctx, fields["targets"]):
                waiting.add(fields["case"])
            views[fields["case"]] = [view for view in found if view is not None and view.record.state not in HIDDEN]
        done = await Reapply(self._ctx, self._erasures, self._search, ledger).run(views, waiting)
        self._wake.set()
        return done

    async def _each(self, case: Case, work: Callable[[StreamView, Note], Awaitable[None]]) -> None:
        """Do the work in each stream that the case concerns, until the case has ended.

        A stream that fails stops no other. Raises the first failure, after all streams.
        """
        ctx = self._ctx
        wanted = await concerned(self._ctx, case.record.targets)
        total = 0
        failed: dict[StreamName, Exception] = {}
        for number, name in enumerate(wanted):

            def note(phase: str, stream: str, size: int, number: int = number) -> None:
                nonlocal total
                total += size
                self._answers.progress[case.id] = CaseProgress(
                    phase=phase, stream=stream, streams=number, of=len(wanted), bytes=total
                )

            if (await self._record(case.id)).state.is_final:
                return
            try:
                view = await ctx.streams.find(name)
                if view is not None and view.record.state not in HIDDEN:
                    await work(view, note)
            except PenstockError as error:
                failed[name] = error
            except Exception as error:
                log.exception("unexpected error in a stream of a case of erasure", extra={"case": case.id})
                failed[name] = error
        if failed:
            extra = {"case": case.id, "failed": len(failed), "streams": [str(name) for name in list(failed)[:10]]}
            log.warning("case of erasure could not search all streams", extra=extra)
            raise next(iter(failed.values()))

    async def _move(self, case: str, rule: Any) -> CaseState:
        """Write the state that the rule gives; return it."""

        async def change() -> CaseState:
            found = await self._ctx.metadata.get(keys.case(case), CaseRecord)
            record = _present(case, found)
            state: CaseState = rule(record.state)
            if state is record.state:
                return state
            now_ms = self._ctx.clock.now_ms()
            now = replace(record, state=state)
            entries = []
            if state is CaseState.PERFORMED:
                now = replace(now, performed_ms=now_ms, verified_ms=None)
            if state is CaseState.VERIFIED:
                now = replace(now, verified_ms=now_ms)
                entries = [_entry(AuditKind.CASE_VERIFIED, case, record)]
            await self._ctx.metadata.put(found.put(now), *self._ctx.audit.puts(entries))
            return state

        return await changing(change)

    # --- records ------------------------------------------------------------------------------------------

    async def _record(self, case: str) -> CaseRecord:
        return _present(case, await self._ctx.metadata.get(keys.case(case), CaseRecord))

    async def _all(self) -> AsyncIterator[tuple[str, CaseRecord]]:
        async for entry in self._ctx.metadata.scan_all(keys.CASES):
            case = self._ctx.set_aside.text(entry, keys.CASES)
            record = None if case is None else self._ctx.set_aside.read(entry, CaseRecord)
            if case is not None and record is not None:
                yield case, record


def _present(case: str, found: Stored[CaseRecord]) -> CaseRecord:
    if found.value is None:
        raise NotFoundError("no such case", case=case[:ID_MAX])
    return found.value


def _check_id(case: str) -> None:
    if len(case) > ID_MAX or not _ID.match(case):
        raise InvalidArgumentError(
            "id of a case is not legal",
            case=ascii(case)[:60],
            rule=f"1 to {ID_MAX} letters, digits, dots, dashes and underscores",
        )


def _entry(kind: AuditKind, case: str, record: CaseRecord, **fields: object) -> AuditEntry:
    """An audit entry. It holds no values of the subject."""
    known = {"case": case, "targets": list(record.targets), "who": record.who, "why": record.why}
    found = {**known, "identity": record.identity, **fields}
    if found["identity"] is None:
        del found["identity"]
    return AuditEntry(kind=kind, target="", fields=found)
