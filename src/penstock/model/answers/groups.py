"""Reader groups as they are now: who reads what, and how far behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from penstock.model.answers.plan import Offsets

__all__ = ["GroupDescription", "GroupMember", "GroupProgress"]


class GroupMember(Struct, frozen=True, kw_only=True):
    """A reader of a group. ``segments``: by stream, the segments that it reads, with what it has recorded as processed.

    A dead reader stays a member until another one notices it, after its lease.
    """

    name: str
    segments: Mapping[str, Offsets]


class GroupProgress(Struct, frozen=True, kw_only=True):
    """How far a group is in one stream.

    ``position``: what its readers have recorded as processed; of a group whose positions another program keeps, what it
    has acknowledged. None if the store knows neither, or the stream was deleted. ``acknowledged``: what retention may
    delete; None if the group holds no data of the stream.

    Lags are from ``position`` to the tail, without truncated data. ``lag_bytes`` is exact. ``lag_events`` is exact, or
    None if some of the events were never counted. ``lag_ms`` is the age of the oldest unread event, exact to one block
    of the store: 1 MiB or 10 seconds of appends. It is 0 if nothing is unread, and None if the store kept no time.
    """

    stream: str
    position: Offsets | None
    acknowledged: Offsets | None
    lag_bytes: int | None
    lag_events: int | None
    lag_ms: int | None


class GroupDescription(Struct, frozen=True, kw_only=True):
    """A reader group. ``retention``: ``none``, ``manual`` or ``automatic``. ``owner``: who keeps the positions, in words.

    ``unassigned``: by stream, the segments that no reader has now. Members are sorted by name, streams too.
    """

    group: str
    id: str
    generation: int
    retention: str
    owner: str
    members: Sequence[GroupMember]
    unassigned: Mapping[str, Offsets]
    streams: Sequence[GroupProgress]
