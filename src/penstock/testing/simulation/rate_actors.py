"""A stream that scales by rate, and writers that note times. In all other runs neither happens.

Source: docs/design/0039-scaling-by-rate.md, docs/design/0043-watermarks.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

from penstock.client.reading.reader import AsyncReader
from penstock.client.retry import RETRYABLE
from penstock.client.writing.writer import AsyncWriter
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.model.segments import SegmentRange
from penstock.testing.simulation.actors import LOOK_S, STREAM, Env
from penstock.testing.simulation.config import RateSettings, SimConfig
from penstock.testing.simulation.history import TimedWriter

AGGREGATION_MS = 1 << 40
"""No writer is forgotten because it is silent: a clock that jumps would decide when."""

_COME_TO_REST_S = 60.0

_LOG_FILE_BYTES = 384 << 10
"""Room for the record of past truncations. With this many segments it reaches its limit of 8,000 positions."""


def with_rates(config: SimConfig) -> SimConfig:
    """The same run, with a stream that scales by rate and writers that note times."""
    rng = random.Random(f"{config.seed}/rates")
    rates = RateSettings(
        minute_ms=rng.choice((50, 100, 200)),
        target_rate=rng.choice((1, 2, 5)),
        factor=rng.choice((2, 3, 4)),
        watermark_ms=rng.choice((100, 300, 1000)),
    )
    return replace(config, rates=rates, log_file_bytes=max(config.log_file_bytes, _LOG_FILE_BYTES))


def scaling_policy(config: SimConfig) -> ScalingPolicy:
    """The scaling policy of the run's stream."""
    rates = config.rates
    if rates is None:
        return ScalingPolicy(min_segments=config.segments)
    return ScalingPolicy(
        type=ScaleType.EVENTS_PER_S,
        target_rate=rates.target_rate,
        factor=rates.factor,
        min_segments=config.segments,
    )


# --- times --------------------------------------------------------------------------------------------------------


class NotedTimes:
    """The times of one writer. Each event has a later one than any that the writer noted before."""

    def __init__(self, env: Env, name: str) -> None:
        self._env = env
        self._rng = env.rng(f"times/{name}")
        self._name = name
        self._record: TimedWriter | None = None
        self._last = self._began_ms = int(env.loop.time() * 1000)
        self._pace = self._rng.choice((0.2, 1.0))
        """The times of some writers pass slowly: theirs is what everybody has to wait for."""

    async def begin(self, writer: AsyncWriter) -> None:
        """Make the writer known before its first event: only then does it hold watermarks back."""
        if self._env.config.rates is not None:
            await writer.note_time(self._next())
            self._record = self._env.history.timed_writer(self._name)

    def _next(self) -> int:
        passed_ms = self._env.loop.time() * 1000 - self._began_ms
        self._last = max(self._last + 1, self._began_ms + int(self._pace * passed_ms))
        return self._last

    def wrote(self, data: bytes) -> None:
        if self._record is not None:
            self._record.times[data] = self._next()

    async def note(self, writer: AsyncWriter, *, last: bool = False) -> None:
        """After a flush, now and then, and at the end of the writer."""
        if self._record is not None and (last or self._rng.random() < 0.5):
            noted = self._last
            await writer.note_time(noted)
            self._record.noted = noted


class Windows:
    """The time windows of one reader. Their bounds never go back."""

    def __init__(self, env: Env, name: str) -> None:
        self._env = env
        self._rng = env.rng(f"windows/{name}")
        self._lower: int | None = None
        self._upper: int | None = None

    def read(self, data: bytes) -> None:
        if self._lower is not None:
            self._env.history.read_after_bound(data, self._lower)

    async def look(self, reader: AsyncReader) -> None:
        """Ask for the window now and then."""
        if self._env.config.rates is None or self._rng.random() < 0.5:
            return
        try:
            found = await reader.time_window()
        except RETRYABLE:
            return
        for what, before, now in (
            ("lower", self._lower, found.lower_ms),
            ("upper", self._upper, found.upper_ms),
        ):
            if before is not None and now is not None and now < before:
                self._env.history.violation("bound went back", f"{what} from {before} to {now}")
        if self._lower is not None and found.lower_ms is None:
            self._env.history.violation("bound went back", f"lower from {self._lower} to nothing")
        self._lower, self._upper = found.lower_ms, found.upper_ms if found.upper_ms is not None else self._upper


# --- scaling ------------------------------------------------------------------------------------------------------


async def watch_segments(env: Env, name: str) -> None:
    """Segments always cover all keys once, and are never fewer than the policy's minimum."""
    rng = env.rng(name)
    while not env.stopping.is_set():
        await env.pause(rng)
        try:
            _check_segments(env, await env.controller.layout.current(STREAM))
        except RETRYABLE:
            continue


def _check_segments(env: Env, segments: Sequence[SegmentRange]) -> None:
    ranges = sorted(segments, key=lambda item: item.keys.low)
    if not ranges:
        return
    bounds = [0.0, *(item.keys.high for item in ranges)]
    if [item.keys.low for item in ranges] != bounds[:-1] or bounds[-1] != 1.0:
        env.history.violation("keys not covered", str([item.keys for item in ranges]))
    if len(ranges) < env.config.segments:
        env.history.violation("too few segments", f"{len(ranges)} of {env.config.segments}")


async def check_rest(env: Env) -> None:
    """A stream without load merges down to its minimum, and then stays as it is."""
    rates = env.config.rates
    if rates is None:
        return
    twenty_minutes_s = 20 * rates.minute_ms / 1000
    ends_s = env.loop.time() + _COME_TO_REST_S
    while (count := await _count(env)) != env.config.segments:
        if env.loop.time() > ends_s:
            env.history.violation("stuck", f"an idle stream keeps {count} segments of {env.config.segments}")
            return
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(2 * twenty_minutes_s)
    if (count := await _count(env)) != env.config.segments:
        env.history.violation("flapping", f"an idle stream has {count} segments")


async def _count(env: Env) -> int:
    return len(await env.insist(lambda: env.controller.layout.current(STREAM)))
