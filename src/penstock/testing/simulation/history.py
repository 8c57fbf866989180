"""Record what clients saw in one run, and the broken promises.

Every event is unique. Each operation is recorded when it begins, and again when its outcome is known. If its answer was
lost, it may or may not have happened. The checker knows nothing of the store. Source: docs/design/0010-simulation.md.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass

LAST_EVENTS = 200
MOMENTS = ("write", "resolved", "decision", "merge", "group", "table", "life", "erase", "erased")


class Outcome(enum.Enum):
    """``UNKNOWN``: the answer was lost, so it may or may not have happened."""

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
    """One event. ``segment`` and ``offset``: its place, if the answer had it. ``piece``: the part of its group whose
    events must be adjacent."""

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
    began_s: float
    """When the call or the reader that returned the event began."""
    is_unordered: bool = False
    """Nothing shows when the reader passed it: an erased event at the end of a segment."""


@dataclass(slots=True, eq=False)
class Reading:
    """What one reader saw of a stream.

    ``complete``: it read everything from the beginning without a gap, and nothing was truncated before it. ``final``:
    it read everything that exists at the end of the run, from ``start``; segments not in ``start`` from 0.
    """

    stream: str
    reader: str
    reads: list[Read] = field(default_factory=list)
    complete: bool = False
    final: bool = False
    start: Mapping[str, int] = field(default_factory=dict)
    segments: Sequence[str] = ()
    skips: bool = False
    began_s: float = 0.0


@dataclass(slots=True, eq=False)
class Erasure:
    """Events to erase, by segment and offset. ``done_s``: when they were certainly blank. ``refused``: none of them was
    erased. ``unsure``: places that were truncated in the meantime, so nothing is promised about their bytes."""

    name: str
    events: Mapping[tuple[str, int], bytes]
    asked_s: float
    done_s: float | None = None
    refused: bool = False
    unsure: frozenset[tuple[str, int]] = frozenset()


@dataclass(slots=True, eq=False)
class TimedWriter:
    """A writer that notes times: the time of each event, and the last time that was certainly noted behind them.

    No bound may cover an event before it is read, unless the writer ended before it noted the event's time.
    """

    name: str
    times: dict[bytes, int] = field(default_factory=dict)
    noted: int = 0


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
    """A counter as a client read it, with all other values of the same call."""

    table: str
    values: Mapping[str, int]
    begun_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Fact:
    """An acknowledged change of a segment: created, sealed, deleted, truncated."""

    subject: str
    what: str
    value: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Sight:
    """A segment as a client found it, by a call that began at ``begun_s``."""

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
        self.erasures: list[Erasure] = []
        self.heads: dict[str, list[Mapping[SegmentId, int]]] = {}
        self.timed: list[TimedWriter] = []
        self.bounds: list[tuple[bytes, int]] = []
        """Events, each with the lower bound of times that its reader had been given before it."""
        self.violations: list[Anomaly] = []
        self.broken = asyncio.Event()
        """Set with the first violation."""
        self.last: deque[str] = deque(maxlen=LAST_EVENTS)
        self.acked = 0
        self.on_moment: Callable[[str], None] | None = None
        """Called with one of ``MOMENTS`` when something was acknowledged or is about to be decided: good moments for a
        crash."""

    def _moment(self, kind: str, acked: int = 1) -> None:
        self.acked += acked
        if self.on_moment is not None:
            self.on_moment(kind)

    def note(self, text: str) -> None:
        self.last.append(f"{self._now():10.4f} {text}")
        self._trace(text)

    def violation(self, kind: str, text: str) -> None:
        """Record a broken promise that an actor noticed itself."""
        self.note(f"VIOLATION {kind}: {text}")
        self.violations.append(Anomaly(kind, text))
        self.broken.set()

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
        """``asked``: the answer was lost, and a later query returned that the event is stored."""
        write.outcome, write.segment, write.offset = Outcome.OK, segment, offset
        self.note(f"ack {write.name} {segment} {offset}")
        self._moment("resolved" if asked else "write")

    def refused(self, write: Write) -> None:
        """The final answer was that the event is not stored."""
        write.outcome = Outcome.FAILED
        self.note(f"refused {write.name}")

    def group(self, name: str) -> Group:
        made = Group(name, self._now())
        self.groups.append(made)
        return made

    def deciding(self, group: Group, *, moment: str = "decision") -> None:
        """The commit or the merge is about to be requested."""
        if group.decided_s is None:
            group.decided_s = self._now()
            self._moment(moment, 0)

    def decided(self, group: Group, outcome: Outcome) -> None:
        group.outcome = outcome
        self.note(f"group {group.name} {outcome.value}")
        self._moment("group", int(outcome is Outcome.OK))

    def reading(self, stream: str, reader: str, *, skips: bool = False) -> Reading:
        made = Reading(stream, reader, skips=skips, began_s=self._now())
        self.readings.append(made)
        return made

    def read(self, reading: Reading, segment: str, offset: int, data: bytes, *, began_s: float | None = None) -> None:
        began_s = reading.began_s if began_s is None else began_s
        reading.reads.append(Read(segment, offset, data, self._now(), began_s))
        self.note(f"read {reading.reader} {segment} {offset} {data[:40]!r}")

    # --- erasures -------------------------------------------------------------------------------------------------

    def erasure(self, name: str, events: Mapping[tuple[str, int], bytes]) -> Erasure:
        """An erasure is about to be requested."""
        made = Erasure(name, dict(events), self._now())
        self.erasures.append(made)
        self.note(f"erase {name} {list(made.events)}")
        self._moment("erase", 0)
        return made

    def erased(self, erasure: Erasure) -> None:
        """The erasure has its receipt."""
        erasure.done_s = self._now()
        self.note(f"erased {erasure.name}")
        self._moment("erased")

    def not_erased(self, erasure: Erasure, error: str) -> None:
        """The erasure was finally refused."""
        erasure.refused = True
        self.note(f"not erased {erasure.name}: {error}")

    # --- times ----------------------------------------------------------------------------------------------------

    def timed_writer(self, name: str) -> TimedWriter:
        """The writer has noted its first time."""
        made = TimedWriter(name)
        self.timed.append(made)
        return made

    def read_after_bound(self, data: bytes, lower_ms: int) -> None:
        self.bounds.append((data, lower_ms))

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
        """The stream's head as returned by a call. Each call begins after the previous one has ended."""
        self.heads.setdefault(stream, []).append(dict(positions))
        self.note(f"head {stream} {dict(positions)}")
