"""The erasure API: blank events, fetch receipts, and verify them by a scan that any client can run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec import UNSET, structs

from penstock.client.erasure_proof import (
    Lists,
    Progress,
    Scan,
    Verification,
    chunks_of,
    first_of,
    is_later,
    may_be_later,
    overlap,
    repeated,
)
from penstock.client.reading.blocks import Event
from penstock.client.retry import retrying
from penstock.codec.answers import as_json
from penstock.codec.control.erasures import ErasurePartRecord
from penstock.core.segments.erasure import Range, joined, without
from penstock.core.segments.erasure_receipt import BY_POSITIONS, chain_problems, plain, positions_digest
from penstock.model.answers.erasure import Erasure, ErasureDeferral, ErasurePreview
from penstock.model.errors import (
    AlreadyExistsError,
    ErasureDeferredError,
    ErasureWaitsError,
    ErasureWithdrawnError,
    InvalidArgumentError,
    NotFoundError,
    SegmentNotFoundError,
    StorageFullError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

Positions: TypeAlias = Mapping[SegmentId, Iterable[int]] | Iterable[Event | tuple[int, int]]
"""Where events begin: offsets by segment, or events as they were read, or pairs of segment and offset."""

_PAGE = 2000
"""Positions of one call: in the worst case each is in a block of its own, which is read to find where its event ends."""

_TRIES = 5
"""Failed attempts after which a run reports what the erasure waits for: about 3 s, as the pauses double from 0.2 s."""

_POLL_S = 0.1
_POLL_MAX_S = 2.0


def deferred_error(erasure: str, deferred: ErasureDeferral) -> ErasureDeferredError:
    """The error for an erasure in the state ``deferred``."""
    first = deferred.holds[0]
    return ErasureDeferredError(
        "a hold defers the erasure; it continues by itself when no hold covers its events",
        erasure=erasure,
        hold=first.hold,
        owner=first.owner,
        reason=first.reason,
        holds=deferred.count,
        since_ms=deferred.since_ms,
    )


def _check_it_goes_on(state: Erasure) -> None:
    """Raises ErasureDeferredError or ErasureWaitsError if the erasure waits for something that a person must change."""
    if state.deferred is not UNSET:
        raise deferred_error(state.erasure, state.deferred)
    if state.tries is not UNSET and state.tries >= _TRIES and state.cause != "unavailable":
        raise ErasureWaitsError(
            "the erasure is decided and cannot be performed yet; the store goes on trying",
            erasure=state.erasure,
            cause=state.cause,
            waits_for=state.waits_for,
            tries=state.tries,
        )


def by_segment(positions: Positions) -> dict[SegmentId, list[int]]:
    """Distinct offsets of each segment, in order. Raises InvalidArgumentError."""
    found: dict[SegmentId, dict[int, None]] = {}
    try:
        if isinstance(positions, Mapping):
            for segment, offsets in positions.items():
                found[SegmentId(int(segment))] = dict.fromkeys(int(offset) for offset in offsets)
        else:
            for item in positions:
                number, offset = (item.segment, item.offset) if isinstance(item, Event) else item
                found.setdefault(SegmentId(int(number)), {})[int(offset)] = None
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "positions cannot be read; give events, pairs (segment, offset), or a dict of offsets by segment",
            reason=str(error),
        ) from error
    return {segment: sorted(offsets) for segment, offsets in sorted(found.items()) if offsets}


def pages_of(positions: Mapping[SegmentId, Sequence[int]], size: int = _PAGE) -> list[dict[SegmentId, Sequence[int]]]:
    """The positions in pages of at most ``size``; at least one page, which may be empty."""
    pages: list[dict[SegmentId, Sequence[int]]] = []
    room = 0
    for segment, offsets in positions.items():
        at = 0
        while at < len(offsets):
            if not room:
                pages.append({})
                room = size
            part = offsets[at : at + room]
            pages[-1][segment] = part
            at, room = at + len(part), room - len(part)
    return pages or [{}]


class AsyncErasures:
    """Erasures of one stream, or (``stream=None``) all of the store."""

    def __init__(self, stream: StreamName | None, segments: SegmentService, controller: ControlPlane, rng: Rng) -> None:
        self._stream = stream
        self._segments = segments
        self._controller = controller
        self._rng = rng

    async def run(
        self,
        positions: Positions,
        *,
        who: str,
        why: str,
        erasure: str | None = None,
        looked_for: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Mapping[str, Any]:
        """Blank the events that begin at the positions, and return the receipt. See ``blocking.stores.Stream.erase``."""
        if self._stream is None:
            raise InvalidArgumentError("an erasure needs a stream; call it on a stream")
        stream, controller = self._stream, self._controller
        chosen = erasure or self._rng.uuid().hex
        wanted = by_segment(positions)
        description = plain(looked_for or {"by": BY_POSITIONS}, field="looked_for")
        events, digest = positions_digest(wanted)
        # Each run has its own token: pages of two runs of one id never mix, and only a complete set of pages is decided.
        run = {"attempt": self._rng.uuid().hex, "events": events, "positions_sha256": digest}
        asked = {"erasure": chosen, "who": who, "why": why, "looked_for": description, "run": run}
        pages = pages_of(wanted)

        if dry_run:
            if not events and not looked_for:
                raise InvalidArgumentError("an erasure without positions would blank nothing", field="positions")
            return as_json(await self._preview(stream, pages, len(wanted), progress))

        async def send(number: int) -> Erasure:
            last = number == len(pages) - 1
            call = partial(controller.erasures.erase, stream, asked, pages[number], page=number, last=last)
            try:
                state = await retrying(call, self._rng)
            except StorageFullError as error:
                raise StorageFullError(
                    "no space to record the erasure; free space and repeat the call", erasure=chosen, reason=str(error)
                ) from error
            if progress is not None:
                progress({"state": state.state, "pages": number + 1, "of": len(pages)})
            return state

        await _send_all(send, len(pages), events, digest)
        return await self._receipt(chosen, progress, is_patient=False)

    async def _preview(
        self,
        stream: StreamName,
        pages: Sequence[Mapping[SegmentId, Sequence[int]]],
        segments: int,
        progress: Progress | None,
    ) -> ErasurePreview:
        """What all pages together would blank in so many segments."""
        found: list[ErasurePreview] = []
        for page in pages:
            found.append(await retrying(partial(self._controller.erasures.preview, stream, page), self._rng))
            if progress is not None:
                progress({"state": found[-1].state, "pages": len(found), "of": len(pages)})
        return ErasurePreview(
            stream=str(stream),
            events=sum(item.events for item in found),
            bytes=sum(item.bytes for item in found),
            segments=segments,
            holds=list({hold.hold: hold for item in found for hold in item.holds}.values()),
        )

    async def wait(self, erasure: str, *, progress: Progress | None = None) -> Mapping[str, Any]:
        """Wait until a requested erasure is done and return its receipt. Waits also while holds defer it or attempts
        fail.

        ``progress`` is called with each state until then. Interrupted or cancelled: the erasure continues. Raises
        NotFoundError, ErasureWithdrawnError.
        """
        return await self._receipt(erasure, progress, is_patient=True)

    async def withdraw(self, erasure: str, *, who: str, why: str) -> Erasure:
        """Withdraw an erasure that is not decided yet, because holds defer it or pages are missing; return its state.

        It has erased nothing, and its id cannot be used again. ``who`` and ``why`` are recorded. A repeated call changes
        nothing. Raises NotFoundError, ConflictError (it was decided: its events are erased), InvalidArgumentError.
        """
        return await retrying(lambda: self._controller.erasures.withdraw(erasure, who=who, why=why), self._rng)

    async def confirm_table(self, erasure: str, table: str, *, who: str, why: str) -> Erasure:
        """Record your statement that a table of a deleted stream has no rows of the erased events.

        ``table``: as in the erasure's ``tables``. Nothing verifies the statement: the table is then ``confirmed`` by you,
        and not ``done``. The receipt does not change. ``who`` and ``why`` are recorded. A repeated call changes nothing.
        Raises NotFoundError, ConflictError (the stream exists or can be restored: erase the rows with the job),
        InvalidArgumentError (there is no receipt yet, or no such table).
        """
        confirm = partial(self._controller.erasures.confirm_table, erasure, table, who=who, why=why)
        return await retrying(confirm, self._rng)

    async def _receipt(self, erasure: str, progress: Progress | None, *, is_patient: bool) -> Mapping[str, Any]:
        pause_s = _POLL_S
        while True:
            state = await retrying(lambda: self._controller.erasures.get(erasure), self._rng)
            if state.receipt is not None:
                return state.receipt
            if state.state == "gathering":
                raise InvalidArgumentError(
                    "the erasure has not begun: its last page of positions is missing; run the erasure again",
                    erasure=erasure,
                )
            if state.withdrawn is not UNSET:
                raise ErasureWithdrawnError(
                    "the erasure was withdrawn and erased nothing; use another id",
                    erasure=erasure,
                    **structs.asdict(state.withdrawn),
                )
            if not is_patient:
                _check_it_goes_on(state)
            if progress is not None:
                progress(as_json(state))
            await asyncio.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, 1.5 * pause_s)

    async def list(self) -> Sequence[Erasure]:
        """Erasures with their receipts, in the order of the chain; those under way last."""
        return await self._controller.erasures.list(self._stream)

    async def show(self, erasure: str) -> Erasure:
        """One erasure: the request, its state, and its receipt. Raises NotFoundError."""
        return await self._controller.erasures.get(erasure)

    async def details(self, erasure: str) -> tuple[dict[SegmentId, Sequence[Range]], Sequence[Mapping[str, Any]]]:
        """The lists behind the digests of a receipt: blanked ranges by segment, and the rewrite of each chunk."""
        lists = await self._lists(erasure)
        return lists.ranges, lists.chunks

    async def offsets(self, erasure: str) -> dict[SegmentId, Sequence[int]]:
        """The offsets at which the erased events begin, by segment, in order: for copies of the stream to erase their own.

        Raises NotFoundError.
        """
        lists = await self._lists(erasure)
        return {segment: sorted(offsets) for segment, offsets in lists.offsets.items()}

    async def _lists(self, erasure: str) -> Lists:
        lists = Lists()
        number, count = 0, 1
        while number < count:
            part = await retrying(partial(self._controller.erasures.part, erasure, number), self._rng)
            count = part.parts
            if part.positions is not UNSET:
                record = ErasurePartRecord.of(part.positions)
                lists.ranges[record.segment] = joined(lists.ranges.get(record.segment, ()), record.ranges)
                lists.offsets.setdefault(record.segment, []).extend(record.offsets)
            if part.chunks is not UNSET:
                lists.chunks += part.chunks.chunks
            number += 1
        return lists

    async def verify(self, erasure: str, *, progress: Progress | None = None) -> Verification:
        """Read the data that the receipt covers, and check that every listed event is blank and no other byte has
        changed.

        Relies only on bytes that the store serves to any client. ``progress`` is called with the
        bytes read so far. Raises NotFoundError, CorruptDataError.
        """
        try:
            state = await self.show(erasure)
        except NotFoundError as error:
            again = await self._again(erasure)
            if again is None:
                raise
            raise NotFoundError(
                "this store is a copy; it has repeated the erasure under another id; verify that one",
                erasure=erasure,
                repeated_as=again,
            ) from error
        receipt = state.receipt
        if receipt is None:
            return Verification(erasure=erasure, problems=[f"there is no receipt: the erasure is {state.state}"])
        everything = [item.receipt for item in await self._controller.erasures.list(None) if item.receipt is not None]
        scan = Scan(self._segments, self._rng, StreamName.parse(state.stream), receipt, progress)
        scan.problems += chain_problems(everything)
        if receipt not in everything:
            scan.problems.append("the receipt is not in the chain of receipts")
        lists = await self._lists(erasure)
        scan.compare_lists(lists)
        others = [*repeated(lists.chunks), *await self._others(receipt, everything)]
        seen: dict[SegmentId, list[Range]] = {}
        deleted = await self._deleted(StreamName.parse(state.stream), lists)
        for segment, own in lists.ranges.items():
            if segment in deleted:
                scan.note_deleted(segment, own)
        for chunk in first_of(lists.chunks):
            segment = SegmentId(chunk["segment"])
            if segment in deleted:
                continue
            over = [item for item in others if overlap(item, chunk)]
            seen.setdefault(segment, []).append((chunk["start"], chunk["end"]))
            await scan.look_at(chunk, lists.ranges.get(segment, ()), over)
        for segment, own in lists.ranges.items():
            if segment not in deleted:
                await scan.look_at_blanks(segment, without(own, joined(seen.get(segment, ()))))
        if scan.changed:
            scan.explain_changes(await self._unfinished(state.stream, everything))
        return scan.result(erasure)

    async def _again(self, erasure: str) -> str | None:
        """The id under which this copy of the store repeated an erasure of the original from a ledger."""
        for item in await self._controller.erasures.list(None):
            looked_for = item.asked.get("looked_for") or {}
            if (looked_for.get("by"), looked_for.get("erasure")) == ("ledger", erasure):
                return item.erasure
        return None

    async def _unfinished(self, stream: str, receipts: Sequence[Mapping[str, Any]]) -> Sequence[str]:
        """The erasures of the stream that were decided and had none of these receipts: they may rewrite chunks meanwhile."""
        found = await self._controller.erasures.list(StreamName.parse(stream))
        return [
            item.erasure
            for item in found
            if item.state in ("asked", "done") and (item.receipt is None or item.receipt not in receipts)
        ]

    async def _deleted(self, stream: StreamName, lists: Lists) -> set[SegmentId]:
        """The segments of the lists that no longer exist."""
        found: set[SegmentId] = set()
        for segment in {**lists.ranges, **{SegmentId(chunk["segment"]): None for chunk in lists.chunks}}:
            try:
                await retrying(_info(self._segments, segment_name(stream, segment)), self._rng)
            except SegmentNotFoundError:
                found.add(segment)
        return found

    async def _others(
        self, receipt: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """What other erasures have made of chunks of the same stream after this one, or at the same time."""
        found: list[Mapping[str, Any]] = []
        for other in receipts:
            own = other["sequence"] == receipt["sequence"]
            if not own and other["stream"] == receipt["stream"] and may_be_later(receipt, other):
                _, chunks = await self.details(other["erasure"])
                found += chunks_of(other["erasure"], chunks, later=is_later(receipt, other))
        return found


async def _send_all(send: Callable[[int], Awaitable[Erasure]], count: int, events: int, positions_sha256: str) -> None:
    """Send all pages, until this request is decided, or until an earlier decision is known to cover all of it.

    Raises AlreadyExistsError: the id belongs to another request; ``undecided``: number of events that it does not cover.
    """
    gathered: list[int] = []
    refused: dict[int, AlreadyExistsError] = {}
    waiting = deque(range(count))
    while waiting:
        number = waiting.popleft()
        try:
            state = await send(number)
        except AlreadyExistsError as error:
            if "undecided" not in error.fields:
                raise
            refused[number] = error
        else:
            if state.state in ("gathering", "requested"):
                gathered.append(number)
                continue
            if state.request is not None and state.request.positions_sha256 == positions_sha256:
                return
        # Another request was decided: pages that were sent before that are not compared with it yet.
        waiting.extend(gathered)
        gathered.clear()
    if refused:
        first = next(iter(refused.values()))
        total = sum(int(item.fields["undecided"]) for item in refused.values())
        raise AlreadyExistsError(first.message, **first.fields | {"undecided": total, "events": events}) from first


def _info(segments: SegmentService, name: str) -> Callable[[], Any]:
    return lambda: segments.info(name)
