"""Rates of the segments of streams that scale by rate. Source: docs/design/0039-scaling-by-rate.md, "Rates"."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from penstock.core.scaling.decision import MUTE_MINUTES, heat_of
from penstock.core.scaling.rates import RateMeter
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import ScaleType
from penstock.model.scaling import Heat, SegmentRates
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import SegmentInfo

_KILOBYTE = 1000  # bytes


@dataclass(slots=True)
class _Measured:
    """A segment that is measured. ``count`` is its last known counter: an evicted segment does not grow."""

    stream: str
    type: ScaleType
    target_rate: int
    minute_ms: int
    count: int
    meter: RateMeter
    muted_until_ms: float = 0.0

    def rates(self, now_ms: float) -> SegmentRates:
        unit = 1 if self.type is ScaleType.EVENTS_PER_S else _KILOBYTE
        return self.meter.rates(self.count, now_ms=now_ms, unit=unit)


class RateMeters:
    """The measured segments of a store. They cost the append path nothing: segments count their bytes and events anyway."""

    def __init__(self, counters: Callable[[str], tuple[int, int] | None]) -> None:
        """``counters`` returns the events and bytes that a segment in memory has durably; None: it is not in memory."""
        self._counters = counters
        self._measured: dict[str, _Measured] = {}
        self._by_stream: dict[str, tuple[str, ...]] = {}
        self._changed = asyncio.Event()

    def unknown(self, watch: RateWatch) -> Sequence[str]:
        """The segments of the watch whose counters ``set`` needs. Raises InvalidArgumentError."""
        if watch.type is ScaleType.FIXED or watch.target_rate < 1 or watch.minute_ms < 1:
            raise InvalidArgumentError(
                "rates must be measured by events or kB, against a target of at least 1",
                stream=watch.stream,
                type=watch.type.value,
                target_rate=watch.target_rate,
                minute_ms=watch.minute_ms,
            )
        return [name for name in watch.segments if not self._keeps(name, watch)]

    def _keeps(self, name: str, watch: RateWatch) -> bool:
        known = self._measured.get(name)
        return known is not None and (known.type, known.minute_ms) == (watch.type, watch.minute_ms)

    def set(self, watch: RateWatch, infos: Mapping[str, SegmentInfo]) -> None:
        """Measure what the watch names. ``infos``: the existing ones of the unknown segments."""
        for name in self._by_stream.pop(watch.stream, ()):
            if name not in watch.segments:
                self._measured.pop(name, None)
        now_ms = _now_ms()
        for name in watch.segments:
            if self._keeps(name, watch):
                self._measured[name].target_rate = watch.target_rate
            elif name in infos:
                info = infos[name]
                count = info.event_count if watch.type is ScaleType.EVENTS_PER_S else info.length
                meter = RateMeter(count, now_ms=now_ms, minute_ms=watch.minute_ms)
                self._measured[name] = _Measured(
                    watch.stream, watch.type, watch.target_rate, watch.minute_ms, count, meter
                )
        names = tuple(name for name in watch.segments if name in self._measured)
        if names:
            self._by_stream[watch.stream] = names
        self._changed.set()

    def rates(self, names: Sequence[str]) -> Mapping[str, SegmentRates]:
        """See ``Rates.segment_rates``."""
        now_ms = _now_ms()
        return {name: self._counted(name).rates(now_ms) for name in names if name in self._measured}

    def note(self, name: str, events: int, size_bytes: int) -> None:
        """Record the counters of a segment that leaves memory. Otherwise its growth would count when it is loaded
        again."""
        measured = self._measured.get(name)
        if measured is not None:
            measured.count = events if measured.type is ScaleType.EVENTS_PER_S else size_bytes

    def _counted(self, name: str) -> _Measured:
        found = self._counters(name)
        if found is not None:
            self.note(name, *found)
        return self._measured[name]

    async def reported(self) -> Sequence[str]:
        """See ``Rates.rates_reported``."""
        while True:
            self._changed.clear()
            found = self._sample()
            if found:
                return found
            pause_ms = min((item.minute_ms for item in self._measured.values()), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if pause_ms is None else pause_ms / 2000):
                    await self._changed.wait()

    def _sample(self) -> Sequence[str]:
        """Sample all, and return the streams with a segment that is hot or cold and not muted."""
        now_ms, found = _now_ms(), dict[str, None]()
        for name in self._measured:
            measured = self._counted(name)
            measured.meter.sample(measured.count, now_ms=now_ms)
            if now_ms < measured.muted_until_ms:
                continue
            if heat_of(measured.rates(now_ms), measured.target_rate) in (Heat.HOT, Heat.COLD):
                measured.muted_until_ms = now_ms + MUTE_MINUTES * measured.minute_ms
                found[measured.stream] = None
        return list(found)


def _now_ms() -> float:
    """A steady clock: that of the event loop, which the simulation controls."""
    return asyncio.get_running_loop().time() * 1000
