"""The erasure feed: one event for each receipt, in the order of the receipts, for consumers of derived data.

The event number of an append is the number of its receipt, under one writer id. So the stream itself shows which receipts
it has, and each is appended exactly once, whatever a crash has interrupted. An erasure never waits for the feed: what
cannot be appended now is appended in a later sweep. Source: docs/formats/erasure-feed.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from penstock.codec.control.cases import CaseRecord, CaseStreamRecord
from penstock.codec.control.erasures import ErasureChainRecord, ErasurePartRecord, ErasureRecord
from penstock.codec.control.streams import CounterRecord
from penstock.codec.erasure_feed import FeedEvent, encode_feed_event
from penstock.codec.events import frame_events
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.erasure.parts import Parts
from penstock.controller.erasure.tables import ErasedTables
from penstock.controller.evidence.record_streams import CreateStream, ensure_record_stream
from penstock.controller.metadata import overwrite
from penstock.controller.set_aside import UNREADABLE
from penstock.controller.streams.restored import renew_segments
from penstock.core.cases.feed import case_of, feed_event, is_listed, is_of_case
from penstock.core.segments.writer_memory import FIXED_IDS
from penstock.model.answers.erasure import ErasureTable
from penstock.model.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    PenstockError,
    SegmentNotFoundError,
    SegmentSealedError,
    WriterFencedError,
)
from penstock.model.names import ERASURE_FEED, StreamName, segment_name
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.tables import KEY_ABSENT

log = logging.getLogger(__name__)

WRITER = UUID(int=FIXED_IDS << 64 | 0x66_65_65_64_00_00_00_01)
_BATCH_EVENTS = 10  # events of one append: 640 KiB at most
_TRIES = 8  # appends lost to other controllers, or to seals, before a run gives up
_MALFORMED = (LookupError, TypeError, ValueError, InvalidArgumentError, *UNREADABLE)


class ErasureFeed:
    """Writes ``_system/erasures``. All parts are borrowed. At most one run at a time."""

    def __init__(self, ctx: Context, parts: Parts, tables: ErasedTables) -> None:
        self._ctx = ctx
        self._parts = parts
        self._tables = tables
        self._create: CreateStream | None = None
        self._asked = False
        self._written = 0
        """Receipts that this process knows to be in the feed."""
        self._ids: dict[int, str] = {}
        """Erasures by the number of their receipt, of those that are not written yet."""

    async def start(self, create_stream: CreateStream, *, now: bool) -> None:
        """Start; ``now``: create the stream at once, so that readers can wait for its first event, else with it.

        The store starts whatever state the stream is in.
        """
        self._create = create_stream
        try:
            if now:
                await self._ensure()
        except PenstockError as error:
            log.warning("erasure feed cannot be used yet", extra={"error": str(error)})

    def soon(self) -> None:
        """Append what is missing, in the background. Many calls cause at most one further run after the current one."""
        if not self._asked:
            self._asked = True
            self._ctx.tasks.start_own(self._run_quietly())

    async def _run_quietly(self) -> None:
        try:
            await self.run()
        except Exception as error:
            # Any error: an erasure must not notice it, and the next sweep tries again.
            log.warning(
                "receipts wait for their append to the erasure feed",
                extra={"error": str(error)},
                exc_info=None if isinstance(error, PenstockError | OSError) else error,
            )

    async def run(self) -> int:
        """Append the events of all receipts that the feed lacks; returns how many. Raises storage errors; cancelled or
        failed, the next run continues."""
        ctx, count = self._ctx, 0
        async with ctx.locks.hold("erasure-feed"):
            # From here on this run may miss new receipts.
            self._asked = False
            chain = (await ctx.metadata.get(keys.ERASURE_CHAIN, ErasureChainRecord)).value
            if chain is None or chain.sequence <= self._written:
                return 0
            await self._ensure()
            self._ids = {chain.sequence: chain.erasure}
            while self._written < chain.sequence:
                count += await self._append(chain.sequence)
                await self._note()
            self._ids.clear()
        return count

    async def _ensure(self) -> None:
        if self._create is not None:
            await ensure_record_stream(self._ctx.metadata, ERASURE_FEED, self._create, self._ctx.settings)
            self._create = None

    async def _note(self) -> None:
        """Record the number that was reached, for the time after all segments with events were truncated."""
        found = await self._ctx.metadata.get(keys.ERASURE_FEED, CounterRecord)
        if found.value is None or found.value.value < self._written:
            await self._ctx.metadata.put(overwrite(keys.ERASURE_FEED, CounterRecord(value=self._written)))

    # --- the stream ---------------------------------------------------------------------------------------

    async def _append(self, end: int) -> int:
        """Append the next few events, up to the receipt ``end``; returns how many. Zero: others have written them."""
        ctx = self._ctx
        for left in range(_TRIES, 0, -1):
            segment, previous = await self._tail()
            last = previous if previous != NO_EVENT else await self._last_before()
            numbers = range(last + 1, min(end, last + _BATCH_EVENTS) + 1)
            if not numbers:
                self._written = last
                return 0
            events = [await self._event(number) for number in numbers]
            request = Append(
                segment=segment,
                writer=WRITER,
                data=frame_events(events),
                event_number=numbers[-1],
                event_count=len(events),
                previous=previous,
            )
            try:
                await ctx.segments.append(request)
            except (WriterFencedError, ConditionFailedError):
                # Another controller has appended meanwhile.
                if left == 1:
                    raise
            except SegmentSealedError:
                if left == 1 or not await renew_segments(ctx, ERASURE_FEED):
                    raise
            else:
                self._written = numbers[-1]
                return len(events)
        return 0

    async def _tail(self) -> tuple[str, int]:
        """The segment that takes events, and the last receipt in it or ``NO_EVENT``."""
        history = await self._ctx.histories.remaining(await self._ctx.streams.get(ERASURE_FEED))
        segment = segment_name(ERASURE_FEED, history.active.segments[0].segment)
        return segment, await self._ctx.segments.setup_append(segment, WRITER)

    async def _last_before(self) -> int:
        """The last receipt in the feed, for a new segment without events: that of the segments before it. If those were
        truncated, the recorded number."""
        ctx, last = self._ctx, NO_EVENT
        history = await ctx.histories.remaining(await ctx.streams.get(ERASURE_FEED))
        for segment in history.index.ids:
            try:
                last = max(last, await ctx.segments.setup_append(segment_name(ERASURE_FEED, segment), WRITER))
            except SegmentNotFoundError:
                continue
        if last != NO_EVENT:
            return last
        noted = (await ctx.metadata.get(keys.ERASURE_FEED, CounterRecord)).value
        return 0 if noted is None else noted.value

    # --- the events ---------------------------------------------------------------------------------------

    async def _event(self, number: int) -> bytes:
        """The event of a receipt. If its records cannot be read, the event has what is known."""
        ctx = self._ctx
        if number not in self._ids:
            await self._find_ids(number)
        erasure = self._ids.get(number)
        if erasure is None:
            log.error("the erasure of a receipt cannot be read; the feed names its number only", extra={"n": number})
            return encode_feed_event(FeedEvent(n=number))
        (entry,) = await ctx.metadata.entries([keys.erasure(erasure)])
        record = None if entry.version == KEY_ABSENT else ctx.set_aside.read(entry, ErasureRecord)
        try:
            if record is not None:
                return encode_feed_event(await self._full(number, erasure, record))
        except _MALFORMED as error:
            log.error("records of an erasure cannot be read", extra={"erasure": erasure, "error": str(error)})
        return encode_feed_event(FeedEvent(n=number, erasure=erasure))

    async def _full(self, number: int, erasure: str, record: ErasureRecord) -> FeedEvent:
        return feed_event(
            number,
            record,
            parts=await self._positions(erasure, record),
            tables=await self._tables_of(record),
            case=await self._case(erasure, record),
            key=self._ctx.settings.erasure_key,
        )

    async def _find_ids(self, first: int) -> None:
        """Find the erasures of the receipts from a number on."""
        ctx = self._ctx
        async for entry in ctx.metadata.scan_all(keys.ERASURES):
            erasure = ctx.set_aside.text(entry, keys.ERASURES)
            record = None if erasure is None else ctx.set_aside.read(entry, ErasureRecord)
            number = 0 if record is None or record.receipt is None else int(record.receipt["sequence"])
            if erasure is not None and number >= first:
                self._ids[number] = erasure

    async def _positions(self, erasure: str, record: ErasureRecord) -> Sequence[ErasurePartRecord] | None:
        if record.receipt is None or not is_listed(record.receipt):
            return None
        try:
            return await self._parts.of_run(erasure, record.run)
        except UNREADABLE:
            return None

    async def _tables_of(self, record: ErasureRecord) -> Sequence[ErasureTable] | None:
        try:
            return await self._tables.of(record)
        except UNREADABLE:
            return None

    async def _case(self, erasure: str, record: ErasureRecord) -> tuple[str, CaseRecord] | None:
        """The case that has asked for the erasure."""
        ctx, case, stream = self._ctx, case_of(record), StreamName.parse(record.stream)
        if case is None:
            return None
        of_case, of_stream = await ctx.metadata.entries([keys.case(case), keys.case_stream(case, stream)])
        if KEY_ABSENT in (of_case.version, of_stream.version):
            return None
        found = ctx.set_aside.read(of_case, CaseRecord)
        searched = ctx.set_aside.read(of_stream, CaseStreamRecord)
        return (case, found) if found is not None and is_of_case(case, erasure, stream, searched) else None
