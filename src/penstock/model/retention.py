"""The policy document: when data is deleted, at three levels. Each level sets a value, lifts the limit, or leaves it
open.

Source: docs/design/0011-retention-policies.md. The JSON form (docs/formats/policy.md) has the same names.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass


class Inherit(enum.Enum):
    """The value of a field that this level leaves to the next one: stream, then scope, then server."""

    INHERIT = "inherit"

    def __repr__(self) -> str:
        return "INHERIT"


INHERIT = Inherit.INHERIT

Limit = int | float | Inherit | None
"""A number, None (unlimited), or left to the next level."""


class Combine(enum.Enum):
    """Two minimums: both must be kept (``ALL``), or data is deleted as soon as either allows it (``ANY``)."""

    ANY = "any"
    ALL = "all"


class Measure(enum.Enum):
    """What limits of bytes and age apply to: the stream as a whole, or each of its segments."""

    STREAM = "stream"
    SEGMENT = "segment"


class Unsubscribed(enum.Enum):
    """What happens to data above the minimum while there are no subscribers."""

    KEEP = "keep"
    RELEASE = "release"


class OnExceed(enum.Enum):
    """What a full backlog does: writers wait, writers are refused, or the slowest subscribers lose data."""

    HOLD = "hold"
    REJECT = "reject"
    EVICT = "evict"


class IdleWhen(enum.Enum):
    """When an unused stream counts as idle."""

    NO_SUBSCRIBERS = "no_subscribers"
    CAUGHT_UP = "caught_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """What truncation must leave (``min_*``) and must not leave (``max_*``). Bytes, seconds.

    ``lock_until``: until that time nobody can shorten what the minimum promises. Text of ISO 8601 with a zone.
    """

    min_bytes: Limit = INHERIT
    min_age_s: Limit = INHERIT
    combine: Combine | Inherit = INHERIT
    max_bytes: Limit = INHERIT
    max_age_s: Limit = INHERIT
    measure: Measure | Inherit = INHERIT
    lock_until: str | Inherit = INHERIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What may be unread. ``ttl_s``: unread data older than that counts as read. ``evict_to``: share of the limit that
    eviction reduces the backlog to. ``on_exceed``: what each of the three quotas does, unless it has its own action."""

    ttl_s: Limit = INHERIT
    max_bytes: Limit = INHERIT
    max_age_s: Limit = INHERIT
    max_events: Limit = INHERIT
    on_exceed: OnExceed | Inherit = INHERIT
    on_exceed_bytes: OnExceed | Inherit = INHERIT
    on_exceed_age: OnExceed | Inherit = INHERIT
    on_exceed_events: OnExceed | Inherit = INHERIT
    evict_to: float | Inherit = INHERIT


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """When a silent subscriber is dropped, and when an unused stream is deleted."""

    subscriber_s: Limit = INHERIT
    stream_s: Limit = INHERIT
    stream_when: IdleWhen | Inherit = INHERIT


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDocument:
    """The policy of one level. An empty document leaves everything to the next level.

    ``grace_s``: between logical truncation and physical deletion, while the truncation can be undone.
    """

    retain: Retain = Retain()
    unsubscribed: Unsubscribed | Inherit = INHERIT
    backlog: Backlog = Backlog()
    idle: Idle = Idle()
    grace_s: Limit = INHERIT

    @property
    def is_empty(self) -> bool:
        """Whether the document sets no field."""
        return self == PolicyDocument()


EMPTY = PolicyDocument()

PolicyTarget = StreamName | str | None
"""The level of a document: a stream, a scope by its name, or (None) the server."""


class Level(enum.Enum):
    """The origin of an effective value."""

    STREAM = "stream"
    SCOPE = "scope"
    SERVER = "server"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePolicy:
    """The effective policy of one stream. Bytes and whole milliseconds; ``None`` is unlimited.

    ``min_bytes`` and ``min_age_ms``: infinite where None; of a dimension that no level names they are 0 and not in
    ``given``, and take no part in ``combine``. ``truncates`` is False where no level says anything of ``retain``: then all
    data is kept. ``origins`` maps each field of the document (``retain.min_bytes``) to the level that its value is from.
    ``on_exceed_bytes``, ``on_exceed_age`` and ``on_exceed_events`` are None if ``on_exceed`` decides. ``lock_until_ms``:
    the latest end of the locks of all levels, wall clock; None: no level has a lock.
    """

    min_bytes: int | None = 0
    min_age_ms: int | None = 0
    combine: Combine = Combine.ANY
    max_bytes: int | None = None
    max_age_ms: int | None = None
    measure: Measure = Measure.STREAM
    lock_until_ms: int | None = None
    unsubscribed: Unsubscribed = Unsubscribed.KEEP
    ttl_ms: int | None = None
    backlog_bytes: int | None = None
    backlog_age_ms: int | None = None
    backlog_events: int | None = None
    on_exceed: OnExceed = OnExceed.HOLD
    on_exceed_bytes: OnExceed | None = None
    on_exceed_age: OnExceed | None = None
    on_exceed_events: OnExceed | None = None
    evict_to: float = 0.9
    subscriber_idle_ms: int | None = None
    stream_idle_ms: int | None = None
    stream_idle_when: IdleWhen = IdleWhen.NO_SUBSCRIBERS
    grace_ms: int = 0
    truncates: bool = False
    origins: Mapping[str, Level] = field(default_factory=dict)

    def __hash__(self) -> int:
        # The planner looks policies up for each decision. These fields distinguish most of them; hashing all takes 2 us.
        return hash((self.min_bytes, self.max_bytes, self.max_age_ms))

    def given(self, name: str) -> bool:
        """Whether some level names the field, as ``retain.min_bytes``."""
        return self.origins.get(name, Level.DEFAULT) is not Level.DEFAULT

    @property
    def limits_backlog(self) -> bool:
        """Whether any backlog quota is set."""
        return not (self.backlog_bytes is None and self.backlog_age_ms is None and self.backlog_events is None)

    @property
    def bytes_action(self) -> OnExceed:
        """What the quota of bytes does."""
        return self.on_exceed_bytes or self.on_exceed

    @property
    def age_action(self) -> OnExceed:
        """What the quota of age does."""
        return self.on_exceed_age or self.on_exceed

    @property
    def events_action(self) -> OnExceed:
        """What the quota of events does."""
        return self.on_exceed_events or self.on_exceed

    @property
    def quota_actions(self) -> tuple[OnExceed, ...]:
        """What each quota that is set does: bytes, events, age."""
        quotas = (
            (self.backlog_bytes, self.bytes_action),
            (self.backlog_events, self.events_action),
            (self.backlog_age_ms, self.age_action),
        )
        return tuple([action for limit, action in quotas if limit is not None])


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldInfo:
    """A hold: the data it covers stays, whatever any rule or any call says.

    ``stream=None``: all streams of the scope. ``cut``: only data from there on; None: all of the stream. ``until_ms=None``:
    until it is released.
    """

    id: str
    scope: str
    stream: StreamName | None
    owner: str
    reason: str
    created_ms: int
    until_ms: int | None = None
    cut: StreamCut | None = None

    @property
    def is_undo(self) -> bool:
        """Whether an undo placed it: it ends by itself, and binds rules only; people may truncate and delete."""
        return self.owner == "undo" and self.id.startswith("undone-")
