"""Policies of a stream: how it scales, how long it keeps data."""

from __future__ import annotations

import enum
from typing import TypeVar

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

E = TypeVar("E", bound=enum.Enum)

INT_MAX = (1 << 31) - 1  # largest signed 32-bit number: rates and factors in Pravega's messages
LONG_MAX = (1 << 63) - 1  # largest signed 64-bit number: what segments and protocols carry
SEGMENTS_MAX = 10_000


def _member(kind: type[E], field: str, given: object) -> E:
    """The member, given itself or its value. Raises InvalidArgumentError."""
    if isinstance(given, kind):
        return given
    for member in kind:
        if member.value == given:
            return member
    known = ", ".join(str(member.value) for member in kind)
    raise InvalidArgumentError(f"{field} must be one of {known}", **{field: repr(given)[:60]})


def _check_whole(what: str, **given: object) -> None:
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise InvalidArgumentError(
                f"{what} must be a whole number", field=name, value=repr(value)[:60], type=type(value).__name__
            )


class ScaleType(enum.Enum):
    """A fixed number of segments, or a rate per segment: the store splits segments above it and merges those below."""

    FIXED = "fixed"
    KILOBYTES_PER_S = "kbytes"
    EVENTS_PER_S = "events"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """How many segments, and at which rate they split and merge.

    ``target_rate`` is per segment and second (events or kB of 1000 bytes); a hot segment is split into at most
    ``factor`` new ones. ``type`` may be given by its value: "fixed", "kbytes" or "events".
    """

    type: ScaleType = ScaleType.FIXED
    target_rate: int = 0
    factor: int = 0
    min_segments: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", _member(ScaleType, "type", self.type))
        _check_whole(
            "a field of a scaling policy",
            target_rate=self.target_rate,
            factor=self.factor,
            min_segments=self.min_segments,
        )
        if not 1 <= self.min_segments <= SEGMENTS_MAX:
            raise InvalidArgumentError(
                f"a stream must have 1 to {SEGMENTS_MAX} segments", min_segments=self.min_segments
            )
        if self.type is not ScaleType.FIXED and (self.target_rate < 1 or self.factor < 2):
            raise InvalidArgumentError(
                "scaling by rate needs a target rate of at least 1 and a factor of at least 2",
                target_rate=self.target_rate,
                factor=self.factor,
            )


class RetentionType(enum.Enum):
    """Whether the limits of a ``RetentionPolicy`` are sizes or ages."""

    SIZE = "size"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """What truncation must leave (``minimum``) and must not leave (``maximum``), in bytes or milliseconds.

    ``type`` may be given by its value: "size" or "time". ``maximum=None`` is unlimited. With subscribers, data is
    deleted once all of them have acknowledged it, within these limits. Source: Pravega Stream Retention, "Size & Time
    Based"; a missing maximum is unlimited, a missing minimum 0.
    """

    type: RetentionType
    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", _member(RetentionType, "type", self.type))
        limit = f"a limit of retention by {self.type.value} (in {self.unit})"
        _check_whole(limit, minimum=self.minimum)
        if self.maximum is not None:
            _check_whole(limit, maximum=self.maximum)
        if self.minimum < 0:
            raise InvalidArgumentError("retention minimum is negative", minimum=self.minimum)
        if self.maximum is not None and self.maximum < self.minimum:
            raise InvalidArgumentError(
                "retention minimum exceeds the maximum", minimum=self.minimum, maximum=self.maximum
            )

    @property
    def unit(self) -> str:
        """The unit of ``minimum`` and ``maximum``: ``bytes`` or ``ms``."""
        return "bytes" if self.type is RetentionType.SIZE else "ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """Everything a user sets on a stream. ``retention=None`` keeps all data forever.

    ``rollover_bytes=0`` means the store's default chunk size. ``timestamp_aggregation_ms``: how long a writer that notes
    no time holds back the watermark; 0 means a minute. ``tags`` is a set in the order in which the tags were given:
    repeats are dropped.
    """

    scaling: ScalingPolicy = ScalingPolicy()
    retention: RetentionPolicy | None = None
    tags: tuple[str, ...] = ()
    timestamp_aggregation_ms: int = 0
    rollover_bytes: int = 0

    def __post_init__(self) -> None:
        if self.rollover_bytes < 0:
            raise InvalidArgumentError("rollover size is negative", rollover_bytes=self.rollover_bytes)
        if not isinstance(self.scaling, ScalingPolicy):
            raise InvalidArgumentError("scaling must be a ScalingPolicy", scaling=repr(self.scaling)[:60])
        if not isinstance(self.retention, RetentionPolicy | None):
            raise InvalidArgumentError(
                "retention must be a RetentionPolicy or None", retention=repr(self.retention)[:60]
            )
        object.__setattr__(self, "tags", tuple(dict.fromkeys(self.tags)))
        if len(self.tags) > 128 or any(not 0 < len(tag) <= 256 for tag in self.tags):
            raise InvalidArgumentError(
                "a stream can have at most 128 tags, of 1 to 256 characters", tags=len(self.tags)
            )

    def check_storable(self) -> None:
        """Raises InvalidArgumentError if a number does not fit where segments and protocols keep it.

        That is 32 bits for a target rate and a factor, 64 bits for the others.

        Checked when a stream is created or updated, not on construction: records of earlier versions must stay
        readable.
        """
        numbers = {
            "rollover_bytes": self.rollover_bytes,
            "timestamp_aggregation_ms": self.timestamp_aggregation_ms,
        }
        narrow = {"target_rate": self.scaling.target_rate, "factor": self.scaling.factor}
        if self.retention is not None:
            numbers |= {"minimum": self.retention.minimum, "maximum": self.retention.maximum or 0}
        _check_whole("a field of a stream's configuration", **numbers)
        for bits, limit, given in ((64, LONG_MAX, numbers), (32, INT_MAX, narrow)):
            for name, value in given.items():
                if not -limit <= value <= limit:
                    raise InvalidArgumentError(
                        f"a number of a stream's configuration does not fit in {bits} bits",
                        field=name,
                        value=str(value)[:60],
                    )


class ReaderGroupRetention(enum.Enum):
    """When a reader group's positions release data. Values are Pravega's field values."""

    NONE = 0
    MANUAL = 1
    AUTOMATIC_AT_LAST_CHECKPOINT = 2
