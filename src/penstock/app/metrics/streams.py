"""Samples what Prometheus shows of single streams: the largest ones, and those that the operator named.

A store may hold a million streams, so a sample never looks at all of them. It looks again at the streams that are shown,
and at the next few others in the order of their names; a larger one takes the place of the smallest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from heapq import nlargest

from penstock.app.telemetry import Counters, Snapshot
from penstock.model.errors import CorruptDataError, InternalError, NotFoundError, PenstockError, VersionTooNewError
from penstock.model.names import SYSTEM_SCOPE, StreamName
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.telemetry import Labels

log = logging.getLogger(__name__)

EVERY_S = 30.0
"""Between two samples. Prometheus scrapes every 15 to 60 s."""

VISITED_STREAMS = 200
"""Further streams that each sample looks at: 10,000 streams take 13 minutes, and one costs about 0.2 ms."""

_OF_ONE_STREAM = (CorruptDataError, InternalError, VersionTooNewError)
"""Errors of one stream, which must not hide the others."""

_DONE = frozenset({"done", "withdrawn"})


class StreamMetrics:
    """Samples in the background from entry to exit; ``snapshot`` has the last sample.

    ``shown``: how many streams are shown besides the named ones. A stream that does not exist is left out; one whose records
    are damaged is logged, and shown as far as they can be read.
    """

    def __init__(self, controller: ControlPlane, clock: Clock, *, shown: int, named: Sequence[StreamName] = ()) -> None:
        self._controller = controller
        self._clock = clock
        self._shown = shown
        self._named = dict.fromkeys(named)
        self._sizes: dict[StreamName, int] = {}
        self._rest: AsyncIterator[StreamName] | None = None
        self._values = Counters()
        self._sampled_ms: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._sampling = asyncio.Lock()

    async def __aenter__(self) -> StreamMetrics:
        self._task = asyncio.create_task(self._run(), name="stream metrics")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def snapshot(self) -> Snapshot:
        """The last sample; empty before the first one."""
        if self._sampled_ms is not None:
            self._values.gauge("metric_sample_age_seconds", (self._clock.now_ms() - self._sampled_ms) / 1000)
        return self._values.snapshot()

    async def _run(self) -> None:
        while True:
            try:
                await self.sample()
            except PenstockError as error:
                log.warning("streams could not be sampled for metrics", extra={"error": str(error)})
            except Exception:
                log.exception("streams could not be sampled for metrics because of an unexpected error")
            await asyncio.sleep(EVERY_S)

    async def sample(self) -> None:
        """Sample once, after a sample that is under way. If this fails, the last sample stays."""
        async with self._sampling:
            await self._sample()

    async def _sample(self) -> None:
        values = Counters()
        await self._choose()
        for name in {**self._named, **self._sizes}:
            try:
                await self._stream(values, name)
            except NotFoundError:
                self._sizes.pop(name, None)
            except _OF_ONE_STREAM as error:
                _skip(name, error)
        values.gauge("holds", len(await self._controller.holds.list()))
        states = Counter(item.state for item in await self._controller.erasures.list() if item.state not in _DONE)
        for state in ("gathering", "deferred", "asked"):
            values.gauge("erasures_open", states[state], (state,))
        cases = await self._controller.cases.list()
        stages = Counter(item.state for item in cases)
        for state in ("open", "deferred", "performed", "verified"):
            values.gauge("erasure_cases", stages[state], (state,))
        values.gauge("erasure_cases_overdue", sum(item.is_overdue for item in cases))
        self._values, self._sampled_ms = values, self._clock.now_ms()

    async def _choose(self) -> None:
        """Visit the next streams, and keep the largest."""
        if self._rest is None:
            self._rest = self._streams()
        visited = 0
        async for name in self._rest:
            if name not in self._named and name not in self._sizes:
                try:
                    self._sizes[name] = (await self._controller.retention.reclaim(name)).disk_bytes
                except NotFoundError:
                    continue
                except _OF_ONE_STREAM as error:
                    _skip(name, error)
                    continue
            visited += 1
            if visited == VISITED_STREAMS:
                break
        else:
            self._rest = None
        if len(self._sizes) > self._shown:
            self._sizes = dict(nlargest(self._shown, self._sizes.items(), key=lambda item: item[1]))

    async def _streams(self) -> AsyncIterator[StreamName]:
        """All streams of users, in the order of their names."""
        scope = ""
        while scopes := await self._controller.scopes.list(after=scope):
            for scope in scopes:
                stream = ""
                while names := await self._streams_of(scope, stream):
                    for stream in names:
                        name = StreamName(scope, stream)
                        if not name.is_internal and scope != SYSTEM_SCOPE:
                            yield name

    async def _streams_of(self, scope: str, after: str) -> Sequence[str]:
        try:
            return await self._controller.streams.list(scope, after=after)
        except NotFoundError:
            return ()

    async def _stream(self, values: Counters, name: StreamName) -> None:
        retention, label = self._controller.retention, str(name)
        space = await retention.reclaim(name)
        if name not in self._named:
            self._sizes[name] = space.disk_bytes
        values.gauge("stream_live_bytes", space.live_bytes, (label,))
        values.gauge("stream_disk_bytes", space.disk_bytes, (label,))
        values.gauge("stream_freed_bytes", space.freed_bytes, (label,))
        for why, size_bytes in _sums([((item.why.value,), item.bytes) for item in space.pending]).items():
            values.gauge("stream_pending_bytes", size_bytes, (label, *why))
        found = await retention.explain(name)
        for holder, size_bytes in _sums([((item.kind, item.name), item.bytes) for item in found.ranges]).items():
            values.gauge("stream_held_bytes", size_bytes, (label, *holder))
        forecast = await retention.forecast(name)
        for reached in forecast.reaches:
            if reached.at_ms is not None and reached.what != "disk":
                left_s = max(0, reached.at_ms - forecast.at_ms) / 1000
                values.gauge("stream_limit_seconds", left_s, (label, reached.what))
        if forecast.history:
            oldest_ms = next(
                (p.time_ms for p in forecast.history if p.size_bytes >= forecast.history[-1].head_bytes), None
            )
            if oldest_ms is not None:
                values.gauge("stream_oldest_seconds", max(0, forecast.at_ms - oldest_ms) / 1000, (label,))
        await self._subscribers(values, name)

    async def _subscribers(self, values: Counters, name: StreamName) -> None:
        now_ms = self._clock.now_ms()
        for item in await self._controller.subscribers.describe(name):
            labels = (str(name), item.name)
            values.gauge("subscriber_info", 1, (*labels, item.query))
            values.gauge("subscriber_lag_bytes", item.lag_bytes, labels)
            if item.lag_events >= 0:
                values.gauge("subscriber_lag_events", item.lag_events, labels)
            values.gauge("subscriber_lag_seconds", (item.lag_ms or 0) / 1000, labels)
            if item.held_bytes >= 0:
                values.gauge("subscriber_held_bytes", item.held_bytes, labels)
            idle_ms = max(0, now_ms - item.updated_ms) if item.lag_bytes else 0
            values.gauge("subscriber_idle_seconds", idle_ms / 1000, labels)


def _skip(name: StreamName, error: PenstockError) -> None:
    log.warning("a stream could not be sampled for metrics", extra={"stream": name, "error": str(error)})


def _sums(items: Sequence[tuple[Labels, int]]) -> Counter[Labels]:
    sums: Counter[Labels] = Counter()
    for labels, size_bytes in items:
        sums[labels] += size_bytes
    return sums
