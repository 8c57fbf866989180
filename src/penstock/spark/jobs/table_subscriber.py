"""A table as a subscriber of its stream: the stream keeps what the table lacks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from penstock.core.streams.query_source import TABLE_PREFIX
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.queries import SOURCE_MAX_BYTES, QuerySource
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Services
from penstock.spark.reading.planning import positions_of
from penstock.spark.reading.subscription import subscribe


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRun:
    """What the reports of runs that bring a table up to date have in common. ``table`` is the ``subscriber`` of ``stream``.
    ``events`` and ``read_bytes`` were read between the cuts ``start`` and ``end``; with ``dry_run`` they would be read."""

    stream: str
    table: str
    subscriber: str
    start: str
    end: str
    read_bytes: int
    events: int
    dry_run: bool

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


async def publish_table(
    services: Services, stream: StreamName, subscriber: str, cut: StreamCut, *, table: str, replaces: str
) -> None:
    """Hold the stream from ``cut`` on, and release the data before it. ``table``: what owns the subscriber.

    Raises WriterInUseError: the subscriber belongs to another table or query; they would release each other's data.
    """
    name = f"{TABLE_PREFIX}{table}".encode()[-SOURCE_MAX_BYTES:].decode(errors="ignore")
    source = QuerySource(query=name, replaces=replaces)
    found = await subscribe(services, stream, subscriber, cut, source)
    await found.publish(services, await positions_of(services, cut), source)
