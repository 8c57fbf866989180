"""What the controller stores about readers and retention. The form is that of ``penstock.codec.metadata``.

Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from penstock.codec.metadata import Fields, Positions, dump_positions, dump_record, load_positions, load_record
from penstock.model.policies import ReaderGroupRetention


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

    ``incarnation`` is the stream's: a subscription does not pass to a later stream of the same name.
    """

    group_id: UUID
    generation: int
    incarnation: int
    cut: Positions | None
    updated_ms: int

    def encode(self) -> bytes:
        return dump_record(
            {
                "group": self.group_id.hex,
                "generation": self.generation,
                "incarnation": self.incarnation,
                "cut": None if self.cut is None else dump_positions(self.cut),
                "updated_ms": self.updated_ms,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> SubscriberRecord:
        return load_record("subscriber", data, cls._build)

    @classmethod
    def _build(cls, fields: Fields) -> SubscriberRecord:
        cut = fields["cut"]
        return cls(
            group_id=UUID(hex=fields["group"]),
            generation=fields["generation"],
            incarnation=fields["incarnation"],
            cut=None if cut is None else load_positions(cut),
            updated_ms=fields["updated_ms"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRecord:
    """A member of a stream's retention set: where the tail was at a time, and how many bytes of history lay before."""

    time_ms: int
    size_bytes: int
    cut: Positions

    def encode(self) -> bytes:
        return dump_record({"time_ms": self.time_ms, "size_bytes": self.size_bytes, "cut": dump_positions(self.cut)})

    @classmethod
    def decode(cls, data: bytes) -> TailRecord:
        return load_record(
            "tail",
            data,
            lambda f: cls(time_ms=f["time_ms"], size_bytes=f["size_bytes"], cut=load_positions(f["cut"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionsRecord:
    """The latest times that a rule took unread data from subscribers, oldest first, as plain fields."""

    evictions: Sequence[Mapping[str, Any]] = ()

    def encode(self) -> bytes:
        return dump_record({"evictions": [dict(item) for item in self.evictions]})

    @classmethod
    def decode(cls, data: bytes) -> EvictionsRecord:
        return load_record("evictions", data, lambda f: cls(evictions=tuple(dict(item) for item in f["evictions"])))
