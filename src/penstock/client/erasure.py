"""Erasure as users meet it: blanking events, receipts, and the proof by a scan that everybody can make."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from penstock.client.blocks import Event
from penstock.client.retry import retrying
from penstock.codec.erasure_records import ErasurePartRecord
from penstock.core.erasure import Digests, Range, clipped, joined, without
from penstock.core.erasure_receipt import chain_problems, digest_of, plain, ranges_digest
from penstock.model.errors import InvalidArgumentError, SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.controller_service import ControllerService
from penstock.ports.rng import Rng
from penstock.ports.segment_service import READ_MAX_BYTES, SegmentService

Positions: TypeAlias = Mapping[SegmentId, Iterable[int]] | Iterable[Event | tuple[int, int]]
"""Where events begin: offsets by segment, or events as they were read, or pairs of segment and offset."""

Progress: TypeAlias = Callable[[Mapping[str, Any]], None]

_PAGE = 2000
"""Positions of one call: in the worst case each is in a block of its own, which is read to find where its event ends."""

_POLL_S = 0.1
_POLL_MAX_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a scan has found. ``problems``: why the receipt is not true; empty where it is. ``notes``: what could not be
    looked at, and why. Bytes are those read."""

    erasure: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    events: int = 0
    chunks: int = 0
    bytes: int = 0
    receipt: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        return {
            "erasure": self.erasure,
            "holds": self.holds,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "events": self.events,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "sha256": self.receipt.get("sha256"),
        }


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
            "positions are events, pairs of segment and offset, or offsets by segment", reason=str(error)
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

    def __init__(
        self, stream: StreamName | None, segments: SegmentService, controller: ControllerService, rng: Rng
    ) -> None:
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
        """Blank the events that begin at the positions, and return the receipt. See ``client.blocking.Stream.erase``."""
        if self._stream is None:
            raise InvalidArgumentError("an erasure is of one stream")
        stream, controller = self._stream, self._controller
        chosen = erasure or self._rng.uuid().hex
        wanted = by_segment(positions)
        told = plain(looked_for or {"by": "positions"}, field="looked_for")
        asked = {"erasure": chosen, "who": who, "why": why, "looked_for": told}
        pages = pages_of(wanted)
        sums: dict[str, Any] = {"stream": str(stream), "state": "dry run", "events": 0, "bytes": 0}
        state: Mapping[str, Any] = {}
        for number, page in enumerate(pages):
            last = number == len(pages) - 1
            call = _call(controller, stream, asked, page, number, last=last, dry_run=dry_run)
            state = await retrying(call, self._rng)
            for name in ("events", "bytes"):
                sums[name] += state.get(name, 0)
            if progress is not None:
                progress({"state": state["state"], "pages": number + 1, "of": len(pages)})
            if not dry_run and state["state"] != "gathering":
                break  # Decided, perhaps by an earlier call.
        if dry_run:
            return {**sums, "segments": len(wanted)}
        return await self.wait(chosen, progress=progress)

    async def wait(self, erasure: str, *, progress: Progress | None = None) -> Mapping[str, Any]:
        """The receipt of an erasure that was asked for, once it is done. Cancelled: it goes on. Raises NotFoundError."""
        pause_s = _POLL_S
        while True:
            state = await retrying(lambda: self._controller.erasure(erasure), self._rng)
            if state["receipt"] is not None:
                found: Mapping[str, Any] = state["receipt"]
                return found
            if state["state"] == "gathering":
                raise InvalidArgumentError("erasure was never decided: its last page is missing", erasure=erasure)
            if progress is not None:
                progress(state)
            await asyncio.sleep(pause_s)
            pause_s = min(_POLL_MAX_S, 1.5 * pause_s)

    async def list(self) -> Sequence[Mapping[str, Any]]:
        """Erasures with their receipts, in the order of the chain; those under way last."""
        return await self._controller.erasures(self._stream)

    async def show(self, erasure: str) -> Mapping[str, Any]:
        """One erasure: who asked for what, how it stands, its receipt. Raises NotFoundError."""
        return await self._controller.erasure(erasure)

    async def details(self, erasure: str) -> tuple[dict[SegmentId, Sequence[Range]], Sequence[Mapping[str, Any]]]:
        """The lists behind the digests of a receipt: blanked ranges by segment, and what was made of each chunk."""
        ranges: dict[SegmentId, Sequence[Range]] = {}
        chunks: list[Mapping[str, Any]] = []
        number, count = 0, 1
        while number < count:
            part = await retrying(_part(self._controller, erasure, number), self._rng)
            count = int(part["parts"])
            if "positions" in part:
                record = ErasurePartRecord.of(part["positions"])
                ranges[record.segment] = joined(ranges.get(record.segment, ()), record.ranges)
            if "chunks" in part:
                chunks += part["chunks"]["chunks"]
            number += 1
        return ranges, chunks

    async def verify(self, erasure: str, *, progress: Progress | None = None) -> Verification:
        """Read what the receipt speaks of, and compare: every listed event is blank, and no other byte has changed.

        Trusts the store with nothing but the bytes that it serves to everybody. Raises NotFoundError, CorruptDataError.
        """
        state = await self.show(erasure)
        receipt = state["receipt"]
        if receipt is None:
            return Verification(erasure=erasure, problems=[f"there is no receipt: the erasure is {state['state']}"])
        everything = [item["receipt"] for item in await self._controller.erasures(None) if item["receipt"] is not None]
        scan = _Scan(self._segments, self._rng, StreamName.parse(state["stream"]), receipt, progress)
        scan.problems += chain_problems(everything)
        if receipt not in everything:
            scan.problems.append("the receipt is not in the chain of receipts")
        ranges, chunks = await self.details(erasure)
        scan.compare_lists(ranges, chunks)
        later = await self._later(receipt, everything)
        seen: dict[SegmentId, list[Range]] = {}
        for chunk in chunks:
            over = [item for item in later if _overlap(item, chunk)]
            segment = SegmentId(chunk["segment"])
            seen.setdefault(segment, []).append((chunk["start"], chunk["end"]))
            await scan.look_at(chunk, ranges.get(segment, ()), over)
        for segment, own in ranges.items():
            await scan.look_at_blanks(segment, without(own, joined(seen.get(segment, ()))))
        return scan.result(erasure)

    async def _later(
        self, receipt: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        """What later erasures have made of chunks of the same stream, oldest first."""
        found: list[Mapping[str, Any]] = []
        for other in receipts:
            if other["stream"] == receipt["stream"] and other["sequence"] > receipt["sequence"]:
                _, chunks = await self.details(other["erasure"])
                found += [{**item, "erasure": other["erasure"]} for item in chunks]
        return found


class _Scan:
    def __init__(
        self,
        segments: SegmentService,
        rng: Rng,
        stream: StreamName,
        receipt: Mapping[str, Any],
        progress: Progress | None,
    ) -> None:
        self._segments = segments
        self._rng = rng
        self._stream = stream
        self._receipt = receipt
        self._progress = progress
        self.problems: list[str] = []
        self._notes: list[str] = []
        self._chunks = 0
        self._bytes = 0

    def result(self, erasure: str) -> Verification:
        return Verification(
            erasure=erasure,
            problems=self.problems,
            notes=self._notes,
            events=self._receipt["where"]["events"],
            chunks=self._chunks,
            bytes=self._bytes,
            receipt=self._receipt,
        )

    def compare_lists(self, ranges: Mapping[SegmentId, Sequence[Range]], chunks: Sequence[Mapping[str, Any]]) -> None:
        told = {item["segment"]: item["ranges_sha256"] for item in self._receipt["where"]["segments"]}
        if told != {segment: ranges_digest(own) for segment, own in ranges.items()}:
            self.problems.append("the list of positions is not the one that the receipt has the digest of")
        if self._receipt["chunks"] != {"count": len(chunks), "sha256": digest_of(list(chunks))}:
            self.problems.append("the list of chunks is not the one that the receipt has the digest of")

    async def look_at(
        self, chunk: Mapping[str, Any], ranges: Sequence[Range], later: Sequence[Mapping[str, Any]]
    ) -> None:
        segment, start, end = SegmentId(chunk["segment"]), int(chunk["start"]), int(chunk["end"])
        own = clipped(ranges, start, end)
        digests = Digests(own)
        place = f"segment {segment} from {start} to {end}"
        first = await self._show(segment, start, end, digests)
        self._chunks += 1
        if not digests.is_blank:
            self.problems.append(f"{place}: events of the receipt are not blank")
        if first is None:
            self._notes.append(f"{place}: truncated or deleted since")
        elif first > start:
            self._notes.append(f"{place}: truncated since up to {first}; what is left is blank where it must be")
        elif (digests.all.hex(), digests.kept.hex()) == (chunk["sha256_after"], chunk["sha256_kept"]):
            return
        elif later:
            now = chunk["sha256_after"]
            for item in later:
                if (item["start"], item["end"], item["sha256_before"]) == (start, end, now):
                    now = item["sha256_after"]
            if now != digests.all.hex():
                names = ", ".join(dict.fromkeys(str(item["erasure"]) for item in later))
                self._notes.append(f"{place}: erased further since, by {names}; verify those")
        else:
            self.problems.append(f"{place}: other bytes than those of the receipt have changed")

    async def look_at_blanks(self, segment: SegmentId, ranges: Sequence[Range]) -> None:
        """Ranges that an earlier erasure had blanked already."""
        for start, end in ranges:
            digests = Digests([(start, end)])
            if await self._show(segment, start, end, digests) is None:
                self._notes.append(f"segment {segment} from {start} to {end}: truncated or deleted since")
            if not digests.is_blank:
                self.problems.append(f"segment {segment} from {start} to {end}: not blank")

    async def _show(self, segment: SegmentId, start: int, end: int, digests: Digests) -> int | None:
        """Show the digests what can be read; returns from where on, None where nothing can."""
        name = segment_name(self._stream, segment)
        at, first = start, start
        while at < end:
            try:
                parts = await self._read(name, at, min(READ_MAX_BYTES, end - at))
            except TruncatedError as error:
                at = first = max(at + 1, error.start_offset)
                continue
            except SegmentNotFoundError:
                return None
            if not any(parts):
                self.problems.append(f"segment {segment} ends at {at}, before {end}: bytes of it are lost")
                break
            for part in parts:
                digests.show(memoryview(part), at)
                at += len(part)
                self._bytes += len(part)
            if self._progress is not None:
                self._progress({"state": "verifying", "bytes": self._bytes})
        return first if first < end else None

    async def _read(self, name: str, offset: int, size: int) -> Sequence[bytes]:
        found = await retrying(lambda: self._segments.read(name, offset, size, wait=False), self._rng)
        return [bytes(part) for part in found.parts]


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["segment"] == other["segment"] and one["start"] < other["end"] and other["start"] < one["end"])


def _call(
    controller: ControllerService,
    stream: StreamName,
    asked: Mapping[str, Any],
    page: Mapping[SegmentId, Sequence[int]],
    number: int,
    *,
    last: bool,
    dry_run: bool,
) -> Callable[[], Any]:
    return lambda: controller.erase(stream, asked, page, page=number, last=last, dry_run=dry_run)


def _part(controller: ControllerService, erasure: str, number: int) -> Callable[[], Any]:
    return lambda: controller.erasure_part(erasure, number)
