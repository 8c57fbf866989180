"""Scaling by rate, as values: the rates of a segment, what they ask for, what was decided."""

from __future__ import annotations

import enum

from penstock.model.values.dataclass import dataclass

__all__ = ["Heat", "ScalingAction", "SegmentRates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRates:
    """Growth of one segment per second, in events or kB (1000 bytes) as the stream's policy counts.

    The rates are over the last 2, 5, 10 and 20 minutes. If ``measured_minutes`` is shorter than that, they are over the
    measured time. A setting may make these minutes shorter than a minute (``ControllerSettings.scaling_minute_ms``).
    """

    two: float
    five: float
    ten: float
    twenty: float
    measured_minutes: float

    @property
    def peak(self) -> float:
        """The highest of the four."""
        return max(self.two, self.five, self.ten, self.twenty)


class Heat(enum.Enum):
    """What the rates of a segment ask for. ``NEW``: it is not measured for long enough to be called cold or hot."""

    HOT = "hot"
    COLD = "cold"
    WARM = "warm"
    NEW = "new"


class ScalingAction(enum.Enum):
    """What a decision does with segments of a stream."""

    SPLIT = "split"
    MERGE = "merge"
    NONE = "none"
