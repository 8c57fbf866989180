"""What retention did, or would do: the answers of a run, of a plan, and of the planner to a line of facts.

Fields have the names that they have as JSON, except for Python keywords. Sequences are in the order of the stream or of
the decisions. A field that is ``UNSET`` is absent from the JSON. Source: docs/formats/planner.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET, Struct, UnsetType, field

from penstock.model.retention import EffectivePolicy

__all__ = [
    "CutRecord",
    "DroppedSubscriber",
    "Holding",
    "LinePlan",
    "MovedSubscriber",
    "Offsets",
    "PlanStep",
    "PlannerAnswer",
    "RetentionPlan",
    "RetentionRun",
    "SettledPlan",
    "Writers",
]

Offsets: TypeAlias = Mapping[str, int]
"""A cut: the byte offset of each segment, named ``number#epoch``, oldest segment first. -1: not started."""


class CutRecord(Struct, frozen=True, kw_only=True):
    """A record of the retention set.

    ``time_ms``: when the tail was there, milliseconds since the Unix epoch. ``size_bytes`` and ``event_count``: from the
    beginning of history up to the cut, truncated ones included; events ``UNSET`` if they were not counted.
    """

    time_ms: int
    size_bytes: int
    cut: Offsets
    event_count: int | UnsetType = UNSET


class Holding(Struct, frozen=True, kw_only=True):
    """A holder, and how many bytes it keeps. ``kind``: a ``HolderKind``; ``name``: of the subscriber or hold, else
    empty."""

    kind: str
    name: str
    bytes: int


class MovedSubscriber(Struct, frozen=True, kw_only=True):
    """A subscriber that a rule moves from ``start`` to ``end`` (``from`` and ``to`` as JSON).

    ``bytes``, ``events``: unread data that it loses; events None if a cut lies inside an event. ``rule``: a
    ``RetentionRule``.
    """

    subscriber: str
    start: Offsets = field(name="from")
    end: Offsets = field(name="to")
    bytes: int
    events: int | None
    rule: str


class DroppedSubscriber(Struct, frozen=True, kw_only=True):
    """A silent subscriber that is removed. ``start`` (``from`` as JSON): its cut, empty if it has published none.
    ``last_active_ms``: milliseconds since the Unix epoch."""

    subscriber: str
    start: Offsets = field(name="from")
    last_active_ms: int
    rule: str


class Writers(Struct, frozen=True, kw_only=True):
    """What happens to an append that takes the stream past ``total_bytes`` or ``total_events``, both counted from the
    beginning of history; None: no bound.

    ``state``: ``open`` (nothing), ``hold`` (it waits), ``reject`` or ``notify`` (it is accepted, and an eviction follows).
    ``exceeded``: a quota is reached now. ``rule``, ``subscriber``: that quota or the one reached next, and who is furthest
    behind; None and empty without a quota. ``bytes_state``, ``events_state``: the effect of each bound if they differ.
    """

    state: str
    total_bytes: int | None
    total_events: int | None
    exceeded: bool
    rule: str | None
    subscriber: str
    bytes_state: str | UnsetType = UNSET
    events_state: str | UnsetType = UNSET


class PlanStep(Struct, frozen=True, kw_only=True):
    """One decision that changes something, or truncations in a row by one rule. ``truncate``: the new head, None if it stays.
    ``frees_bytes``: by this step alone. ``why``: for people."""

    rule: str
    truncate: Offsets | None
    frees_bytes: int
    expire: Sequence[MovedSubscriber]
    evict: Sequence[MovedSubscriber]
    drop: Sequence[DroppedSubscriber]
    delete_stream: bool
    why: str


class PlannerAnswer(Struct, frozen=True, kw_only=True):
    """Fields of every answer of the planner. Times are milliseconds since the Unix epoch.

    ``id``: the stream as ``scope/stream``; for a line of facts, its own id. ``candidate``: the cut that the rules
    choose; ``truncate``: the new head; None: it stays. ``rule``: the ``RetentionRule`` that chose, or why none did.
    ``record``: the cut to record first. ``prune_through_ms``: records up to then are dropped. ``held_by``: what keeps
    the remaining data, each byte once, most bytes first. ``expire``: moved by time-to-live; ``evict``: by a quota or a
    maximum; ``drop``: removed; ``delete_stream``: the stream is deleted. ``frees_bytes``: what truncations free.
    ``next_due_ms``: when time alone may change the decision; None: never. ``why``: for people.
    """

    version: int
    id: Any
    candidate: Offsets | None
    truncate: Offsets | None
    rule: str
    record: CutRecord | None
    prune_through_ms: int | None
    held_by: Sequence[Holding]
    expire: Sequence[MovedSubscriber]
    evict: Sequence[MovedSubscriber]
    drop: Sequence[DroppedSubscriber]
    delete_stream: bool
    writers: Writers
    frees_bytes: int
    next_due_ms: int | None
    why: str


class SettledPlan(Struct, frozen=True, kw_only=True):
    """The combined effect of a decision and those after it, until nothing is due. ``events``: removed ones, None: not
    known.
    ``subscribers``: who is moved past unread data or dropped, sorted."""

    truncate: Offsets | None
    rule: str
    frees_bytes: int
    events: int | None
    delete_stream: bool
    subscribers: Sequence[str]
    steps: Sequence[PlanStep]


class LinePlan(PlannerAnswer, frozen=True, kw_only=True):
    """The decision for a line of facts.

    ``events``: removed ones, None: not known. ``time_range_ms``: after which record and before which one these were
    appended, each None if there is none; None if both are. ``subscribers``: as in ``SettledPlan``. ``settled``: UNSET if
    nothing more is due afterwards.
    """

    events: int | None
    time_range_ms: Sequence[int | None] | None
    subscribers: Sequence[str]
    settled: SettledPlan | UnsetType = UNSET


class RetentionRun(PlannerAnswer, frozen=True, kw_only=True):
    """What was done until nothing was due. ``expire``, ``evict``, ``drop`` and ``frees_bytes`` are of all ``steps``;
    ``candidate``, ``truncate`` and ``rule`` of the last one that moves the head; the rest describes the remaining
    data."""

    steps: Sequence[PlanStep]


class RetentionPlan(RetentionRun, frozen=True, kw_only=True):
    """What would be done at ``at_ms`` if nobody writes or acknowledges until then.

    ``events``: removed ones, exactly; None only if a cut lies inside an event. ``time_range_ms``: when these were appended,
    first and last by the nearest records, each None if not known; None if both are, or nothing is deleted.
    ``subscribers``: those that lose data or are dropped, sorted. ``policy``: the effective policy, with the level of
    each value; ``sentence``: the same for people. ``unreadable``: which policy cannot be read and why, then all is
    kept; else empty. ``locked``: why a retention lock refuses the change; empty: none does.
    """

    at_ms: int
    events: int | None
    time_range_ms: Sequence[int | None] | None
    subscribers: Sequence[str]
    policy: EffectivePolicy
    unreadable: str
    sentence: str
    locked: str = ""
