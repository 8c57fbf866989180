"""Erasures: requested, decided, performed despite crashes, and proved by a receipt.

Positions arrive in pages, which change nothing. The last page decides the erasure, in one step with a check of the
holds. A decided erasure is performed, after a crash by the next controller, and ends with a receipt that is chained to
the previous one. If a hold covers some of the positions, the erasure is deferred instead. Source:
docs/how-to/erasure.md, docs/formats/erasure.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, assert_never

from msgspec import structs

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.control.erasures import (
    ErasureChainRecord,
    ErasureMarkRecord,
    ErasurePartRecord,
    ErasureRecord,
    ErasureState,
)
from penstock.codec.events import HEADER_BYTES
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.attempts import Attempts
from penstock.controller.erasure.decisions import Decisions
from penstock.controller.erasure.deferral import Deferrals, judge, withdrawn_error
from penstock.controller.erasure.feed import ErasureFeed
from penstock.controller.erasure.parts import Parts, ranges_of
from penstock.controller.erasure.repeats import Repeats
from penstock.controller.erasure.subjects import (
    ID_MAX,
    Request,
    answer_of,
    check_positions,
    check_proves_something,
    check_receipt_fits,
    checked_request,
    chunk_fields,
    ends_of,
    hold_fields,
    remains_of,
    where_of,
)
from penstock.controller.erasure.tables import ErasedTables
from penstock.controller.grace.deleted_records import kept_segments
from penstock.controller.metadata import Stored, changing, overwrite
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.tails import head_positions
from penstock.controller.streams.workflows import exclusive
from penstock.core.segments.erasure import Range, size_of
from penstock.core.segments.erasure_receipt import digest_of, log_fields, sealed
from penstock.model.answers.erasure import Erasure, ErasureHold, ErasurePart, ErasurePreview
from penstock.model.callers import verified_name
from penstock.model.errors import (
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    SegmentNotFoundError,
    UnsupportedError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.data.erasing import ErasedChunk
from penstock.ports.data.tables import KEY_ABSENT, TableEntry

log = logging.getLogger(__name__)

_GATHERED_MS = 24 * 3600 * 1000
_RETRY_MAX_S = 30.0


class Erasures:
    """Erasures of all streams. ``resume`` runs at the start and in each sweep; it continues decided and deferred
    ones."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._running: dict[str, None] = {}
        self._attempts = Attempts()
        self._parts = Parts(ctx.metadata)
        self._repeats = Repeats(ctx.metadata)
        self._deferrals = Deferrals(ctx, self._perform_soon)
        self.tables = ErasedTables(ctx)
        self.feed = ErasureFeed(ctx, self._parts, self.tables)
        self._decisions = Decisions(ctx, self._parts, self._repeats)

    async def start(self) -> None:
        """Continue decided and deferred erasures; remove the marks of erasures that do not exist."""
        metadata = self._ctx.metadata
        async for entry in metadata.scan_all(keys.ERASURE_MARKS):
            (of,) = await metadata.entries([keys.erasure(_marked(entry))])
            if of.version == KEY_ABSENT:
                await metadata.remove_keys([entry.key])
        await self.resume()

    def resume_soon(self) -> None:
        """``resume`` in the background: a hold has ended."""
        self._ctx.tasks.start_own(self.resume())

    async def resume(self) -> None:
        """Start each decided erasure that is not running, check the holds of each deferred one, and delete requests
        that have been incomplete for more than a day. A failure is logged and stops no other erasure."""
        ctx = self._ctx
        self.feed.soon()
        async for entry in ctx.metadata.scan_all(keys.ERASURE_MARKS):
            erasure = _marked(entry)
            (of,) = await ctx.metadata.entries([keys.erasure(erasure)])
            record = None if of.version == KEY_ABSENT else ctx.set_aside.read(of, ErasureRecord)
            if record is None:
                continue
            try:
                await self._resume(erasure, record)
            except PenstockError as error:
                log.warning("erasure could not be resumed yet", extra={"erasure": erasure, "error": str(error)})

    async def _resume(self, erasure: str, record: ErasureRecord) -> None:
        clock = self._ctx.retention_clock
        match record.state:
            case ErasureState.ASKED:
                self._perform_soon(erasure)
            case ErasureState.DEFERRED:
                await self._deferrals.look(erasure)
            case ErasureState.WITHDRAWN:
                await self._deferrals.forget_pages(erasure)
            case ErasureState.DONE:
                # The store crashed between the receipt and this step.
                await self._ctx.metadata.remove_keys([keys.erasure_mark(erasure)])
            case ErasureState.GATHERING:
                # A complete request may wait for its approval, and for a sweep after that.
                kept_ms = _GATHERED_MS + (self._ctx.settings.approval_ms if record.is_requested else 0)
                if clock.now_ms() - clock.stamped_ms(record.asked_ms) > kept_ms:
                    await self._forget(erasure, record)
            case _:
                assert_never(record.state)

    # --- requests -------------------------------------------------------------------------------------------

    async def erase(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None = None,
        last: bool = True,
    ) -> Erasure:
        """See ``ControlPlane.erasures.erase``."""
        self.check_possible()
        request = checked_request(stream, asked, positions, is_whole=last and not page)
        request = replace(request, identity=verified_name())
        check_positions(positions)
        return await self._ctx.tasks.run(self._take(request, positions, page=page or 0, last=last))

    async def erase_for_case(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        identity: str | None,
    ) -> Erasure:
        """As ``erase`` in one page, without the gate: the case has passed it. ``identity``: of who opened the case."""
        self.check_possible()
        request = replace(checked_request(stream, asked, positions, is_whole=True), of_case=True, identity=identity)
        check_positions(positions)
        return await self._ctx.tasks.run(self._take(request, positions, page=0, last=True))

    async def erase_approved(self, stream: StreamName, arguments: Mapping[str, Any]) -> Erasure:
        """Decide the complete request that an approval names. Raises ConflictError: it is not the approved one."""
        return await self._ctx.tasks.run(self._erase_approved(stream, arguments))

    async def _erase_approved(self, stream: StreamName, arguments: Mapping[str, Any]) -> Erasure:
        erasure = str(arguments["erasure"])
        async with self._ctx.locks.hold(f"erasure/{erasure}"), exclusive(self._ctx, stream):
            return self._status(erasure, await changing(lambda: self._decisions.approved(stream, arguments)))

    async def preview(self, stream: StreamName, positions: Mapping[SegmentId, Sequence[int]]) -> ErasurePreview:
        """See ``ControlPlane.erasures.preview``."""
        self.check_possible()
        check_positions(positions)
        view = await self._ctx.streams.get(stream)
        parts = [await self.part_of(view, segment, offsets) for segment, offsets in sorted(positions.items())]
        judgement = await judge(self._ctx, view, ends_of(parts))
        return ErasurePreview(
            stream=str(stream),
            events=sum(part.events for part in parts),
            bytes=sum(size_of(part.ranges) for part in parts),
            segments=len(parts),
            holds=[ErasureHold(**hold_fields(item)) for item in judgement.holds],
        )

    def check_possible(self) -> None:
        """Raises UnsupportedError, with the reason, if this store cannot erase."""
        reason = self._ctx.settings.erasure_refused()
        if reason is not None:
            raise UnsupportedError(reason)

    async def part_of(self, view: StreamView, segment: SegmentId, offsets: Sequence[int]) -> ErasurePartRecord:
        """The payloads of the events at the offsets. Raises InvalidArgumentError: no event begins there."""
        try:
            ranges = await self._ctx.segments.event_ranges(segment_name(view.name, segment), list(offsets))
        except SegmentNotFoundError as error:
            raise InvalidArgumentError(
                "no such segment of the stream", stream=str(view.name), segment=segment
            ) from error
        empty = set(offsets).difference(start - HEADER_BYTES for start, _ in ranges)
        return ErasurePartRecord(segment=segment, ranges=list(ranges), events=len(set(offsets)), empty=sorted(empty))

    async def _take(
        self, request: Request, positions: Mapping[SegmentId, Sequence[int]], *, page: int, last: bool
    ) -> Erasure:
        """Keep a page, or (last) decide. Each run keeps its pages separately. Several runs may send pages under one id; the
        first that is complete decides. The others join it if their request is the same."""
        ctx, erasure, stream = self._ctx, request.erasure, request.stream
        async with ctx.locks.hold(f"erasure/{erasure}"):
            found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
            parts, run = list[ErasurePartRecord](), ""
            if found.value is None or found.value.state is ErasureState.GATHERING:
                # Before anything is written: a refused page leaves no erasure behind.
                check_proves_something(request)
                view = await ctx.streams.get(stream)
                run = request.run(view.record.incarnation)
                parts = [await self.part_of(view, segment, offsets) for segment, offsets in sorted(positions.items())]
                if last and not page:
                    check_receipt_fits(self._decisions.asked(request, view), parts)
            known = await changing(lambda: self._begin(request, page))
            if known.state is not ErasureState.GATHERING:
                # Another run has decided, or an earlier call whose answer was lost. A repeat is no second erasure.
                await self._repeats.check(request, known, positions, last=last)
                return self._status(erasure, await self._deferrals.look_alone(erasure) or known)
            for part in parts:
                await ctx.metadata.put(overwrite(keys.erasure_part(erasure, run, page, part.segment), part))
            if last:
                async with exclusive(ctx, stream):
                    known = await changing(lambda: self._decisions.decide(request, positions))
            return self._status(erasure, known)

    async def _begin(self, request: Request, page: int) -> ErasureRecord:
        """Return the record under the id. If nothing is decided, write one in the state ``GATHERING``."""
        ctx, erasure = self._ctx, request.erasure
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        if found.value is not None and found.value.state is ErasureState.WITHDRAWN:
            raise withdrawn_error(erasure, found.value)
        if found.value is not None and (found.value.state is not ErasureState.GATHERING or page):
            return found.value
        view = await ctx.streams.get(request.stream)
        begun = ErasureRecord(
            stream=str(request.stream),
            incarnation=view.record.incarnation,
            state=ErasureState.GATHERING,
            asked=request.asked,
            asked_ms=ctx.clock.now_ms(),
            identity=request.identity,
        )
        await ctx.metadata.put(found.put(begun), overwrite(keys.erasure_mark(erasure), ErasureMarkRecord()))
        return begun

    async def _forget(self, erasure: str, old: ErasureRecord) -> None:
        """Remove an erasure that was never decided, unless a run has started it again."""
        metadata = self._ctx.metadata
        async with self._ctx.locks.hold(f"erasure/{erasure}"):
            found: Stored[ErasureRecord] = await metadata.get(keys.erasure(erasure), ErasureRecord)
            if found.value == old:
                await metadata.remove_prefix(keys.erasure_parts(erasure))
                await metadata.remove(found.remove())
                await metadata.remove_keys([keys.erasure_mark(erasure)])

    async def withdraw(self, erasure: str, *, who: str, why: str) -> Erasure:
        """See ``ControlPlane.erasures.withdraw``."""
        return self._status(erasure, await self._deferrals.withdraw(erasure, who=who, why=why))

    # --- queries ------------------------------------------------------------------------------------------

    async def get(self, erasure: str) -> Erasure:
        """See ``ControlPlane.erasures.get``."""
        found = (await self._ctx.metadata.get(keys.erasure(erasure), ErasureRecord)).value
        if found is None:
            raise NotFoundError("no such erasure", erasure=erasure[:ID_MAX])
        return await self._with_tables(erasure, found)

    async def note_table(self, erasure: str, table: str, *, rows: int) -> Erasure:
        """See ``ControlPlane.erasures.note_table``."""
        return await self._with_tables(erasure, await self.tables.note(erasure, table, rows=rows))

    async def confirm_table(self, erasure: str, table: str, *, who: str, why: str) -> Erasure:
        """See ``ControlPlane.erasures.confirm_table``."""
        return await self._with_tables(erasure, await self.tables.confirm(erasure, table, who=who, why=why))

    async def _with_tables(self, erasure: str, record: ErasureRecord) -> Erasure:
        status = self._status(erasure, record)
        return status if record.receipt is None else structs.replace(status, tables=await self.tables.of(record))

    def _status(self, erasure: str, record: ErasureRecord) -> Erasure:
        if record.state is ErasureState.ASKED:
            # Any call that sees a decided erasure starts it, because the answer to the decision can be lost.
            self._perform_soon(erasure)
        fields = self._attempts.fields(erasure) if record.state is ErasureState.ASKED else {}
        return answer_of(erasure, record, fields)

    async def part(self, erasure: str, part: int) -> ErasurePart:
        """See ``ControlPlane.erasures.part``."""
        return await self._parts.answer(erasure, part)

    async def ranges(self, erasure: str) -> Mapping[SegmentId, Sequence[Range]]:
        """The blanked payloads of an erasure, by segment. Raises NotFoundError."""
        record = (await self._ctx.metadata.get(keys.erasure(erasure), ErasureRecord)).value
        if record is None:
            raise NotFoundError("no such erasure", erasure=erasure[:ID_MAX])
        return ranges_of(await self._parts.of_run(erasure, record.run))

    async def list(self, stream: StreamName | None = None) -> Sequence[Erasure]:
        """See ``ControlPlane.erasures.list``."""
        found: list[Erasure] = []
        async for entry in self._ctx.metadata.scan_all(keys.ERASURES):
            erasure = self._ctx.set_aside.text(entry, keys.ERASURES)
            record = None if erasure is None else self._ctx.set_aside.read(entry, ErasureRecord)
            if erasure is not None and record is not None and (stream is None or record.stream == str(stream)):
                found.append(self._status(erasure, record))
        if stream is not None and not found:
            # No erasure of a mistyped name would look like an answer about the stream that was meant.
            await self._ctx.streams.get(stream)
        # In the order of the chain; erasures without a receipt come last.
        return sorted(
            found,
            key=lambda item: (item.receipt is None, (item.receipt or {}).get("sequence", 0), item.asked_ms),
        )

    # --- performing ---------------------------------------------------------------------------------------

    def _perform_soon(self, erasure: str) -> None:
        if erasure not in self._running:
            self._running[erasure] = None
            self._ctx.tasks.start_own(self._perform_until_done(erasure))

    async def _perform_until_done(self, erasure: str) -> None:
        """Retry until it is done: a decided erasure is a promise."""
        pause_s = 0.2
        try:
            while True:
                try:
                    async with self._ctx.locks.hold("erasures"):
                        await self._perform(erasure)
                except Exception as error:
                    # Any error: a decided erasure is never given up.
                    self._attempts.failed(erasure, error)
                    self._ctx.telemetry.add("erasure_failures")
                    log.warning(
                        "erasure waits",
                        extra={"erasure": erasure, "error": str(error)},
                        exc_info=None if isinstance(error, PenstockError | OSError) else error,
                    )
                    await asyncio.sleep(pause_s * (0.5 + self._ctx.rng.random() / 2))
                    pause_s = min(_RETRY_MAX_S, 2 * pause_s)
                else:
                    return
        finally:
            self._running.pop(erasure, None)
            self._attempts.ended(erasure)

    async def _perform(self, erasure: str) -> None:
        ctx = self._ctx
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        record = found.value
        if record is None or record.state is not ErasureState.ASKED:
            return
        stream = StreamName.parse(record.stream)
        await self._parts.drop_other_runs(erasure, record.run)
        parts = await self._parts.of_run(erasure, record.run)
        wanted = ranges_of(parts)
        view = await self._view(record)
        # The segments of a deleted stream that can be restored are searched in full: its head is kept with it.
        kept = [] if view is not None else await kept_segments(ctx, stream, record.incarnation)
        for segment in kept or await self._head_segments(view):
            wanted.setdefault(segment, [])
        chunks: list[dict[str, Any]] = []
        gone: list[SegmentId] = []
        for number, (segment, ranges) in enumerate(sorted(wanted.items())):
            self._attempts.reached(erasure, segments=number, of=len(wanted))
            try:
                chunks_found = await self._erase_segment(stream, segment, ranges, erasure)
            except SegmentNotFoundError:
                # The segment was truncated away, or deleted with the stream, after the positions were taken. Its chunks are
                # wiped. A new stream of this name never uses the name of a segment again.
                gone.append(segment)
                continue
            chunks += [chunk_fields(segment, item) for item in chunks_found]
        self._attempts.reached(erasure, segments=len(wanted), of=len(wanted), is_log=True)
        wipe = await ctx.segments.wipe_log()
        await self._parts.keep_chunks(erasure, chunks)
        tables = await self.tables.names(record)
        fields = {
            "erasure": erasure,
            "stream": record.stream,
            **{name: record.asked.get(name) for name in ("who", "why", "looked_for")},
            **({} if record.identity is None else {"identity": record.identity}),
            "asked_ms": record.asked_ms,
            "where": where_of(parts, gone),
            "chunks": {"count": len(chunks), "sha256": digest_of(chunks)},
            **log_fields(wipe),
            "request": None if record.request is None else dict(record.request),
            "remains": await remains_of(ctx, await self._view(record), stream, record.incarnation, tables),
            "version": version("penstock"),
        }
        await changing(lambda: self._finish(erasure, fields, tables))
        ctx.audit.soon()
        self.feed.soon()
        ctx.telemetry.add("erasures")

    async def _view(self, record: ErasureRecord) -> StreamView | None:
        """The stream of the erasure; None if it was deleted, even if a new stream has its name."""
        view = await self._ctx.streams.find(StreamName.parse(record.stream))
        return None if view is None or view.record.incarnation != record.incarnation else view

    async def _head_segments(self, view: StreamView | None) -> Sequence[SegmentId]:
        """Segments whose beginning may have been truncated. The truncated bytes are blanked too."""
        if view is None:
            return []
        history = await self._ctx.histories.of(view)
        _, head = await self._ctx.streams.get_with_head(view.name)
        return [segment for segment, offset in head_positions(history, head.value).items() if offset > 0]

    async def _erase_segment(
        self, stream: StreamName, segment: SegmentId, ranges: Sequence[Range], erasure: str
    ) -> Sequence[ErasedChunk]:
        # All ranges go in one call, so that each chunk is rewritten once. After a second call the digest from the first
        # would not match the chunk.
        chunks_found = await self._ctx.segments.erase(segment_name(stream, segment), ranges, erasure=erasure)
        return sorted(chunks_found, key=lambda item: (item.start_offset, item.name_before))

    async def _finish(self, erasure: str, fields: Mapping[str, Any], tables: Sequence[str]) -> None:
        ctx = self._ctx
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        chain: Stored[ErasureChainRecord] = await ctx.metadata.get(keys.ERASURE_CHAIN, ErasureChainRecord)
        record, before = found.value, chain.value
        if record is None:
            raise ConflictError("the erasure's record was deleted while the erasure ran", erasure=erasure)
        if record.state is ErasureState.DONE:
            return  # Another controller was faster.
        receipt = sealed(
            {**fields, "finished_ms": ctx.clock.now_ms()},
            sequence=1 if before is None else before.sequence + 1,
            previous=None if before is None else before.sha256,
        )
        done = replace(record, state=ErasureState.DONE, receipt=receipt, known_tables=tables)
        entry = AuditEntry(
            kind=AuditKind.ERASE,
            target=record.stream,
            fields={
                "erasure": erasure,
                **{name: receipt[name] for name in ("who", "why", "asked_ms", "sha256", "sequence")},
                **({} if record.identity is None else {"identity": record.identity}),
                "bytes": receipt["where"]["bytes"],
                "events": receipt["where"]["events"],
            },
        )
        link = ErasureChainRecord(sequence=receipt["sequence"], erasure=erasure, sha256=receipt["sha256"])
        await ctx.metadata.put(found.put(done), chain.put(link), *ctx.audit.puts([entry]))
        await ctx.metadata.remove_keys([keys.erasure_mark(erasure)])


def _marked(entry: TableEntry) -> str:
    """The erasure that a mark belongs to."""
    return entry.key[len(keys.ERASURE_MARKS) :].decode("utf-8", "replace")
