"""The search of one stream for the events of a case, and their erasure.

What a search finds is erased before the searched range is recorded. So a crash repeats a search and never skips one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

from msgspec import UNSET

from penstock.codec.control.cases import CaseRecord, CaseStreamRecord, Searched
from penstock.codec.events import HEADER_BYTES, event_bounds, missing_bytes
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.erasures import Erasures
from penstock.controller.erasure.subjects import tables_of
from penstock.controller.grace.left_tables import left_tables
from penstock.controller.metadata import Stored
from penstock.controller.stream_view import StreamView
from penstock.controller.streams.tails import head_positions
from penstock.core.cases.matching import Matcher
from penstock.core.cases.progress import erasure_id, extended, is_searched, unsearched
from penstock.core.cuts.order import segments_to_delete
from penstock.core.segments.erasure import Range
from penstock.model.answers.erasure import CaseHold, Erasure
from penstock.model.errors import (
    CorruptDataError,
    NotFoundError,
    SegmentNotFoundError,
    TruncatedError,
    UnavailableError,
    UnsearchableEventError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.service import SegmentService
from penstock.ports.data.tables import TableCheck

PIECE_BYTES = 64 << 10
"""Bytes that are matched at a time: some milliseconds, in which the controller does nothing else."""
EVENTS_MAX = 10_000  # events of one erasure of a case
SEGMENTS_MAX = 1000
"""Segments of one erasure of a case: its receipt lists them, and must fit into a value of the controller's table."""
_POLL_S = 0.05
_POLL_MAX_S = 1.0
_TRIES = 5  # failed attempts of an erasure after which the case reports what it waits for
_NEW_TAILS_MAX = 2  # how often a search continues to a new tail

Note = Callable[[str, str, int], None]
"""Called with the phase, the stream, and the bytes that were just searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A case for the time of a pass."""

    id: str
    record: CaseRecord
    matcher: Matcher


@dataclass(slots=True)
class Found:
    """What a search has found: offsets of events, the searched bytes, and why some of them cannot be searched. ``bounds``:
    the bytes that it may search."""

    reached: Searched
    bounds: Searched
    positions: dict[SegmentId, list[int]] = field(default_factory=dict)
    skipped: str = ""

    @property
    def events(self) -> int:
        return sum(map(len, self.positions.values()))

    @property
    def is_full(self) -> bool:
        """Whether there are enough for one erasure."""
        return self.events >= EVENTS_MAX or len(self.positions) >= SEGMENTS_MAX


class NotEventsError(CorruptDataError):
    """The bytes of the segment are no events, for example those of a byte stream."""


async def blocks_of(
    segments: SegmentService, name: str, start: int, end: int
) -> AsyncIterator[tuple[int, bytes, Sequence[int]]]:
    """The events of ``start <= offset < end``, block by block: offset, bytes, and bounds as from ``event_bounds``.

    Raises NotEventsError, TruncatedError, SegmentNotFoundError, CorruptDataError (a block is damaged).
    """
    position, left = start, b""
    while position + len(left) < end:
        at = position + len(left)
        size = min(max(PIECE_BYTES, missing_bytes(left, 0) if left else 0), end - at)
        read = await segments.read(name, at, size, wait=False)
        data = b"".join(read.parts)
        if not data:
            return
        left += data
        try:
            bounds = event_bounds(left, segment=name, offset=position)
        except CorruptDataError as error:
            raise NotEventsError(error.message, **error.fields) from error
        if bounds[-1]:
            yield position, left, bounds
            position, left = position + bounds[-1], left[bounds[-1] :]


