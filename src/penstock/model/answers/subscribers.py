"""Subscribers that were moved: by a call, or by a rule past data that they had not read."""

from __future__ import annotations

from msgspec import Struct, field

from penstock.model.answers.plan import Offsets

__all__ = ["Eviction", "SubscriberMove"]


class SubscriberMove(Struct, frozen=True, kw_only=True):
    """An acknowledged cut that is set from ``start`` to ``end`` (``from`` and ``to`` as JSON), forwards or backwards.

    ``from_cut``: ``start`` as the text of a stream cut; ``lower_cut``: so the earlier of both cuts at each key. ``bytes``,
    ``events``: those skipped minus those to be read again. ``passed_bytes``, ``passed_events``: those skipped unread,
    from ``lower_cut`` to ``end``. Events are None if a cut lies inside an event.
    """

    stream: str
    subscriber: str
    start: Offsets = field(name="from")
    end: Offsets = field(name="to")
    from_cut: str
    lower_cut: str
    bytes: int
    events: int | None
    passed_bytes: int
    passed_events: int | None


class Eviction(Struct, frozen=True, kw_only=True):
    """A subscriber that a rule moved past unread data, at ``at_ms`` (milliseconds since the Unix epoch).

    ``start`` and ``end``: ``from`` and ``to`` as JSON, None if the cuts were too large to be kept. ``bytes``, ``events``:
    what it lost; events None if a cut lies inside an event. ``rule``: a ``RetentionRule``.
    """

    at_ms: int
    subscriber: str
    start: Offsets | None = field(name="from")
    end: Offsets | None = field(name="to")
    bytes: int
    events: int | None
    rule: str
