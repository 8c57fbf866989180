"""What the retention planner is told, and what it answers. Plain data; the rules are in ``penstock.core.retention``."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.core.cut_order import Positions
from penstock.core.history import StreamHistory
from penstock.model.errors import CorruptDataError
from penstock.model.policies import RetentionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCutRecord:
    """A cut at the tail, as it was at ``time_ms``.

    ``size_bytes`` counts from the beginning of history, truncated bytes too (``cut_order.size_till``).
    """

    time_ms: int
    size_bytes: int
    positions: Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What lies behind ``positions`` (None: the whole stream) stays while ``now < until_ms`` (None: for ever)."""

    id: str
    owner: str = ""
    reason: str = ""
    until_ms: int | None = None
    positions: Positions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionFacts:
    """A stream as retention sees it.

    ``head``: the cut of the last truncation, None for the beginning of history. ``truncating``: one is in flight.
    ``retention_set``: recorded cuts, oldest first. ``subscribers``: what each has acknowledged, empty where nothing was
    published. ``tail``: the stream's end as it is now; None: the newest record. ``frequency_ms``: how often to record.
    Raises: CorruptDataError (records out of order in time or size).
    """

    history: StreamHistory
    policy: RetentionPolicy | None
    head: Positions | None = None
    truncating: bool = False
    retention_set: Sequence[StreamCutRecord] = ()
    subscribers: Mapping[str, Positions] = field(default_factory=dict)
    tail: StreamCutRecord | None = None
    frequency_ms: int = 0
    holds: Sequence[Hold] = ()

    def __post_init__(self) -> None:
        before: StreamCutRecord | None = None
        for record in self.retention_set:
            if before is not None and (record.time_ms <= before.time_ms or record.size_bytes < before.size_bytes):
                # A search in such a set could find a cut far ahead of the limit: better no truncation than a wrong one.
                raise CorruptDataError(
                    "records of the retention set are out of order",
                    time_ms=record.time_ms,
                    size_bytes=record.size_bytes,
                    before_time_ms=before.time_ms,
                    before_size_bytes=before.size_bytes,
                )
            before = record


class RetentionRule(enum.Enum):
    """Which rule chose, or why none did. Numbers in brackets are the cases of the source document."""

    NO_POLICY = "no-policy"
    NO_RECORD = "no-record"
    BELOW_MINIMUM = "below-minimum"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    SUBSCRIBERS = "subscribers"  # (i)
    SUBSCRIBERS_MINIMUM = "subscribers-minimum"  # (ii)
    SUBSCRIBERS_MAXIMUM = "subscribers-maximum"  # (iii)
    OVERLAP_MINIMUM = "overlap-minimum"  # (iv)
    OVERLAP_MAXIMUM = "overlap-maximum"  # (v)


class HolderKind(enum.Enum):
    """Why bytes are still there. ``DUE`` ones go in the next cycle."""

    DUE = "due"
    HOLD = "hold"
    NO_POLICY = "no-policy"
    SUBSCRIBER = "subscriber"
    MINIMUM = "minimum"
    TRUNCATING = "truncating"
    UNRECORDED = "unrecorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who keeps how many bytes. ``name``: of the subscriber or hold, else empty."""

    kind: HolderKind
    name: str
    bytes: int

    def in_words(self) -> str:
        """The holder as people name it."""
        return holder_in_words(f"{self.kind.value} {self.name}".strip())


_WORDS = {
    "due": "nobody, it goes with the next cycle",
    "minimum": "the retention minimum",
    "no-policy": "no retention policy, so all is kept",
    "truncating": "nobody, a truncation is under way",
    "unrecorded": "the retention minimum, to the nearest recorded cut",
    "": "nobody, the stream is empty",
}


def holder_in_words(held_by: str) -> str:
    """A kind of holder, or kind and name, as people say it: subscribers and holds go by their name."""
    return _WORDS.get(held_by, held_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRange:
    """Bytes of a stream and their one holder.

    ``start_bytes`` and ``end_bytes`` count from the beginning of history. ``start`` and ``end`` are the cuts there, None
    where the bound is a number of bytes only.
    """

    kind: HolderKind
    name: str
    start_bytes: int
    end_bytes: int
    start: Positions | None
    end: Positions | None

    @property
    def bytes(self) -> int:
        return self.end_bytes - self.start_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """A subscriber overruled by a maximum: moved from ``start`` to ``end``, losing ``bytes`` not acknowledged."""

    subscriber: str
    start: Positions
    end: Positions
    bytes: int
    rule: RetentionRule
