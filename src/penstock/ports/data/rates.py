"""Rates of segments, for scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from penstock.model.policies import ScaleType
from penstock.model.scaling import SegmentRates
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RateWatch:
    """The segments of one stream whose rates are measured, what is counted, and the target rate of each per second.

    ``minute_ms``: how long a minute of the rates is; shorter than 60,000 in tests only. No segments: measure none.
    """

    stream: str
    segments: Sequence[str]
    type: ScaleType
    target_rate: int
    minute_ms: int


class Rates(Protocol):
    """Rates of segments. What is measured lives in memory: a store that restarts measures nothing until it is asked
    again. So a controller that asks regularly loses no more than the time that was measured."""

    async def measure_rates(self, watches: Sequence[RateWatch]) -> None:
        """Replace what is measured of the named streams. A segment that is measured already keeps its samples if type and
        minute are the same. Segments that do not exist are left out.

        Raises InvalidArgumentError (a fixed type, a target rate or a minute below 1); nothing is changed then.
        """
        ...

    async def segment_rates(self, names: Sequence[str]) -> Mapping[str, SegmentRates]:
        """The rates now; segments that are not measured are left out."""
        ...

    async def rates_reported(self) -> Sequence[str]:
        """Wait until a measured segment is hot or cold; returns the streams of all such segments. A segment is reported once
        in ten minutes. One caller: samples are taken while it waits. Cancelled: a report may be lost until it is repeated."""
        ...