class CaseSearch:
    """Searches streams for cases. One search of a case runs at a time: the caller has the case's lock."""

    def __init__(self, ctx: Context, erasures: Erasures) -> None:
        self._ctx = ctx
        self._erasures = erasures

    async def load(self, case: str, view: StreamView) -> Stored[CaseStreamRecord]:
        """How far the case is in the stream. A new stream of the same name begins anew."""
        found = await self._ctx.metadata.get(keys.case_stream(case, view.name), CaseStreamRecord)
        if found.value is None or found.value.incarnation != view.record.incarnation:
            before = found.value
            fresh = CaseStreamRecord(
                incarnation=view.record.incarnation,
                searched={},
                proved={},
                rounds=0 if before is None else before.rounds,
                events=0 if before is None else before.events,
                bytes=0 if before is None else before.bytes,
                late=0 if before is None else before.late,
                unreached=await self._unreached(view),
                ended=[] if before is None else await self._ended(view.name, before),
            )
            if fresh.unreached:
                # Written even if there is nothing to search.
                versions = await self._ctx.metadata.put(found.put(fresh))
                return replace(found, value=fresh, version=versions[0])
            return replace(found, value=fresh)
        return found

    async def _ended(self, name: StreamName, before: CaseStreamRecord) -> list[int]:
        """The deleted streams of the name that were searched to their end, now that a new one takes the record."""
        left = await left_tables(self._ctx, name, before.incarnation)
        is_ended = left is not None and is_searched(before, before.incarnation, left)
        return [*before.ended, before.incarnation] if is_ended else before.ended

    async def _unreached(self, view: StreamView) -> list[str]:
        """The tables that may have rows of events that are not in the stream any more: no erasure finds those events."""
        tables = await tables_of(self._ctx, view)
        if not tables:
            return []
        history = await self._ctx.histories.of(view)
        _, head = await self._ctx.streams.get_with_head(view.name)
        first = head_positions(history, head.value)
        is_truncated = any(offset > 0 for offset in first.values()) or bool(segments_to_delete(history, None, first))
        return tables if is_truncated else []

    async def erase(self, case: Case, view: StreamView, note: Note) -> tuple[int, Sequence[CaseHold]]:
        """Search what was not searched yet, up to the current tail, and erase what matches.

        What was appended meanwhile is searched too, but only a few times: a stream that gets matching events all the
        time must not keep the other streams and cases waiting. The next pass finds the rest. Returns how many events
        were found, and the holds that defer their erasure. Raises UnavailableError, and what reading raises.
        """
        found = new_tails = 0
        within: Searched | None = None
        while True:
            stored = await self.load(case.id, view)
            record = _record(stored)
            if record.pending:
                note("erase", str(view.name), 0)
                holds = await self._settle(case, view, stored)
                if holds:
                    return found, holds
                continue
            note_bytes = partial_note(note, "search", view)
            hits = await self._find(case.matcher, view, record.searched, note_bytes, within=within)
            if not hits.positions:
                proved = hits.reached if case.record.state.is_proved else record.proved
                # What was skipped counts as searched, so no later search meets it again.
                skipped = hits.skipped or record.skipped
                done = replace(record, searched=hits.reached, proved=proved, skipped=skipped)
                if done != record:
                    await self._ctx.metadata.put(stored.put(done))
                if within is None or new_tails == _NEW_TAILS_MAX:
                    return found, ()
                within, new_tails = None, new_tails + 1
                continue
            within = within or hits.bounds
            if not await self._ask(case, view, stored, hits):
                return found, ()
            found += hits.events

    async def prove(self, case: Case, view: StreamView, note: Note) -> int:
        """Search again everything that the first search has covered. Returns how many events still match; if any, the
        next search finds them."""
        stored = await self.load(case.id, view)
        record = _record(stored)
        hits = await self._find(
            case.matcher, view, record.proved, partial_note(note, "verify", view), within=record.searched
        )
        now = replace(record, searched={}) if hits.positions else replace(record, proved=hits.reached)
        if now != record:
            await self._ctx.metadata.put(stored.put(now))
        return hits.events

    async def find(self, matcher: Matcher, view: StreamView) -> Found:
        """The offsets of matching events of the whole stream, as many as fit into one erasure. Changes nothing."""
        return await self._find(matcher, view, {}, lambda _: None)

    async def note_skipped(self, case: str, view: StreamView, skipped: str) -> None:
        """Record why some of the stream cannot be searched: a defect of the case."""
        stored = await self.load(case, view)
        now = replace(_record(stored), skipped=skipped)
        if now != stored.value:
            await self._ctx.metadata.put(stored.put(now))

    async def _find(
        self,
        matcher: Matcher,
        view: StreamView,
        searched: Searched,
        note: Callable[[int], None],
        *,
        within: Searched | None = None,
    ) -> Found:
        """Search the readable bytes that are not in ``searched``, and (``within``) only those, until the tail or until
        there are enough events for one erasure."""
        history = await self._ctx.histories.of(view)
        names = {segment: segment_name(view.name, segment) for segment in history.index.ids}
        infos = await self._ctx.segments.infos(list(names.values()))
        bounds: dict[SegmentId, Range] = {}
        for segment, name in names.items():
            info = infos.get(name)
            if info is not None:
                end = info.length if within is None else within.get(segment, (0, 0))[1]
                bounds[segment] = info.start_offset, max(info.start_offset, end)
        found = Found({segment: item for segment, item in searched.items() if segment in bounds}, bounds)
        matches = matcher.matcher()
        for segment, gaps in unsearched(searched, bounds).items():
            for gap in gaps:
                await self._look(matches, names[segment], segment, gap, found, note)
                if found.is_full:
                    return found
        return found

    async def _look(
        self,
        matches: Callable[[bytes], bool],
        name: str,
        segment: SegmentId,
        gap: Range,
        found: Found,
        note: Callable[[int], None],
    ) -> None:
        """Search one gap of one segment."""
        start, end = gap
        reached = start
        try:
            async for offset, data, bounds in blocks_of(self._ctx.segments, name, start, end):
                hits = _hits(matches, name, offset, data, bounds, found)
                if hits:
                    found.positions.setdefault(segment, []).extend(hits)
                reached = offset + bounds[-1]
                note(bounds[-1])
                await asyncio.sleep(0)
                if found.events >= EVENTS_MAX:
                    break
        except SegmentNotFoundError:
            return  # Deleted meanwhile, with its events.
        except TruncatedError as error:
            raise UnavailableError("stream was truncated during the search", segment=name) from error
        except NotEventsError as error:
            found.skipped = f"{name} holds bytes that are no events, from {error.fields.get('offset', reached)}"
            reached = end
        if reached > start:
            found.reached = extended(found.reached, segment, (start, reached))

    async def _ask(self, case: Case, view: StreamView, stored: Stored[CaseStreamRecord], hits: Found) -> bool:
        """Record which erasure follows, then ask for it; False: the case has ended meanwhile, and nothing was asked.

        A crash in between leaves an id that nobody knows.
        """
        ctx, record = self._ctx, _record(stored)
        erasure = erasure_id(case.id, view.name, record.rounds + 1)
        skipped = hits.skipped or record.skipped
        now = replace(record, pending=erasure, reached=hits.reached, rounds=record.rounds + 1, skipped=skipped)
        asked = {
            "erasure": erasure,
            "who": case.record.who,
            "why": case.record.why,
            "looked_for": {**case.matcher.looked_for(), "case": case.id},
        }
        async with ctx.locks.hold(asking(case.id)):
            current = await ctx.metadata.get(keys.case(case.id), CaseRecord)
            if current.value is None or current.value.state.is_final:
                return False
            await ctx.metadata.put(stored.put(now), TableCheck(key=current.key, version=current.version))
            await self._erasures.erase_for_case(view.name, asked, hits.positions, identity=case.record.identity)
        return True

    async def _settle(self, case: Case, view: StreamView, stored: Stored[CaseStreamRecord]) -> Sequence[CaseHold]:
        """Wait for the pending erasure. Returns the holds that defer it; none: it is done, or must be asked for again.

        Raises UnavailableError: it makes no progress.
        """
        record = _record(stored)
        state = await self._wait(record.pending)
        if state is not None and state.deferred is not UNSET:
            return holds_of_erasure(view.name, state)
        if state is None or state.receipt is None:
            # A crash came before the request was complete, or somebody has withdrawn it: search again.
            await self._ctx.metadata.put(stored.put(replace(record, pending="", reached=None)))
            return ()
        where: Mapping[str, Any] = state.receipt["where"]
        done = replace(
            record,
            pending="",
            reached=None,
            searched=record.reached or {},
            events=record.events + where["events"],
            bytes=record.bytes + where["bytes"],
            late=record.late + (where["events"] if case.record.performed_ms is not None else 0),
        )
        await self._ctx.metadata.put(stored.put(done))
        return ()

    async def _wait(self, erasure: str) -> Erasure | None:
        """The erasure once it is done, deferred or withdrawn; None: it does not exist or was never decided."""
        pause_s = _POLL_S
        while True:
            try:
                state = await self._erasures.get(erasure)
            except NotFoundError:
                return None
            if state.state == "gathering":
                return None
            if state.state != "asked":
                return state
            if state.tries is not UNSET and state.tries >= _TRIES:
                raise UnavailableError(
                    "an erasure of the case waits", erasure=erasure, cause=state.cause, waits_for=state.waits_for
                )
            await asyncio.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, 1.5 * pause_s)


