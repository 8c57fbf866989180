"""Check whether what clients saw breaks a promise. The checker knows operations, not the store.

Source: docs/design/0010-simulation.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from penstock.model.segments import SegmentId
from penstock.testing.simulation.blanks import restored
from penstock.testing.simulation.history import (
    Anomaly,
    Fact,
    History,
    Increment,
    Outcome,
    Reading,
    Write,
)


def check(history: History) -> list[Anomaly]:
    """All broken promises. Those that actors noticed come first."""
    found = list(history.violations)
    by_data = {write.data: write for write in history.writes}
    everything = restored(history, found)
    streams = dict.fromkeys([item.stream for item in history.writes] + [item.stream for item in everything])
    for stream in streams:
        readings = [item for item in everything if item.stream == stream]
        writes = [item for item in history.writes if item.stream == stream]
        found += _check_places(readings, by_data)
        for reading in readings:
            found += _check_reading(reading, by_data)
            found += _check_complete(reading, readings, writes, by_data)
    found += _check_counters(history)
    found += _check_lives(history)
    found += _check_heads(history)
    found += _check_times(history)
    return found


def _check_places(readings: Sequence[Reading], by_data: Mapping[bytes, Write]) -> list[Anomaly]:
    """One place always holds the same event, and one event has one place."""
    found: list[Anomaly] = []
    at: dict[tuple[str, int], bytes] = {}
    places: dict[bytes, tuple[str, int]] = {}
    for reading in readings:
        for read in reading.reads:
            place = (read.segment, read.offset)
            if at.setdefault(place, read.data) != read.data:
                found.append(Anomaly("inconsistent offset", f"{place}: {at[place][:40]!r} and {read.data[:40]!r}"))
            if places.setdefault(read.data, place) != place:
                found.append(Anomaly("duplicate", f"{read.data[:40]!r} at {places[read.data]} and {place}"))
    for data, place in places.items():
        write = by_data.get(data)
        if write is None:
            found.append(Anomaly("phantom", f"{data[:40]!r} at {place} was never written"))
        elif write.offset is not None and (write.segment, write.offset) != place:
            found.append(
                Anomaly("inconsistent offset", f"{write.name} acked at {write.segment} {write.offset}, is at {place}")
            )
    return found


def _check_reading(reading: Reading, by_data: Mapping[bytes, Write]) -> list[Anomaly]:
    """Check the promises to a single reader."""
    found: list[Anomaly] = []
    ends: dict[str, int] = {}
    numbers: dict[tuple[str, str], Write] = {}
    for read in reading.reads:
        expected = ends.get(read.segment)
        if expected is not None and read.offset < expected:
            found.append(Anomaly("reordered", f"{reading.reader} went back to {read.segment} {read.offset}"))
        elif expected is not None and read.offset > expected and not reading.skips:
            found.append(Anomaly("skipped", f"{reading.reader} jumped from {expected} to {read.segment} {read.offset}"))
        ends[read.segment] = read.offset + 8 + len(read.data)
        write = by_data.get(read.data)
        if write is None:
            continue
        if write.stream != reading.stream:
            found.append(Anomaly("wrong stream", f"{write.name} was read from {reading.stream}"))
        if write.must_not_be_read:
            found.append(Anomaly("aborted read", f"{reading.reader} read {write.name}"))
        if write.group is not None and (write.group.decided_s is None or read.at_s < write.group.decided_s):
            found.append(Anomaly("early read", f"{reading.reader} read {write.name} before its commit"))
        before = numbers.get((write.writer, write.key))
        if read.is_unordered:
            continue
        if before is not None and before.number >= write.number:
            found.append(Anomaly("reordered", f"{reading.reader} read {write.name} behind {before.name}"))
        numbers[write.writer, write.key] = write
    return found


def _check_complete(
    reading: Reading, readings: Sequence[Reading], writes: Sequence[Write], by_data: Mapping[bytes, Write]
) -> list[Anomaly]:
    """Check what a reader of the whole stream must have seen."""
    found: list[Anomaly] = []
    got = {read.data: (read.segment, read.offset) for read in reading.reads}
    if reading.complete:
        found += [
            Anomaly("lost", f"{write.name} was acknowledged and is not read by {reading.reader}")
            for write in writes
            if write.must_be_read and write.data not in got
        ]
        found += _check_groups(reading, writes, got)
    if reading.final:
        covered = frozenset(reading.segments)
        for other in readings:
            found += [
                Anomaly("vanished", f"{other.reader} read {read.data[:40]!r} at {read.segment} {read.offset}")
                for read in other.reads
                if read.segment in covered
                and read.offset >= reading.start.get(read.segment, 0)
                and read.data not in got
            ]
    return found


def _check_groups(reading: Reading, writes: Sequence[Write], got: Mapping[bytes, tuple[str, int]]) -> list[Anomaly]:
    found: list[Anomaly] = []
    groups = dict.fromkeys(write.group for write in writes if write.group is not None)
    for group in groups:
        seen = [write for write in group.events if write.data in got]
        if 0 < len(seen) < len(group.events):
            found.append(
                Anomaly("torn", f"{reading.reader} read {len(seen)} of {len(group.events)} events of {group.name}")
            )
        by_segment: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for write in seen:
            segment, offset = got[write.data]
            by_segment.setdefault((segment, write.piece), []).append((offset, offset + 8 + len(write.data)))
        for (segment, _), spans in by_segment.items():
            if any(left[1] != right[0] for left, right in pairwise(sorted(spans))):
                found.append(Anomaly("torn", f"{group.name} is not in one piece in {segment}"))
    return found


def _check_counters(history: History) -> list[Anomaly]:
    """Counters that only grow by compare-and-set: every acknowledged step happened once and stays."""
    found: list[Anomaly] = []
    by_counter: dict[tuple[str, str], list[Increment]] = {}
    for item in history.increments:
        by_counter.setdefault((item.table, item.key), []).append(item)
    seen: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
    for look in history.looks:
        for key, value in look.values.items():
            seen.setdefault((look.table, key), []).append((look.begun_s, look.ended_s, value))
    for counter, items in by_counter.items():
        steps: dict[int, list[Outcome]] = {}
        for item in items:
            steps.setdefault(item.value, []).append(item.outcome)
        for value, outcomes in steps.items():
            if outcomes.count(Outcome.OK) > 1:
                found.append(Anomaly("lost update", f"{counter} was set to {value} twice"))
        # A later call must return at least what an earlier call returned.
        events = [
            (item.ended_s, item.value) for item in items if item.outcome is Outcome.OK and item.ended_s is not None
        ]
        events += [(ended_s, value) for _, ended_s, value in seen.get(counter, ())]
        found += _check_never_back(counter, sorted(events), seen.get(counter, ()))
    for counter, looks in seen.items():
        tried = {item.value for item in by_counter.get(counter, ()) if item.outcome is not Outcome.FAILED}
        highest = max(value for _, _, value in looks)
        missing = sorted(set(range(1, highest + 1)) - tried)
        if missing:
            found.append(Anomaly("phantom", f"{counter} is {highest}, but was never set to {missing[:5]}"))
    return found


def _check_never_back(
    counter: tuple[str, str], known: Sequence[tuple[float, int]], looks: Sequence[tuple[float, float, int]]
) -> list[Anomaly]:
    found: list[Anomaly] = []
    index, least = 0, 0
    for begun_s, _, value in sorted(looks):
        while index < len(known) and known[index][0] < begun_s:
            least = max(least, known[index][1])
            index += 1
        if value < least:
            found.append(Anomaly("lost update", f"{counter} was {least} and is {value} at {begun_s:.4f}"))
    return found


def _check_lives(history: History) -> list[Anomaly]:
    """Every acknowledged change of a segment is visible in every later query."""
    found: list[Anomaly] = []
    facts: dict[str, list[Fact]] = {}
    for fact in history.facts:
        facts.setdefault(fact.subject, []).append(fact)
    starts: dict[str, list[tuple[float, int]]] = {}
    for sight in sorted(history.sights, key=lambda item: item.begun_s):
        known = [fact for fact in facts.get(sight.subject, ()) if fact.at_s < sight.begun_s]
        what = {fact.what: fact for fact in known}
        if sight.exists and "deleted" in what:
            found.append(Anomaly("forgotten delete", f"{sight.subject} is back at {sight.begun_s:.4f}"))
        gone = any(
            fact.what in ("deleting", "deleted") and fact.at_s <= sight.ended_s for fact in facts.get(sight.subject, ())
        )
        if not sight.exists:
            if "created" in what and not gone:
                found.append(Anomaly("forgotten create", f"{sight.subject} is gone at {sight.begun_s:.4f}"))
            continue
        sealed = what.get("sealed")
        if sealed is not None and (not sight.sealed or sight.length != sealed.value):
            found.append(
                Anomaly(
                    "forgotten seal",
                    f"{sight.subject} sealed at {sealed.value}, found sealed={sight.sealed} at {sight.length}",
                )
            )
        least = max(
            [fact.value for fact in known if fact.what == "truncated"]
            + [value for ended_s, value in starts.get(sight.subject, ()) if ended_s < sight.begun_s],
            default=0,
        )
        if sight.start_offset < least:
            found.append(Anomaly("head moved back", f"{sight.subject} from {least} to {sight.start_offset}"))
        starts.setdefault(sight.subject, []).append((sight.ended_s, sight.start_offset))
    return found


def _check_heads(history: History) -> list[Anomaly]:
    """A stream's head never moves back: no segment to an earlier offset, and no passed segment returns."""
    found: list[Anomaly] = []
    for stream, heads in history.heads.items():
        passed: set[SegmentId] = set()
        for before, after in pairwise(heads):
            passed.update(segment for segment in before if segment not in after)
            back = [segment for segment, offset in after.items() if max(0, offset) < max(0, before.get(segment, 0))]
            again = [segment for segment in after if segment in passed]
            if back or again:
                found.append(Anomaly("head moved back", f"{stream} from {before} to {after}"))
    return found


def _check_times(history: History) -> list[Anomaly]:
    """No event comes after a bound of times that covers it."""
    times = {
        data: (time_ms, writer)
        for writer in history.timed
        for data, time_ms in writer.times.items()
        if time_ms <= writer.noted
    }
    found: list[Anomaly] = []
    for data, lower_ms in history.bounds:
        if data in times and times[data][0] <= lower_ms:
            time_ms, writer = times[data]
            found.append(
                Anomaly("late event", f"{writer.name} wrote {data[:40]!r} at {time_ms}, read after {lower_ms}")
            )
    return found
