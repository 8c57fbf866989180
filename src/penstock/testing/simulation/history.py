"""What clients saw of one run, and whether any promise was broken by it.

Every event is unique. Each operation is recorded when it begins, and again when its outcome is known; one whose answer
was lost may have happened or not. The checker knows nothing of the store. Source: docs/design/0010-simulation.md.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from penstock.model.segments import SegmentId

LAST_EVENTS = 200
MOMENTS = ("write", "resolved", "decision", "merge", "group", "table", "life")


class Outcome(enum.Enum):
    """``UNKNOWN``: the answer was lost, so that it may have happened or not."""

    UNKNOWN = "unknown"
    OK = "ok"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A broken promise, with enough to find it in the trace."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True, eq=False)
class Group:
    """Events that must be read all or not at all: a transaction, a batch, a merged segment."""

    name: str
    begun_s: float
    decided_s: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    events: list[Write] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Write:
    """One event. ``segment`` and ``offset`` where the answer told them. ``piece``: the part of its group whose events must
    lie together."""

    stream: str
    writer: str
    number: int
    key: str
    data: bytes
    group: Group | None
    outcome: Outcome = Outcome.UNKNOWN
    segment: str | None = None
    offset: int | None = None
    piece: str = ""

    @property
    def name(self) -> str:
        return f"{self.stream}:{self.writer}:{self.number}"

    @property
    def must_be_read(self) -> bool:
        return (self.outcome if self.group is None else self.group.outcome) is Outcome.OK

    @property
    def must_not_be_read(self) -> bool:
        return (self.outcome if self.group is None else self.group.outcome) is Outcome.FAILED


@dataclass(frozen=True, slots=True)
class Read:
    """One event as a reader got it, in order of delivery per reader."""

    segment: str
    offset: int
    data: bytes
    at_s: float


@dataclass(slots=True, eq=False)
class Reading:
    """What one reader saw of a stream.

    ``complete``: it read all there was from the beginning, in one go, and nothing was truncated before it. ``final``: it
    read all that is there at the end, from ``start`` on; a segment not in ``start`` was to be read from 0.
    """

    stream: str
    reader: str
    reads: list[Read] = field(default_factory=list)
    complete: bool = False
    final: bool = False
    start: Mapping[str, int] = field(default_factory=dict)
    segments: Sequence[str] = ()
    skips: bool = False


@dataclass(slots=True, eq=False)
class Increment:
    """A compare-and-set of a counter from ``value - 1`` to ``value``."""

    table: str
    key: str
    value: int
    begun_s: float
    ended_s: float | None = None
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class Look:
    """A counter as somebody read it, with all that was read in the same call."""

    table: str
    values: Mapping[str, int]
    begun_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Fact:
    """A change of a segment's life that was acknowledged: created, sealed, deleted, truncated."""

    subject: str
    what: str
    value: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Sight:
    """A segment as somebody found it, by a call that began at ``begun_s``."""

    subject: str
    exists: bool
    sealed: bool
    start_offset: int
    length: int
    begun_s: float
    ended_s: float


