"""Verification of a receipt: a scan with reads that any client may make. Source: docs/how-to/erasure.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from penstock.client.retry import retrying
from penstock.core.segments.erasure import Digests, Range, clipped, size_of
from penstock.core.segments.erasure_receipt import digest_of, positions_digest, ranges_digest
from penstock.model.errors import SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import READ_MAX_BYTES, Segments
from penstock.ports.rng import Rng

_CLOCK_JUMP_MS = 3_600_000

Progress: TypeAlias = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of a scan. ``problems``: why the receipt does not hold; empty if it holds. ``notes``: what could not
    be checked, and why. The byte count is of bytes read."""

    erasure: str
    problems: Sequence[str] = ()
    notes: Sequence[str] = ()
    events: int = 0
    chunks: int = 0
    bytes: int = 0
    receipt: Mapping[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether the scan has found no problem."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """The result as ``penstock erase verify --json`` prints it, without the receipt."""
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


@dataclass(slots=True, kw_only=True)
class Lists:
    """The lists whose digests a receipt holds: blanked ranges and starts of events by segment; rewritten chunks."""

    ranges: dict[SegmentId, Sequence[Range]] = field(default_factory=dict)
    offsets: dict[SegmentId, list[int]] = field(default_factory=dict)
    chunks: list[Mapping[str, Any]] = field(default_factory=list)


class Scan:
    def __init__(
        self,
        segments: Segments,
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
        self.changed: list[str] = []
        """Places whose bytes no receipt explains."""
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

    def compare_lists(self, lists: Lists) -> None:
        receipt_digests = {item["segment"]: item["ranges_sha256"] for item in self._receipt["where"]["segments"]}
        if receipt_digests != {segment: ranges_digest(own) for segment, own in lists.ranges.items()}:
            self.problems.append("the list of positions does not match its digest in the receipt")
        if self._receipt["chunks"] != {"count": len(lists.chunks), "sha256": digest_of(list(lists.chunks))}:
            self.problems.append("the list of chunks does not match its digest in the receipt")
        request = self._receipt.get("request")
        if request is not None:
            count, digest = positions_digest(lists.offsets)
            if (request["events"], request["positions_sha256"]) != (count, digest):
                self.problems.append("the list of positions does not match the request")

    def note_deleted(self, segment: SegmentId, ranges: Sequence[Range]) -> None:
        self._notes.append(
            f"segment {segment} was deleted: its {len(ranges)} events with {size_of(ranges)} bytes cannot be read"
        )

    async def look_at(
        self, chunk: Mapping[str, Any], ranges: Sequence[Range], others: Sequence[Mapping[str, Any]]
    ) -> None:
        """Check one chunk of the receipt. ``others``: the chunks of other erasures that overlap it, from ``chunks_of``."""
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
            self._notes.append(f"{place}: truncated up to {first} since; the rest is blank where it must be")
        elif (digests.all.hex(), digests.kept.hex()) == (chunk["sha256_after"], chunk["sha256_kept"]):
            return
        else:
            self._follow(chunk, digests.all.hex(), place, others)

    def _follow(self, chunk: Mapping[str, Any], actual: str, place: str, others: Sequence[Mapping[str, Any]]) -> None:
        """The bytes do not match the receipt: another erasure must have rewritten the chunk since."""
        if rewritten(chunk, others) == actual:
            return
        names = ", ".join(dict.fromkeys(str(item["erasure"]) for item in others if item["is_later"]))
        if names:
            self._notes.append(f"{place}: later erasures rewrote this chunk: {names}; verify those too")
        else:
            self.changed.append(place)

    def explain_changes(self, unfinished: Sequence[str]) -> None:
        """Report the places whose bytes have changed. ``unfinished``: erasures that were under way during the scan."""
        for place in self.changed:
            if unfinished:
                names = ", ".join(unfinished)
                self._notes.append(
                    f"{place}: erasures under way may have rewritten this chunk: {names}; verify again later"
                )
            else:
                self.problems.append(f"{place}: bytes that the receipt does not cover have changed")

    async def look_at_blanks(self, segment: SegmentId, ranges: Sequence[Range]) -> None:
        """Check ranges that an earlier erasure blanked. Ranges near each other are read together."""
        truncated = 0
        for group in _near(ranges):
            digests = Digests(group)
            start, end = group[0][0], group[-1][1]
            first = await self._show(segment, start, end, digests)
            truncated += sum(first is None or one < first for one, _ in group)
            if not digests.is_blank:
                self.problems.append(f"segment {segment} from {start} to {end}: events of the receipt are not blank")
        if truncated:
            self._notes.append(f"segment {segment}: {truncated} events were truncated later and cannot be read")

    async def _show(self, segment: SegmentId, start: int, end: int, digests: Digests) -> int | None:
        """Feed the readable bytes to the digests; return where they begin, None if nothing can be read."""
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
                self.problems.append(f"segment {segment} ends at {at} instead of {end}: bytes are lost")
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


def _near(ranges: Sequence[Range]) -> list[list[Range]]:
    """Group ordered ranges so that one read covers each group. A longer range is a group of its own."""
    groups: list[list[Range]] = []
    for item in ranges:
        if groups and item[1] - groups[-1][0][0] <= READ_MAX_BYTES:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


def first_of(chunks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The first entry of each place. Receipts of earlier versions have several if a chunk was rewritten twice."""
    return list({(item["segment"], item["start"], item["end"]): item for item in reversed(chunks)}.values())[::-1]


def repeated(chunks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries that ``first_of`` skips."""
    first = {id(item) for item in first_of(chunks)}
    return chunks_of(None, [item for item in chunks if id(item) not in first], later=False)


def chunks_of(erasure: str | None, chunks: Sequence[Mapping[str, Any]], *, later: bool) -> list[Mapping[str, Any]]:
    """The chunks of a list with the erasure that rewrote them. ``later``: it may have done so after the verified one."""
    return [{**item, "erasure": erasure, "is_later": later} for item in chunks]


def is_later(receipt: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the other erasure was not over yet when this one was requested. Erasures that run at the same time may rewrite
    a chunk in another order than they get their receipts."""
    return bool(other["sequence"] > receipt["sequence"] or other["finished_ms"] >= receipt["asked_ms"])


def may_be_later(receipt: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """As ``is_later``, if a clock may have jumped by an hour between the two."""
    return bool(other["sequence"] > receipt["sequence"] or other["finished_ms"] >= receipt["asked_ms"] - _CLOCK_JUMP_MS)


def rewritten(chunk: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    """The digest of the bytes of a chunk after all that the entries of others show, in whatever order these are.

    An entry counts if it has the same bounds, and found the bytes as the entry before has left them.
    """
    now = str(chunk["sha256_after"])
    left = [item for item in others if (item["start"], item["end"]) == (chunk["start"], chunk["end"])]
    while (found := next((item for item in left if item["sha256_before"] == now), None)) is not None:
        left.remove(found)
        now = str(found["sha256_after"])
    return now


def overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["segment"] == other["segment"] and one["start"] < other["end"] and other["start"] < one["end"])
