"""What the controller stores about readers and retention. Source: docs/formats/metadata.md."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated
from uuid import UUID

import msgspec

from penstock.codec.control.record import Field, Fields, JsonRecord, Positions, dump_positions
from penstock.model.answers.subscribers import Eviction
from penstock.model.policies import ReaderGroupRetention
from penstock.model.values.dataclass import dataclass

SUBSCRIBER_VERSION = 2
"""Version of a dropped subscription: an older program would take it for a live one that holds data."""
PAST_TRUNCATIONS_MAX = 100  # truncations; enough for people to look back at
PAST_POSITIONS_MAX = 8_000  # positions in one record, so that it fits in a value of the table


class GroupState(enum.Enum):
    CREATING = "creating"
    ACTIVE = "active"
    DELETING = "deleting"


def _dump_cuts(cuts: Mapping[str, Positions]) -> Fields:
    return {stream: dump_positions(cut) for stream, cut in cuts.items()}


def _retention_name(retention: ReaderGroupRetention) -> str:
    return retention.name


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord(JsonRecord):
    """A reader group."""

    KIND = "group"
    state: Annotated[GroupState, Field("`creating`, `active` or `deleting`")]
    id: Annotated[UUID, Field("unique among all groups that ever had the name")]
    generation: Annotated[int, Field("grows with each change of the configuration")]
    retention: Annotated[
        ReaderGroupRetention,
        Field(
            "`NONE`, `MANUAL` or `AUTOMATIC_AT_LAST_CHECKPOINT`: when positions of the group release data",
            dump=_retention_name,
            load=ReaderGroupRetention.__getitem__,
        ),
    ]
    start_cuts: Annotated[Mapping[str, Positions], Field("by stream: where it begins", name="start", dump=_dump_cuts)]
    end_cuts: Annotated[Mapping[str, Positions], Field("by stream: where it ends", name="end", dump=_dump_cuts)]
    refresh_ms: Annotated[int, Field("how often readers refresh the group's state, ms")]
    checkpoint_interval_ms: Annotated[int, Field("time between automatic checkpoints, ms")]
    max_outstanding_checkpoints: Annotated[int, Field("most checkpoints in progress at once", name="checkpoints")]
    rollover_bytes: Annotated[int, Field("chunk size of the segment with the group's state; 0: the default")]
    leaving: Annotated[
        tuple[str, ...], Field("streams whose subscription a change in progress still has to remove")
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionCommitRecord(JsonRecord):
    """Positions of a reader that were committed with transactions. The group's state has them, or will have them."""

    KIND = "position-commit"
    commit: Annotated[UUID, Field("the id under which the group's state holds the positions")]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberRecord(JsonRecord):
    """A reader group's subscription to one stream. ``cut=None``: it has published nothing.

    ``incarnation`` is the stream's: a later stream of the same name does not inherit the subscription.
    """

    KIND = "subscriber"
    group_id: Annotated[UUID, Field("id of the group", name="group")]
    generation: Annotated[int, Field("generation of the group that wrote this")]
    incarnation: Annotated[int, Field("incarnation of the stream")]
    cut: Annotated[Positions | None, Field("the acknowledged cut; null: it has published nothing", dump=dump_positions)]
    updated_ms: Annotated[
        int, Field("wall clock, ms: when the group itself last moved, or confirmed that nothing is unread")
    ]
    own: Annotated[
        Positions | None,
        Field("the cut that it published last, if a rule has moved `cut` since", optional=True, dump=dump_positions),
    ] = None
    query: Annotated[str, Field("the query that owns the subscriber; absent: unknown", optional=True)] = ""
    run: Annotated[str, Field("latest run of the query", optional=True)] = ""
    past_runs: Annotated[tuple[str, ...], Field("earlier runs, newest first, at most 8", optional=True)] = ()
    dropped: Annotated[
        bool,
        Field(
            "the subscription has ended, and this record is about to be deleted",
            optional=True,
            version=SUBSCRIBER_VERSION,
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TailRecord(JsonRecord):
    """A member of a stream's retention set: where the tail was at a time."""

    KIND = "tail"
    time_ms: Annotated[int, Field("retention clock, ms, as in the key")]
    size_bytes: Annotated[int, Field("bytes of history before it")]
    cut: Annotated[Positions, Field("the tail", dump=dump_positions)]
    events: Annotated[int | None, Field("events before it; absent: not counted", optional=True)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSetRecord(JsonRecord):
    """The state of a stream's retention set, readable without the set. Every change of the set changes this record in
    the same step, so its version shows whether a copy in memory is still the set."""

    KIND = "retention-set"
    pruned_ms: Annotated[
        int,
        Field("retention clock, ms: members up to this time are removed, though their keys may still exist; -1: none"),
    ] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionsRecord(JsonRecord):
    """The latest times that a rule removed unread data of subscribers."""

    KIND = "evictions"
    evictions: Annotated[
        tuple[Eviction, ...],
        Field("oldest first: `at_ms` (wall clock), `subscriber`, `from`, `to`, `bytes`, `events`, `rule`"),
    ] = ()


class PastTruncation(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A past truncation. ``cut``: the head after it; None if it was too large to keep."""

    at_ms: int
    rule: str
    bytes: int
    cut: Positions | None


def _dump_truncations(items: Sequence[PastTruncation]) -> list[object]:
    return [
        [item.at_ms, item.rule, item.bytes, None if item.cut is None else dump_positions(item.cut)] for item in items
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PastTruncationsRecord(JsonRecord):
    """The latest truncations of a stream, oldest first: when, and by which rule, data before the head was deleted."""

    KIND = "truncations"
    truncations: Annotated[
        tuple[PastTruncation, ...],
        Field(
            "lists of wall clock (ms), rule, bytes, and head after it (null: too large to keep)",
            dump=_dump_truncations,
        ),
    ] = ()

    def with_(self, item: PastTruncation) -> PastTruncationsRecord:
        """The record with one more truncation, without the oldest: at most 100, and at most 8,000 positions in
        total."""
        if item.cut is not None and len(item.cut) > PAST_POSITIONS_MAX:
            item = msgspec.structs.replace(item, cut=None)
        kept = [item]
        room = PAST_POSITIONS_MAX - len(item.cut or {})
        for older in reversed(self.truncations[-(PAST_TRUNCATIONS_MAX - 1) :]):
            room -= len(older.cut or {})
            if room < 0:
                break
            kept.append(older)
        return PastTruncationsRecord(truncations=tuple(reversed(kept)))