class History:
    """Records of a run. ``now`` gives virtual seconds; ``trace`` gets a line for each."""

    def __init__(self, now: Callable[[], float], trace: Callable[[str], None]) -> None:
        self._now = now
        self._trace = trace
        self.writes: list[Write] = []
        self.groups: list[Group] = []
        self.readings: list[Reading] = []
        self.increments: list[Increment] = []
        self.looks: list[Look] = []
        self.facts: list[Fact] = []
        self.sights: list[Sight] = []
        self.heads: dict[str, list[Mapping[SegmentId, int]]] = {}
        self.violations: list[Anomaly] = []
        self.last: deque[str] = deque(maxlen=LAST_EVENTS)
        self.acked = 0
        self.on_moment: Callable[[str], None] | None = None
        """Told one of ``MOMENTS`` when something was acknowledged, or is about to be decided: good moments for a crash."""

    def _moment(self, kind: str, acked: int = 1) -> None:
        self.acked += acked
        if self.on_moment is not None:
            self.on_moment(kind)

    def note(self, text: str) -> None:
        self.last.append(f"{self._now():10.4f} {text}")
        self._trace(text)

    def violation(self, kind: str, text: str) -> None:
        """A promise that an actor itself saw broken."""
        self.note(f"VIOLATION {kind}: {text}")
        self.violations.append(Anomaly(kind, text))

    # --- events ---------------------------------------------------------------------------------------------------

    def write(
        self,
        stream: str,
        writer: str,
        number: int,
        key: str,
        data: bytes,
        *,
        group: Group | None = None,
        piece: str = "",
    ) -> Write:
        made = Write(stream, writer, number, key, data, group, piece=piece)
        self.writes.append(made)
        if group is not None:
            group.events.append(made)
        return made

    def acknowledged(
        self, write: Write, *, segment: str | None = None, offset: int | None = None, asked: bool = False
    ) -> None:
        """``asked``: its own answer was lost, and a question has told that it is stored."""
        write.outcome, write.segment, write.offset = Outcome.OK, segment, offset
        self.note(f"ack {write.name} {segment} {offset}")
        self._moment("resolved" if asked else "write")

    def refused(self, write: Write) -> None:
        """It was said that the event is not stored, for good."""
        write.outcome = Outcome.FAILED
        self.note(f"refused {write.name}")

    def group(self, name: str) -> Group:
        made = Group(name, self._now())
        self.groups.append(made)
        return made

    def deciding(self, group: Group, *, moment: str = "decision") -> None:
        """The commit, or the merge, is about to be asked for."""
        if group.decided_s is None:
            group.decided_s = self._now()
            self._moment(moment, 0)

    def decided(self, group: Group, outcome: Outcome) -> None:
        group.outcome = outcome
        self.note(f"group {group.name} {outcome.value}")
        self._moment("group", int(outcome is Outcome.OK))

    def reading(self, stream: str, reader: str, *, skips: bool = False) -> Reading:
        made = Reading(stream, reader, skips=skips)
        self.readings.append(made)
        return made

    def read(self, reading: Reading, segment: str, offset: int, data: bytes) -> None:
        reading.reads.append(Read(segment, offset, data, self._now()))
        self.note(f"read {reading.reader} {segment} {offset} {data[:40]!r}")

    # --- tables ---------------------------------------------------------------------------------------------------

    def increment(self, table: str, key: str, value: int) -> Increment:
        made = Increment(table, key, value, self._now())
        self.increments.append(made)
        return made

    def incremented(self, item: Increment, outcome: Outcome) -> None:
        item.outcome, item.ended_s = outcome, self._now()
        self.note(f"set {item.table} {item.key}={item.value} {outcome.value}")
        self._moment("table", int(outcome is Outcome.OK))

    def looked(self, table: str, values: Mapping[str, int], begun_s: float) -> None:
        self.looks.append(Look(table, values, begun_s, self._now()))
        self.note(f"get {table} {values}")

    # --- segments -------------------------------------------------------------------------------------------------

    def fact(self, subject: str, what: str, value: int = 0) -> None:
        self.facts.append(Fact(subject, what, value, self._now()))
        self.note(f"{what} {subject} {value}")
        self._moment("life")

    def sight(
        self, subject: str, begun_s: float, *, exists: bool, sealed: bool = False, start: int = 0, length: int = 0
    ) -> None:
        self.sights.append(Sight(subject, exists, sealed, start, length, begun_s, self._now()))
        self.note(f"sight {subject} {exists} {sealed} {start} {length}")

    def head(self, stream: str, positions: Mapping[SegmentId, int]) -> None:
        """The stream's head, as a call found it that began after the one before had ended."""
        self.heads.setdefault(stream, []).append(dict(positions))
        self.note(f"head {stream} {dict(positions)}")


def check(history: History) -> list[Anomaly]:
    """All broken promises, those that the actors saw first."""
    found = list(history.violations)
    by_data = {write.data: write for write in history.writes}
    streams = dict.fromkeys([item.stream for item in history.writes] + [item.stream for item in history.readings])
    for stream in streams:
        readings = [item for item in history.readings if item.stream == stream]
        writes = [item for item in history.writes if item.stream == stream]
        found += _check_places(readings, by_data)
        for reading in readings:
            found += _check_reading(reading, by_data)
            found += _check_complete(reading, readings, writes, by_data)
    found += _check_counters(history)
    found += _check_lives(history)
    found += _check_heads(history)
    return found


def _check_places(readings: Sequence[Reading], by_data: Mapping[bytes, Write]) -> list[Anomaly]:
    """One place holds one event for ever, and one event has one place."""
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
    """What holds within the sight of one reader."""
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
        if before is not None and before.number >= write.number:
            found.append(Anomaly("reordered", f"{reading.reader} read {write.name} behind {before.name}"))
        numbers[write.writer, write.key] = write
    return found


def _check_complete(
    reading: Reading, readings: Sequence[Reading], writes: Sequence[Write], by_data: Mapping[bytes, Write]
) -> list[Anomaly]:
    """What a reader of everything must have seen."""
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
    """Counters that only grow by compare-and-set: every acknowledged step happened, once, and is never taken back."""
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
        # Whatever a call learned, every later call must know.
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
            found.append(Anomaly("phantom", f"{counter} is {highest}, but nobody set it to {missing[:5]}"))
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
    """What was acknowledged of a segment's life shows in every later look at it."""
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
    """A stream's head never moves back: no segment to an earlier offset, and none that was passed comes again."""
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
