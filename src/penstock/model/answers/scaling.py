"""How a stream scales by rate: its rates, what would be done now and why, and what was done."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.names import StreamName
from penstock.model.policies import ScalingPolicy
from penstock.model.scaling import Heat, ScalingAction, SegmentRates
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass

__all__ = ["ScalingChange", "SegmentHeat", "StreamScaling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeat:
    """An active segment. ``rates``: None if its store has not measured it yet."""

    range: SegmentRange
    heat: Heat
    rates: SegmentRates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingChange:
    """A change that was decided by rate. ``epoch`` is the one that it began; ``at_ms`` is wall time."""

    at_ms: int
    action: ScalingAction
    reason: str
    epoch: int
    sealed: Sequence[SegmentId]
    opened: Sequence[KeyRange]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamScaling:
    """The decision that would be made now, and the last changes, oldest first.

    ``reason`` is a sentence for people. ``segments`` are in key order, and empty for a sealed stream or a fixed number of
    segments. ``changes``: at most ten, since the controller started; the audit stream has all.
    """

    stream: StreamName
    policy: ScalingPolicy
    epoch: int
    action: ScalingAction
    reason: str
    segments: Sequence[SegmentHeat] = ()
    changes: Sequence[ScalingChange] = ()
