"""How far a query is behind each of its streams: bytes, events and time, exact if the store knows.

Spark gives sources written in Python no metrics of their own. So a source puts its lag into the latest offset that it
reports, and Spark shows that in the progress of the query.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias

from penstock.client.lag import unread_after
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.spark.connect import Link, Services
from penstock.spark.reading.planning import now_ms
from penstock.spark.reading.positions import Offset, each_offset, to_cut

log = logging.getLogger("penstock.spark")

_STREAMS_AT_ONCE = 16  # streams that are measured at the same time
_SHARE = 19
"""The next measurement waits so many times as long as the last one took: it costs a query a twentieth of its time."""

State: TypeAlias = Literal["registered", "taken over", "missing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberLag:
    """The subscriber of a query, as the store has it.

    ``state``: ``registered``; ``taken over``: it belongs to another query now; ``missing``: it was removed or dropped,
    so it holds no data. ``bytes``, ``events`` and ``seconds``: as in ``Lag``, but from the position that it has
    published, a batch or two before the query's. ``held_bytes``: data that only this subscriber keeps. The figures are
    None if it is missing or has published nothing.
    """

    name: str
    state: State
    owner: str = ""
    bytes: int | None = None
    events: int | None = None
    seconds: float | None = None
    held_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What a query has not read of a stream. ``events``: None if the store no longer knows their number.

    ``seconds``: age of the oldest unread event by its append time, as exact as one block of the store
    (docs/reference/spark.md). None if it is not known, 0 if nothing is unread. ``subscriber``: None if the query has
    none, or if it was not asked for.
    """

    stream: StreamName
    bytes: int
    events: int | None
    seconds: float | None
    subscriber: SubscriberLag | None = None

    def __repr__(self) -> str:
        seconds = None if self.seconds is None else round(self.seconds, 3)
        last = "" if self.subscriber is None else f", subscriber={self.subscriber}"
        return f"Lag(stream='{self.stream}', bytes={self.bytes}, events={self.events}, seconds={seconds}{last})"

    def __str__(self) -> str:
        events = "?" if self.events is None else self.events
        seconds = "?" if self.seconds is None else f"{self.seconds:.1f}"
        return f"stream={self.stream} bytes={self.bytes} events={events} seconds={seconds}"

    def to_json(self) -> dict[str, Any]:
        """Without the subscriber."""
        seconds = None if self.seconds is None else round(self.seconds, 3)
        return {"stream": str(self.stream), "bytes": self.bytes, "events": self.events, "seconds": seconds}


async def measured(
    services: Services, offsets: Iterable[Mapping[str, Any]], subscriber: str | None = None
) -> Sequence[Lag]:
    """The lag at each offset, given as in Spark's log, in their order. ``subscriber``: also describe it.

    Streams that the query has left behind have none. Raises: StreamNotFoundError, InvalidCutError, TruncatedError,
    UnavailableError.
    """
    limit = asyncio.Semaphore(_STREAMS_AT_ONCE)

    async def one(value: Mapping[str, Any]) -> Lag | None:
        stream = StreamName.parse(str(value["stream"]))
        offset = Offset.from_json(stream, value)
        if offset.is_over:
            return None
        async with limit:
            unread = await unread_after(services, to_cut(stream, offset.positions))
            described = None
            if subscriber is not None:
                described = await _subscriber(services, stream, subscriber, offset.query)
        seconds = 0.0 if unread.bytes == 0 else None
        if unread.bytes and unread.oldest_ms is not None:
            seconds = _age_s(unread.oldest_ms)
        return Lag(stream=stream, bytes=unread.bytes, events=unread.events, seconds=seconds, subscriber=described)

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(one(value)) for value in offsets]
    return [lag for task in asked if (lag := task.result()) is not None]


def _age_s(at_ms: int) -> float:
    return max(0, now_ms() - at_ms) / 1000


async def _subscriber(services: Services, stream: StreamName, name: str, query: str) -> SubscriberLag:
    described = await services.controller.subscribers.describe(stream)
    return subscriber_lag(
        name, query, next((item for item in described if item.name == f"{stream.scope}/{name}"), None)
    )


def subscriber_lag(name: str, query: str, found: SubscriberInfo | None) -> SubscriberLag:
    """The subscriber's lag, from what the store knows of it. ``query``: the query's own id; empty: not known."""
    if found is None:
        return SubscriberLag(name=name, state="missing")
    state: State = "taken over" if query and found.query and found.query != query else "registered"
    if found.cut is None:
        return SubscriberLag(name=name, state=state, owner=found.owner)
    return SubscriberLag(
        name=name,
        state=state,
        owner=found.owner,
        bytes=found.lag_bytes,
        events=None if found.lag_events < 0 else found.lag_events,
        seconds=0.0 if found.lag_bytes == 0 else None if found.lag_ms is None else found.lag_ms / 1000,
        held_bytes=None if found.held_bytes < 0 else found.held_bytes,
    )


class BatchLag:
    """What the last planned batch of a source leaves unread, measured once for each batch."""

    def __init__(self) -> None:
        self._planned: dict[str, Any] | None = None
        self._found: list[dict[str, Any]] | None = None
        self._measure_at = 0.0

    def planned(self, end: dict[str, Any]) -> dict[str, Any]:
        """Record the end of a batch, and return it."""
        self._planned, self._found = end, None
        return end

    def measured(self, server: Link) -> list[dict[str, Any]] | None:
        """The lag of each stream behind the batch's end. None if it is not known, or would take too much time."""
        if self._planned is None or time.monotonic() < self._measure_at:
            return self._found
        planned, self._planned, began = self._planned, None, time.monotonic()
        try:
            lags = server.run(partial(measured, offsets=each_offset(planned)))
            self._found = [lag.to_json() for lag in lags]
        except PenstockError as error:
            # The query meets the error itself, if it lasts.
            log.info("lag of a batch is not known", extra={"error": str(error)})
        now = time.monotonic()
        self._measure_at = now + _SHARE * (now - began)
        return self._found
