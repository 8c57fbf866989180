"""Laws of ``ports.data.rates.Rates``."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from uuid import UUID

from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import ScaleType
from penstock.model.scaling import SegmentRates
from penstock.ports.data.rates import Rates, RateWatch
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.ports.data.service import LocalSegmentService
from penstock.testing.conformance import check

_STREAM = "scope/rates"
_NAMES = [f"{_STREAM}/0.#epoch.0", f"{_STREAM}/1.#epoch.0"]
_WATCH = RateWatch(stream=_STREAM, segments=_NAMES, type=ScaleType.EVENTS_PER_S, target_rate=1, minute_ms=20)
_PATIENCE_S = 20.0


class RateLaws:
    """Subclass and implement ``open``."""

    def open(self) -> AbstractAsyncContextManager[LocalSegmentService]:
        raise NotImplementedError

    async def law_hot_and_cold_segments_are_reported_again_and_again(self) -> None:
        async with self.open() as store:
            await store.create_segment(_NAMES[0])
            await store.measure_rates([_WATCH])
            async with asyncio.timeout(_PATIENCE_S):
                for _ in range(2):
                    check(list(await store.rates_reported()) == [_STREAM], "the stream is reported")
            rates = await store.segment_rates(_NAMES)
            check(list(rates) == _NAMES[:1], "only what exists is measured")
            check(rates[_NAMES[0]].measured_minutes >= 20, "an idle segment is reported after twenty minutes")

    async def _timed(self, store: Rates) -> tuple[SegmentRates, float, float]:
        """The rates of the first segment, and when they were asked for and answered."""
        loop = asyncio.get_running_loop()
        asked_s = loop.time()
        rates = (await store.segment_rates(_NAMES))[_NAMES[0]]
        return rates, asked_s, loop.time()

    async def law_events_or_bytes_are_counted_as_asked(self) -> None:
        async with self.open() as store:
            await store.create_segment(_NAMES[0])
            for kind, peak in ((ScaleType.EVENTS_PER_S, 7), (ScaleType.KILOBYTES_PER_S, 5)):
                await store.measure_rates([replace(_WATCH, type=kind, minute_ms=60_000)])
                writer = UUID(int=peak)
                append = Append(
                    segment=_NAMES[0], writer=writer, data=bytes(5000), event_number=9, event_count=7, previous=NO_EVENT
                )
                await store.append(append)
                rates, asked_s, answered_s = await self._timed(store)
                measured_s = rates.measured_minutes * 60
                await asyncio.sleep(0.01)
                later, asked_again_s, answered_again_s = await self._timed(store)
                # Each answer was measured between its question and its arrival, however long both took.
                grown_s = later.measured_minutes * 60 - measured_s
                least_s, most_s = asked_again_s - answered_s - 0.001, answered_again_s - asked_s + 0.001
                check(least_s <= grown_s <= most_s, "time is measured", least_s=least_s, grown_s=grown_s, most_s=most_s)
                check(abs(rates.peak * measured_s - peak) < 1e-6 * peak, "growth is counted", kind=kind.value)

    async def law_a_refused_call_measures_nothing_and_no_segments_end_it(self) -> None:
        async with self.open() as store:
            await store.create_segment(_NAMES[0])
            for wrong in (
                replace(_WATCH, type=ScaleType.FIXED),
                replace(_WATCH, target_rate=0),
                replace(_WATCH, minute_ms=0),
            ):
                try:
                    await store.measure_rates([_WATCH, wrong])
                except InvalidArgumentError:
                    check(not await store.segment_rates(_NAMES), "a refused call changes nothing")
                else:
                    check(False, "the call is refused")
            await store.measure_rates([_WATCH])
            check(list(await store.segment_rates(_NAMES)) == _NAMES[:1], "it is measured")
            await store.measure_rates([replace(_WATCH, segments=())])
            check(not await store.segment_rates(_NAMES), "nothing is measured any more")
