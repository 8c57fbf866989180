"""The lag of a query, from its progress: asked for once, or with each progress."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.model.errors import PenstockError
from penstock.spark.connect import Connector, Link, dial
from penstock.spark.lags import Lag, measured
from penstock.spark.options import DEFAULT_CONTROLLER
from penstock.spark.reading.losses import sources_in

log = logging.getLogger("penstock.spark")

__all__ = ["Lag", "LagListener", "lags"]


def lags(
    source: Any, controller: str | None = None, *, connector: Connector = dial, subscriber: bool = False
) -> list[Lag]:
    """How far behind a query is at each of our streams that it reads, in the order of its sources.

    Args:
        source: A ``StreamingQuery``, or one progress of it. A query without progress has no lags yet.
        controller: Address of the controller. Default: the one that each source reports.
        subscriber: Whether to describe the subscriber of each source, too.
    Raises: StreamNotFoundError, InvalidCutError (the stream was deleted and created again), TruncatedError,
    UnavailableError.
    """
    progress = getattr(source, "lastProgress", source)
    found: list[Lag] = []
    for part in () if progress is None else sources_in(progress):
        if not part.offsets:
            continue
        name = part.subscriber if subscriber else None
        # This call opens its own connection, because listeners are called from short-lived threads.
        server = Link(connector, controller or part.controller or DEFAULT_CONTROLLER)
        try:
            found += server.ask(partial(measured, offsets=part.offsets, subscriber=name))
        finally:
            server.close()
    return found


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """Keeps the lag of each query at its last progress, and logs a line for it: ``spark.streams.addListener(...)``.

    ``latest`` maps the name of a query, or its id if it has no name, to its lags. A query that ended is removed.
    """

    def __init__(self, controller: str | None = None, *, connector: Connector = dial) -> None:
        self._controller = controller
        self._connector = connector
        self.latest: dict[str, list[Lag]] = {}
        self._names: dict[str, str] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark names it
        self._names[str(event.id)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark names it
        name = event.progress.name or str(event.progress.id)
        # A listener may be added to a query that has started already.
        self._names[str(event.progress.id)] = name
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
