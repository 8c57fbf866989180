"""When a limit, a quota or the disk is reached at the rates of the last hour. Source: docs/formats/planner.md."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

__all__ = ["Forecast", "HistoryPoint", "ReachedLimit"]


class ReachedLimit(Struct, frozen=True, kw_only=True):
    """A limit and when it is reached.

    ``what``: ``retain.min_bytes``, ``retain.max_bytes``, ``backlog.max_bytes`` or ``disk``. ``bytes_per_s``: how fast
    ``used_bytes`` grow. ``subscriber``: whose backlog it is, else empty. ``at_ms``: by the retention clock, milliseconds
    since the Unix epoch; now if it is reached; None: not at this rate.
    """

    what: str
    limit_bytes: int
    used_bytes: int
    bytes_per_s: float
    subscriber: str
    at_ms: int | None


class HistoryPoint(Struct, frozen=True, array_like=True, order=True):
    """A stream at a time, milliseconds since the Unix epoch: bytes since the beginning of history up to the tail and up to
    the head. As JSON a list of three numbers."""

    time_ms: int
    size_bytes: int
    head_bytes: int


class Forecast(Struct, frozen=True, kw_only=True):
    """Rates over the last ``window_ms`` and what they fill. ``at_ms``: now by the retention clock. ``size_bytes``: from head
    to tail. ``history``: at most 500 points, oldest first."""

    version: int
    stream: str
    at_ms: int
    size_bytes: int
    append_bytes_per_s: float
    release_bytes_per_s: float
    window_ms: int
    reaches: Sequence[ReachedLimit]
    history: Sequence[HistoryPoint]
