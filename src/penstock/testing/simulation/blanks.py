"""Check erased events in what clients read. Each blank that a reader saw is replaced by the erased event, so that all
other checks work as usual. Reported as violations: a blank that was not requested, one of another length, and an erased
event that is visible again.

An erasure is described by the offsets of its events, and by the events. From the request on, readers may see the blank.
Until the receipt they may also see the event again, because the node may have died before the new chunk was named.
After the receipt they must not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from penstock.model.values.dataclass import dataclass
from penstock.testing.simulation.history import Anomaly, Erasure, History, Read, Reading

Place: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Erased:
    """One erased event: its bytes, from when on it may be blank, and from when on it must be."""

    data: bytes
    asked_s: float
    done_s: float | None = None
    names: list[str] = field(default_factory=list)

    def is_done_by(self, at_s: float) -> bool:
        return self.done_s is not None and self.done_s < at_s


def restored(history: History, found: list[Anomaly]) -> list[Reading]:
    """The readings with erased events in place of blanks. Adds anomalies to ``found``."""
    places = _places(history.erasures)
    if not places:
        # The blank is then an event that was never written: a phantom.
        return list(history.readings)
    return [_restored(reading, places, found) for reading in history.readings]


def _places(erasures: Sequence[Erasure]) -> Mapping[Place, _Erased]:
    known: dict[Place, _Erased] = {}
    for erasure in erasures:
        if erasure.refused:
            continue
        for place, data in erasure.events.items():
            item = known.setdefault(place, _Erased(data, erasure.asked_s))
            item.asked_s = min(item.asked_s, erasure.asked_s)
            item.names.append(erasure.name)
            if erasure.done_s is not None:
                item.done_s = erasure.done_s if item.done_s is None else min(item.done_s, erasure.done_s)
    return known


def _restored(reading: Reading, places: Mapping[Place, _Erased], found: list[Anomaly]) -> Reading:
    reads: list[Read] = []
    ends: dict[str, int] = dict.fromkeys(reading.segments, 0) | dict(reading.start) if reading.final else {}
    for read in reading.reads:
        if read.segment != reading.stream:
            # Readers of bytes see zeros. Our event readers skip them.
            reads += _passed_over(read.segment, ends.get(read.segment), read.offset, read.at_s, read.began_s, places)
        reads.append(_put_back(reading, read, places.get((read.segment, read.offset)), found))
        ends[read.segment] = read.offset + 8 + len(read.data)
    if reading.final:
        for segment, end in ends.items():
            if segment == reading.stream:
                continue
            reads += _passed_over(segment, end, None, float("inf"), 0.0, places)
    return replace(reading, reads=reads)


def _put_back(reading: Reading, read: Read, erased: _Erased | None, found: list[Anomaly]) -> Read:
    where = f"{reading.reader} at {read.segment} {read.offset}"
    if erased is None:
        if read.data and not any(read.data):
            found.append(Anomaly("blank", f"{where}: {len(read.data)} zeros without an erasure"))
        return read
    if read.data == erased.data:
        if erased.is_done_by(read.began_s):
            found.append(Anomaly("erased event is back", f"{where}: {read.data[:40]!r}, erased by {erased.names}"))
        return read
    if len(read.data) != len(erased.data) or any(
        byte not in (0, old) for byte, old in zip(read.data, erased.data, strict=True)
    ):
        return read
    if read.at_s < erased.asked_s:
        found.append(Anomaly("blank", f"{where}: {len(read.data)} zeros before the erasure was requested"))
    elif read.segment != reading.stream:
        found.append(Anomaly("blank", f"{where}: a reader of ours shows the zeros of an erased event"))
    elif any(read.data) and erased.is_done_by(read.began_s):
        found.append(Anomaly("erased event is back", f"{where}: in part, {read.data[:40]!r}, erased by {erased.names}"))
    # A reader of bytes may see one part from before the erasure and one from after it.
    return replace(read, data=erased.data)


def _passed_over(
    segment: str, at: int | None, end: int | None, at_s: float, began_s: float, places: Mapping[Place, _Erased]
) -> list[Read]:
    """The erased events between two places, which our event readers skip. Empty if other events lie between them.

    Without ``end``: those after the last event of the segment that was read.
    """
    passed: list[Read] = []
    while at is not None and (end is None or at < end):
        erased = places.get((segment, at))
        if erased is None or erased.asked_s > at_s:
            return passed if end is None else []
        passed.append(Read(segment, at, erased.data, at_s, began_s, is_unordered=end is None))
        at += 8 + len(erased.data)
    return passed
