"""Erasures: asked for, decided, performed whatever crashes, and proved by a receipt.

Positions come in pages, which change nothing. With the last page the erasure is decided, in one step with a look at the
holds; from then on it is performed, by whoever opens the store next if need be, and ends with a receipt that continues the
one before. Source: docs/erasure.md, docs/formats/erasure.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeAlias

from penstock.codec.audit import AuditEntry, AuditKind
from penstock.codec.erasure_records import (
    ErasureChainRecord,
    ErasureChunksRecord,
    ErasureMarkRecord,
    ErasurePartRecord,
    ErasureRecord,
    ErasureState,
)
from penstock.controller import keys
from penstock.controller.context import Context, StreamView
from penstock.controller.erasure_facts import (
    ID_MAX,
    check_no_hold,
    checked_asked,
    chunk_fields,
    remains_of,
    where_of,
)
from penstock.controller.holds import holds_of
from penstock.controller.metadata import Stored, changing, overwrite
from penstock.controller.tails import head_positions
from penstock.controller.workflows import exclusive, settled
from penstock.core.erasure import Range, joined, size_of
from penstock.core.erasure_receipt import digest_of, sealed
from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
    NotFoundError,
    PenstockError,
    SegmentNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.segment_service import ErasedChunk, TableRemoval

log = logging.getLogger(__name__)

PAGE_POSITIONS_MAX = 50_000
_CALL_RANGES = 20_000
_CHUNKS_PER_RECORD = 1000
_GATHERED_MS = 24 * 3600 * 1000
_RETRY_MAX_S = 30.0
_LISTED_MAX = 16

_Lists: TypeAlias = tuple[list[bytes], list[bytes]]

_SENTENCES = {
    "cache": "the blanked bytes are in no cache of the store",
    "chunks": "chunks that held them were written anew; the old files were overwritten and deleted, old objects deleted",
    "log": "log files that held them were overwritten, files that wait to be used again included",
    "metadata": "metadata and the catalogue of tier 2 never hold payloads of events",
}


class Erasures:
    """Erasures of all streams. ``start`` resumes what was decided."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._running: dict[str, None] = {}
        self._failures: dict[str, str] = {}
        self._progress: dict[str, dict[str, Any]] = {}
        self._listed: dict[str, _Lists] = {}

    async def start(self) -> None:
        """Go on with what was decided and is not done; forget what was gathered long ago and never decided."""
        ctx = self._ctx
        async for entry in ctx.metadata.scan_all(keys.ERASURE_MARKS):
            erasure = entry.key[len(keys.ERASURE_MARKS) :].decode()
            found = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
            if found.value is None:
                await ctx.metadata.remove_keys([entry.key])
            elif found.value.state is ErasureState.ASKED:
                self._perform_soon(erasure)
            elif ctx.clock.now_ms() - found.value.asked_ms > _GATHERED_MS:
                await self._forget(erasure)

    # --- asking -------------------------------------------------------------------------------------------

    async def erase(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None,
        last: bool,
        dry_run: bool,
    ) -> Mapping[str, Any]:
        """See ``ControllerService.erase``."""
        asked = checked_asked(stream, asked)
        erasure = asked["erasure"]
        if sum(map(len, positions.values())) > PAGE_POSITIONS_MAX:
            raise InvalidArgumentError("a page of positions is too long", limit=PAGE_POSITIONS_MAX)
        if dry_run:
            return await self._look(stream, positions)
        work = self._take(stream, erasure, asked, positions, page=page, last=last)
        return await self._ctx.tasks.run(work)

    async def _look(self, stream: StreamName, positions: Mapping[SegmentId, Sequence[int]]) -> Mapping[str, Any]:
        view = await self._ctx.stream(stream)
        parts = [await self._part(view, segment, offsets) for segment, offsets in sorted(positions.items())]
        check_no_hold(await holds_of(self._ctx, view), parts)
        return {
            "stream": str(stream),
            "state": "dry run",
            "events": sum(part.events for part in parts),
            "bytes": sum(size_of(part.ranges) for part in parts),
            "segments": len(parts),
        }

    async def _part(self, view: StreamView, segment: SegmentId, offsets: Sequence[int]) -> ErasurePartRecord:
        try:
            ranges = await self._ctx.segments.event_ranges(segment_name(view.name, segment), list(offsets))
        except SegmentNotFoundError as error:
            raise InvalidArgumentError(
                "no such segment of the stream", stream=str(view.name), segment=segment
            ) from error
        return ErasurePartRecord(segment=segment, ranges=list(ranges), events=len(set(offsets)))

    async def _take(
        self,
        stream: StreamName,
        erasure: str,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None,
        last: bool,
    ) -> Mapping[str, Any]:
        ctx = self._ctx
        async with ctx.locks.hold(f"erasure/{erasure}"):
            known = (await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)).value
            if known is not None and known.state is ErasureState.GATHERING and known.stream == str(stream) and not page:
                # Begun anew: what an attempt that died had gathered may not be all, or not be so any more.
                await self._forget(erasure)
                known = None
            if known is not None and (known.stream != str(stream) or dict(known.asked) != dict(asked)):
                raise AlreadyExistsError("another erasure has this id", erasure=erasure, stream=known.stream)
            if known is not None and known.state is not ErasureState.GATHERING:
                # Decided by an earlier call, whose answer was lost: a repeat is no second erasure.
                return self._status(erasure, known)
            view = await ctx.stream(stream)
            if known is None:
                known = ErasureRecord(
                    stream=str(stream),
                    incarnation=view.record.incarnation,
                    state=ErasureState.GATHERING,
                    asked=asked,
                    asked_ms=ctx.clock.now_ms(),
                )
                await ctx.metadata.put(
                    overwrite(keys.erasure(erasure), known), overwrite(keys.erasure_mark(erasure), ErasureMarkRecord())
                )
            if known.incarnation != view.record.incarnation:
                raise StreamNotFoundError("stream was deleted and made anew", stream=str(stream), erasure=erasure)
            for segment, offsets in sorted(positions.items()):
                part = await self._part(view, segment, offsets)
                await ctx.metadata.put(overwrite(keys.erasure_part(erasure, page or 0, segment), part))
            if last:
                async with exclusive(ctx, stream):
                    known = await changing(lambda: self._decide(stream, erasure))
                self._perform_soon(erasure)
            return self._status(erasure, known)

    async def _decide(self, stream: StreamName, erasure: str) -> ErasureRecord:
        """One step with a touch of the stream's record: a hold placed at the same time is seen, or sees the decision."""
        ctx = self._ctx
        view = await settled(ctx, stream)
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        if found.value is None or found.value.incarnation != view.record.incarnation:
            raise StreamNotFoundError("stream was deleted and made anew", stream=str(stream), erasure=erasure)
        check_no_hold(await holds_of(ctx, view), await self._parts(erasure))
        decided = ErasureRecord(
            stream=found.value.stream,
            incarnation=found.value.incarnation,
            state=ErasureState.ASKED,
            asked=found.value.asked,
            asked_ms=ctx.clock.now_ms(),
        )
        await ctx.metadata.put(view.put(view.record), found.put(decided))
        return decided

    async def _parts(self, erasure: str) -> list[ErasurePartRecord]:
        found = self._ctx.metadata.scan_all(keys.erasure_parts(erasure))
        return [ErasurePartRecord.decode(entry.value) async for entry in found]

    async def _forget(self, erasure: str) -> None:
        metadata = self._ctx.metadata
        await metadata.remove_prefix(keys.erasure_parts(erasure))
        await metadata.remove(TableRemoval(key=keys.erasure(erasure)), TableRemoval(key=keys.erasure_mark(erasure)))

    # --- telling ------------------------------------------------------------------------------------------

    async def status(self, erasure: str) -> Mapping[str, Any]:
        """See ``ControllerService.erasure``."""
        found = (await self._ctx.metadata.get(keys.erasure(erasure), ErasureRecord)).value
        if found is None:
            raise NotFoundError("no such erasure", erasure=erasure[:ID_MAX])
        return self._status(erasure, found)

    def _status(self, erasure: str, record: ErasureRecord) -> Mapping[str, Any]:
        told: dict[str, Any] = {
            "erasure": erasure,
            "stream": record.stream,
            "state": record.state.value,
            "asked": dict(record.asked),
            "asked_ms": record.asked_ms,
            "receipt": None if record.receipt is None else dict(record.receipt),
        }
        if erasure in self._failures and record.state is ErasureState.ASKED:
            told["waits_for"] = self._failures[erasure]
        if erasure in self._progress and record.state is ErasureState.ASKED:
            told["progress"] = dict(self._progress[erasure])
        return told

    async def part(self, erasure: str, number: int) -> Mapping[str, Any]:
        """See ``ControllerService.erasure_part``."""
        metadata = self._ctx.metadata
        parts, chunks = self._listed.get(erasure) or await self._list(erasure)
        answer: dict[str, Any] = {"part": number, "parts": max(len(parts), len(chunks))}
        if number < len(parts):
            part = (await metadata.get(parts[number], ErasurePartRecord)).value
            if part is not None:
                answer["positions"] = part.fields()
        if number < len(chunks):
            found = (await metadata.get(chunks[number], ErasureChunksRecord)).value
            if found is not None:
                answer["chunks"] = {"segment": found.segment, "chunks": [dict(item) for item in found.chunks]}
        return answer

    async def _list(self, erasure: str) -> _Lists:
        """The keys of the records that its parts are made of, remembered once they stay: the parts are asked for in turn."""
        metadata = self._ctx.metadata
        record = (await metadata.get(keys.erasure(erasure), ErasureRecord)).value
        found = (
            [entry.key async for entry in metadata.scan_all(keys.erasure_parts(erasure))],
            [entry.key async for entry in metadata.scan_all(keys.erasure_chunks(erasure))],
        )
        if record is not None and record.state is ErasureState.DONE:
            if len(self._listed) >= _LISTED_MAX:
                self._listed.pop(next(iter(self._listed)))
            self._listed[erasure] = found
        return found

    async def names(self, stream: StreamName | None) -> list[Mapping[str, Any]]:
        """See ``ControllerService.erasures``."""
        found: list[Mapping[str, Any]] = []
        async for entry in self._ctx.metadata.scan_all(keys.ERASURES):
            record = ErasureRecord.decode(entry.value)
            if stream is None or record.stream == str(stream):
                found.append(self._status(entry.key[len(keys.ERASURES) :].decode(), record))
        # In the order of the chain; what has no receipt yet comes last.
        return sorted(
            found,
            key=lambda item: (item["receipt"] is None, (item["receipt"] or item).get("sequence", 0), item["asked_ms"]),
        )

    # --- performing ---------------------------------------------------------------------------------------

    def _perform_soon(self, erasure: str) -> None:
        if erasure not in self._running:
            self._running[erasure] = None
            self._ctx.tasks.start(self._perform_until_done(erasure))

    async def _perform_until_done(self, erasure: str) -> None:
        """Until it is done, however often it fails: it was decided, and somebody counts on it."""
        pause_s = 0.2
        try:
            while True:
                try:
                    async with self._ctx.locks.hold("erasures"):
                        await self._perform(erasure)
                except (PenstockError, OSError) as error:
                    self._failures[erasure] = str(error)
                    self._ctx.telemetry.add("erasure_failures")
                    log.warning("erasure waits", extra={"erasure": erasure, "error": str(error)})
                    await asyncio.sleep(pause_s * (0.5 + self._ctx.rng.random() / 2))
                    pause_s = min(_RETRY_MAX_S, 2 * pause_s)
                else:
                    return
        finally:
            self._running.pop(erasure, None)
            self._failures.pop(erasure, None)
            self._progress.pop(erasure, None)

    async def _perform(self, erasure: str) -> None:
        ctx = self._ctx
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        record = found.value
        if record is None or record.state is not ErasureState.ASKED:
            await ctx.metadata.remove_keys([keys.erasure_mark(erasure)])
            return
        stream = StreamName.parse(record.stream)
        parts = await self._parts(erasure)
        wanted: dict[SegmentId, list[Range]] = {}
        for part in parts:
            wanted[part.segment] = joined(wanted.get(part.segment, ()), part.ranges)
        view = await ctx.any_stream(stream)
        if view is not None and view.record.incarnation != record.incarnation:
            view = None
        for segment in await self._head_segments(view):
            wanted.setdefault(segment, [])
        chunks: list[dict[str, Any]] = []
        gone: list[SegmentId] = []
        for number, (segment, ranges) in enumerate(sorted(wanted.items())):
            self._progress[erasure] = {"phase": "chunks", "segments": number, "of": len(wanted)}
            try:
                told = [] if view is None else await self._erase_segment(stream, segment, ranges, erasure)
            except SegmentNotFoundError:
                # Truncated away, or deleted with the stream, since the positions were taken.
                gone.append(segment)
                continue
            chunks += [chunk_fields(segment, item) for item in told]
        self._progress[erasure] = {"phase": "log", "segments": len(wanted), "of": len(wanted)}
        await ctx.segments.wipe_log()
        await self._keep_chunks(erasure, chunks)
        fields = {
            "erasure": erasure,
            "stream": record.stream,
            **{name: record.asked.get(name) for name in ("who", "why", "looked_for")},
            "asked_ms": record.asked_ms,
            "where": where_of(parts, gone),
            "chunks": {"count": len(chunks), "sha256": digest_of(chunks)},
            "tiers": _SENTENCES,
            "remains": await remains_of(ctx, view, stream),
            "version": version("penstock"),
        }
        await changing(lambda: self._finish(erasure, fields))
        ctx.audit.soon()
        ctx.telemetry.add("erasures")

    async def _head_segments(self, view: StreamView | None) -> list[SegmentId]:
        """Those whose beginning may have been truncated: what is dead of it is blanked too."""
        if view is None:
            return []
        history = await self._ctx.histories.of(view)
        _, head = await self._ctx.stream_and_head(view.name)
        return [segment for segment, offset in head_positions(history, head.value).items() if offset > 0]

    async def _erase_segment(
        self, stream: StreamName, segment: SegmentId, ranges: Sequence[Range], erasure: str
    ) -> list[ErasedChunk]:
        name = segment_name(stream, segment)
        told: dict[tuple[str, int], ErasedChunk] = {}
        for start in range(0, max(1, len(ranges)), _CALL_RANGES):
            part = ranges[start : start + _CALL_RANGES]
            for item in await self._ctx.segments.erase(name, part, erasure=erasure):
                told[item.name_before, item.start_offset] = item
        return sorted(told.values(), key=lambda item: (item.start_offset, item.name_before))

    async def _keep_chunks(self, erasure: str, chunks: Sequence[Mapping[str, Any]]) -> None:
        """Put the list behind the receipt, and take away what an attempt that died had put beyond it: of chunks that were
        truncated away since."""
        metadata = self._ctx.metadata
        kept: dict[bytes, None] = {}
        for number, start in enumerate(range(0, len(chunks), _CHUNKS_PER_RECORD)):
            part = chunks[start : start + _CHUNKS_PER_RECORD]
            record = ErasureChunksRecord(segment=SegmentId(int(part[0]["segment"])), chunks=part)
            put = overwrite(keys.erasure_chunk(erasure, number), record)
            kept[bytes(put.key)] = None
            await metadata.put(put)
        gone = [entry.key async for entry in metadata.scan_all(keys.erasure_chunks(erasure)) if entry.key not in kept]
        await metadata.remove_keys(gone)

    async def _finish(self, erasure: str, fields: Mapping[str, Any]) -> None:
        ctx = self._ctx
        found: Stored[ErasureRecord] = await ctx.metadata.get(keys.erasure(erasure), ErasureRecord)
        chain: Stored[ErasureChainRecord] = await ctx.metadata.get(keys.ERASURE_CHAIN, ErasureChainRecord)
        record, before = found.value, chain.value
        if record is None:
            raise ConflictError("erasure was forgotten while it was performed", erasure=erasure)
        if record.state is ErasureState.DONE:
            return  # Another controller was faster.
        receipt = sealed(
            {**fields, "finished_ms": ctx.clock.now_ms()},
            sequence=1 if before is None else before.sequence + 1,
            previous=None if before is None else before.sha256,
        )
        done = ErasureRecord(
            stream=record.stream,
            incarnation=record.incarnation,
            state=ErasureState.DONE,
            asked=record.asked,
            asked_ms=record.asked_ms,
            receipt=receipt,
        )
        entry = AuditEntry(
            kind=AuditKind.ERASE,
            target=record.stream,
            fields={
                "erasure": erasure,
                **{name: receipt[name] for name in ("who", "why", "asked_ms", "sha256", "sequence")},
                "bytes": receipt["where"]["bytes"],
                "events": receipt["where"]["events"],
            },
        )
        link = ErasureChainRecord(sequence=receipt["sequence"], erasure=erasure, sha256=receipt["sha256"])
        await ctx.metadata.put(found.put(done), chain.put(link), *ctx.audit.puts([entry]))
        await ctx.metadata.remove_keys([keys.erasure_mark(erasure)])