def asking(case: str) -> str:
    """The lock under which a pass asks for an erasure, and a case ends."""
    return f"case-asking/{case}"


def _hits(
    matches: Callable[[bytes], bool], name: str, offset: int, data: bytes, bounds: Sequence[int], found: Found
) -> list[int]:
    """Where the matching events of a block begin. An event that cannot be searched is a defect of the search."""
    hits: list[int] = []
    for at, stop in pairwise(bounds):
        try:
            if matches(data[at + HEADER_BYTES : stop]):
                hits.append(offset + at)
        except UnsearchableEventError as error:
            found.skipped = f"{name} has an event at {offset + at} that cannot be searched: {error.message}"
    return hits


def partial_note(note: Note, phase: str, view: StreamView) -> Callable[[int], None]:
    return lambda size: note(phase, str(view.name), size)


def holds_of_erasure(stream: StreamName, state: Erasure) -> list[CaseHold]:
    """The holds that defer the erasure."""
    if state.deferred is UNSET:
        return []
    return [
        CaseHold(stream=str(stream), hold=item.hold, owner=item.owner, reason=item.reason, until_ms=item.until_ms)
        for item in state.deferred.holds
    ]


def _record(stored: Stored[CaseStreamRecord]) -> CaseStreamRecord:
    if stored.value is None:
        raise NotFoundError("no such record of a case", key=stored.key[:80])
    return stored.value
