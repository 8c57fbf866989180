"""What the controller stores about readers and retention. The form is that of ``penstock.codec.control.streams``.

Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from penstock.codec.control.streams import Fields, Positions, dump_positions, dump_record, load_positions, load_record
from penstock.model.policies import ReaderGroupRetention

SUBSCRIBER_VERSION = 2
PAST_TRUNCATIONS_MAX = 100
PAST_POSITIONS_MAX = 8_000


class GroupState(enum.Enum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A reader group. ``leaving``: streams whose subscription a change under way still has to remove."""

    state: GroupState
    id: UUID
    generation: int
    retention: ReaderGroupRetention
    start_cuts: Mapping[str, Positions]
    end_cuts: Mapping[str, Positions]
    refresh_ms: int
    checkpoint_interval_ms: int
    max_outstanding_checkpoints: int
    rollover_bytes: int
    leaving: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return dump_record(
            {
                "state": self.state.value,
                "id": self.id.hex,
                "generation": self.generation,
                "retention": self.retention.name,
                "start": {stream: dump_positions(cut) for stream, cut in self.start_cuts.items()},
                "end": {stream: dump_positions(cut) for stream, cut in self.end_cuts.items()},
                "refresh_ms": self.refresh_ms,
                "checkpoint_interval_ms": self.checkpoint_interval_ms,
                "checkpoints": self.max_outstanding_checkpoints,
                "rollover_bytes": self.rollover_bytes,
                "leaving": list(self.leaving),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> GroupRecord:
        return load_record("group", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> GroupRecord:
        return cls(
            state=GroupState(fields["state"]),
            id=UUID(hex=fields["id"]),
            generation=fields["generation"],
            retention=ReaderGroupRetention[fields["retention"]],
            start_cuts={stream: load_positions(cut) for stream, cut in fields["start"].items()},
            end_cuts={stream: load_positions(cut) for stream, cut in fields["end"].items()},
            refresh_ms=fields["refresh_ms"],
            checkpoint_interval_ms=fields["checkpoint_interval_ms"],
            max_outstanding_checkpoints=fields["checkpoints"],
            rollover_bytes=fields["rollover_bytes"],
            leaving=tuple(fields["leaving"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberRecord:
    """A reader group's subscription to one stream. ``cut=None``: it has published nothing.

    ``incarnation`` is the stream's: a subscription does not pass to a later stream of the same name. ``updated_ms``: when
    the group itself last moved on, or confirmed that nothing is unread. ``own``: what it published last, where a rule has
    moved ``cut`` on since; None: the same. ``dropped``: the subscription has ended, and this record will be deleted.
    ``query``: the query that owns the subscriber, empty if none is known; ``run``: its latest run; ``past_runs``: earlier
    ones, newest first.
    """

    group_id: UUID
    generation: int
    incarnation: int
    cut: Positions | None
    updated_ms: int
    own: Positions | None = None
    dropped: bool = False
    query: str = ""
    run: str = ""
    past_runs: tuple[str, ...] = ()

    def encode(self) -> bytes:
        fields: Fields = {
            "group": self.group_id.hex,
            "generation": self.generation,
            "incarnation": self.incarnation,
            "cut": None if self.cut is None else dump_positions(self.cut),
            "updated_ms": self.updated_ms,
        }
        if self.own is not None:
            fields["own"] = dump_positions(self.own)
        if self.query:
            fields |= {"query": self.query, "run": self.run, "past_runs": list(self.past_runs)}
        if self.dropped:
            # To a program that does not know of this a dropped subscription would look alive, and hold data.
            return dump_record({**fields, "dropped": True}, version=SUBSCRIBER_VERSION)
        return dump_record(fields)

    @classmethod
    def decode(cls, data: bytes) -> SubscriberRecord:
        return load_record("subscriber", data, cls._build, newest=SUBSCRIBER_VERSION)

    @classmethod
    def _build(cls, fields: Fields) -> SubscriberRecord:
        cut, own = fields["cut"], fields.get("own")
        return cls(
            group_id=UUID(hex=fields["group"]),
            generation=fields["generation"],
            incarnation=fields["incarnation"],
            cut=None if cut is None else load_positions(cut),
            updated_ms=fields["updated_ms"],
            own=None if own is None else load_positions(own),
            dropped=fields.get("dropped", False),
            query=fields.get("query", ""),
            run=fields.get("run", ""),
            past_runs=tuple(fields.get("past_runs", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRecord:
    """A member of a stream's retention set: where the tail was at a time, and how many bytes of history lay before, and
    how many events (None: not counted)."""

    time_ms: int
    size_bytes: int
    cut: Positions
    events: int | None = None

    def encode(self) -> bytes:
        fields: Fields = {"time_ms": self.time_ms, "size_bytes": self.size_bytes, "cut": dump_positions(self.cut)}
        if self.events is not None:
            fields["events"] = self.events
        return dump_record(fields)

    @classmethod
    def decode(cls, data: bytes) -> TailRecord:
        return load_record("tail", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> TailRecord:
        return cls(
            time_ms=fields["time_ms"],
            size_bytes=fields["size_bytes"],
            cut=load_positions(fields["cut"]),
            events=fields.get("events"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSetRecord:
    """What is known of a stream's retention set without reading it. Every change of the set changes this record in the
    same step, so that its version tells whether a copy in memory still is the set.

    ``pruned_ms``: members up to and including that time are forgotten, though their keys may still be there.
    """

    pruned_ms: int = -1

    def encode(self) -> bytes:
        return dump_record({"pruned_ms": self.pruned_ms})

    @classmethod
    def decode(cls, data: bytes) -> RetentionSetRecord:
        return load_record("retention-set", data, lambda f: cls(pruned_ms=f["pruned_ms"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionsRecord:
    """The latest times that a rule took unread data from subscribers, oldest first, as plain fields."""

    evictions: Sequence[Mapping[str, Any]] = ()

    def encode(self) -> bytes:
        return dump_record({"evictions": [dict(item) for item in self.evictions]})

    @classmethod
    def decode(cls, data: bytes) -> EvictionsRecord:
        return load_record("evictions", data, lambda f: cls(evictions=tuple(dict(item) for item in f["evictions"])))


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTruncation:
    """A truncation of long ago. ``cut``: the head after it, None where it was too large to be kept."""

    at_ms: int
    rule: str
    bytes: int
    cut: Positions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTruncationsRecord:
    """The latest truncations of a stream, oldest first: when, and by which rule, data before the head went."""

    truncations: tuple[PastTruncation, ...] = ()

    def with_(self, item: PastTruncation) -> PastTruncationsRecord:
        """One more, and the oldest forgotten: at most 100 of them, and at most 8,000 positions in all."""
        if item.cut is not None and len(item.cut) > PAST_POSITIONS_MAX:
            item = replace(item, cut=None)
        kept = [item]
        room = PAST_POSITIONS_MAX - len(item.cut or {})
        for older in reversed(self.truncations[-(PAST_TRUNCATIONS_MAX - 1) :]):
            room -= len(older.cut or {})
            if room < 0:
                break
            kept.append(older)
        return PastTruncationsRecord(truncations=tuple(reversed(kept)))

    def encode(self) -> bytes:
        return dump_record(
            {
                "truncations": [
                    [item.at_ms, item.rule, item.bytes, None if item.cut is None else dump_positions(item.cut)]
                    for item in self.truncations
                ]
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> PastTruncationsRecord:
        return load_record("truncations", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> PastTruncationsRecord:
        return cls(
            truncations=tuple(
                PastTruncation(at_ms=at, rule=rule, bytes=size, cut=None if cut is None else load_positions(cut))
                for at, rule, size, cut in fields["truncations"]
            )
        )
