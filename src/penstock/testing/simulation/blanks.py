"""Erased events in what clients saw: each read of a blank is put back as the event that was there, so that all other checks
go on as ever; a blank that nobody asked for, one of another length, and an event that is back are told.

An erasure is known by the places at which its events began, and by those events. It may show as soon as it was asked for, and
until the receipt the event may show again: the node may have died before the new chunk was named. Behind the receipt, never.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from penstock.testing.simulation.history import Anomaly, Erasure, History, Read, Reading

Place: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Erased:
    """What is known of one place: the event that was there, since when it may be blank, since when it must be."""

    data: bytes
    asked_s: float
    done_s: float | None = None
    names: list[str] = field(default_factory=list)

    def is_done_by(self, at_s: float) -> bool:
        return self.done_s is not None and self.done_s < at_s


def restored(history: History, found: list[Anomaly]) -> list[Reading]:
    """The readings with blanks put back; anomalies are added to ``found``."""
    places = _places(history.erasures)
    if not places:
        # A blank is then an event that nobody wrote: a phantom.
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
            # Who reads bytes is shown zeros; readers of ours pass over them.
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
            found.append(Anomaly("blank", f"{where}: {len(read.data)} zeros that nobody has asked for"))
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
        found.append(Anomaly("blank", f"{where}: {len(read.data)} zeros before anybody has asked for them"))
    elif read.segment != reading.stream:
        found.append(Anomaly("blank", f"{where}: a reader of ours shows the zeros of an erased event"))
    elif any(read.data) and erased.is_done_by(read.began_s):
        found.append(Anomaly("erased event is back", f"{where}: in part, {read.data[:40]!r}, erased by {erased.names}"))
    # Who reads bytes may have one half from before and one from after.
    return replace(read, data=erased.data)


def _passed_over(
    segment: str, at: int | None, end: int | None, at_s: float, began_s: float, places: Mapping[Place, _Erased]
) -> list[Read]:
    """The erased events from one place to another, which readers of ours do not show; nothing where others lie between."""
    passed: list[Read] = []
    while at is not None and (end is None or at < end):
        erased = places.get((segment, at))
        if erased is None or erased.asked_s > at_s:
            return passed if end is None else []
        passed.append(Read(segment, at, erased.data, at_s, began_s))
        at += 8 + len(erased.data)
    return passed
