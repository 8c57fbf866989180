"""How far a query is behind its stream: bytes, events and time, exact if the store knows.

Spark gives sources written in Python no metrics of their own. It reports their offsets in the progress of the query, and
the store computes the lag from these. A query that is a subscriber is also in ``penstock subscriber list``, with the lag
behind the cut that it published last.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.client.lag import unread_after
from penstock.model.errors import PenstockError
from penstock.model.names import StreamName
from penstock.spark.connect import Connector, Link, Services, dial
from penstock.spark.options import DEFAULT_CONTROLLER
from penstock.spark.reading.losses import offsets_in
from penstock.spark.reading.planning import now_ms
from penstock.spark.reading.positions import Offset, to_cut

log = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What a query has not read of a stream. ``events``: None if the store no longer knows their number.

    ``seconds``: age of the oldest unread event by its append time, as exact as one block of the store
    (docs/reference/spark.md). None if it is not known, 0 if nothing is unread.
    """

    stream: StreamName
    bytes: int
    events: int | None
    seconds: float | None

    def __repr__(self) -> str:
        seconds = None if self.seconds is None else round(self.seconds, 3)
        return f"Lag(stream='{self.stream}', bytes={self.bytes}, events={self.events}, seconds={seconds})"

    def __str__(self) -> str:
        events = "?" if self.events is None else self.events
        seconds = "?" if self.seconds is None else f"{self.seconds:.1f}"
        return f"stream={self.stream} bytes={self.bytes} events={events} seconds={seconds}"


def lags(source: Any, controller: str = DEFAULT_CONTROLLER, *, connector: Connector = dial) -> list[Lag]:
    """How far behind a query is at each of our streams that it reads.

    Args:
        source: A ``StreamingQuery``, or one progress of it. A query without progress has no lags yet.
        controller: Address of the controller; one for all of its streams.
    Raises: StreamNotFoundError, InvalidCutError (the stream was deleted and created again), TruncatedError,
    UnavailableError.
    """
    progress = getattr(source, "lastProgress", source)
    offsets = [] if progress is None else list(offsets_in(progress))
    if not offsets:
        return []
    # This call opens its own connection, because listeners are called from short-lived threads.
    server = Link(connector, controller)
    try:
        return server.ask(lambda services: _lags(services, offsets))
    finally:
        server.close()


async def _lags(services: Services, offsets: Sequence[Mapping[str, Any]]) -> list[Lag]:
    found = []
    for value in offsets:
        stream = StreamName.parse(str(value["stream"]))
        offset = Offset.from_json(stream, value)
        if offset.is_over:
            continue
        unread = await unread_after(services, to_cut(stream, offset.positions))
        age_ms = None if unread.oldest_ms is None else max(0, now_ms() - unread.oldest_ms)
        seconds = 0.0 if unread.bytes == 0 else None if age_ms is None else age_ms / 1000
        found.append(Lag(stream=stream, bytes=unread.bytes, events=unread.events, seconds=seconds))
    return found


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Keeps the lag of each query at its last progress, and logs a line for it: ``spark.streams.addListener(...)``.

    ``latest`` maps the name of a query, or its id if it has no name, to its lags. A query that ended is removed.
    """

    def __init__(self, controller: str = DEFAULT_CONTROLLER, *, connector: Connector = dial) -> None:
        self._controller = controller
        self._connector = connector
        self.latest: dict[str, list[Lag]] = {}
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark names it
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark names it
        name = event.progress.name or str(event.progress.id)
        try:
            found = lags(event.progress, self._controller, connector=self._connector)
        except PenstockError as error:
            # The query itself reports the error of its stream; a listener only observes.
            log.warning("lag is not known. query=%s reason=%s", name, error)
            return
        self.latest[name] = found
        for item in found:
            log.info("lag. query=%s %s", name, item)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark names it
        """Called if there was nothing to read. The lag is unchanged."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark names it
        self.latest.pop(self._names.pop(str(event.id), str(event.id)), None)
