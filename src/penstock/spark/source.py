# ruff: noqa: N802 - Spark names these methods.
"""The format ``penstock``: what Spark loads on the driver and unpickles in tasks. Source: docs/reference/spark.md.

Spark kills the processes in which these objects live, does not reliably call ``stop``, and pickles readers from the
driver to tasks. So they hold plain values only, and connections belong to the process (``connect.link``).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar
from uuid import UUID

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from penstock.model.errors import (
    InvalidArgumentError,
    PenstockError,
)
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.ports.data.chunks import LEASE_PARTS_MAX
from penstock.spark.choice import chosen_at_start
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.options import ReadOptions, WriteOptions, parse_sink, parse_source
from penstock.spark.reading.partition import read_partition, release_lease
from penstock.spark.reading.plan import Share, together
from penstock.spark.reading.planning import (
    batch_ranges,
    holder_of,
    plan_shares,
    resolve,
    shares_for,
    without_lost,
)
from penstock.spark.reading.pruning import Wanted, wanted_of
from penstock.spark.reading.times import time_bound_us
from penstock.spark.reasons import readable, readable_items
from penstock.spark.schema import (
    APPEND_TIME,
    EVENT_TIME_BOUND,
    READ_MARK,
    RECORD_COLUMNS,
    check_read_schema,
    check_record_schema,
    check_write_schema,
    read_columns,
    routing_columns,
    target_columns,
)
from penstock.spark.worker.collector import spare
from penstock.spark.worker.lifetime import end_quietly, end_with_driver
from penstock.spark.worker.plan_access import access_by_stream
from penstock.spark.worker.spans import header_of, spark_span
from penstock.storage.machine.rng import RealRng

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from penstock.spark.reading.stream import StreamReader
    from penstock.spark.writing.sink import BatchWriter, StreamWriter


log = logging.getLogger("penstock.spark")

# Every worker that plans a read or commits a write loads this module.
end_quietly()

_PUSHING = "pyspark.sql.worker.data_source_pushdown_filters"


class PenstockSource(DataSource):  # type: ignore[misc]
    """Reads and writes streams, in batches and continuously. Options: docs/reference/spark.md."""

    connector: ClassVar[Connector] = staticmethod(dial)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @readable
    def schema(self) -> StructType:
        """Spark's schema of a read, all columns nullable: the five columns, or those of option ``columns``."""
        from pyspark.sql.types import StructType

        options = parse_source(self.options)
        schema = StructType()
        for name, kind in read_columns(options.columns, records=options.records):
            schema.add(name, _type_of(kind), True, {READ_MARK: True})
        return schema

    @readable
    def reader(self, schema: StructType) -> BatchReader:
        options = self._read_options(schema)
        if options.subscriber is not None:
            raise InvalidArgumentError(
                "option subscriber belongs to readStream: a batch read commits nothing", subscriber=options.subscriber
            )
        link(self._connector(), options.controller).served()
        kind = FilteringReader if _pushes_filters() else BatchReader
        return kind(self._connector(), options, schema)

    @readable
    def streamReader(self, schema: StructType) -> StreamReader:
        from penstock.spark.reading.peers import peers_of_driver
        from penstock.spark.reading.stream import StreamReader

        end_with_driver()
        options = self._read_options(schema)
        link(self._connector(), options.controller).served()
        return StreamReader(self._connector(), options, schema, peers_of_driver(options.controller))

    @readable
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from penstock.spark.writing.sink import BatchWriter

        spare("writer")
        options, keyed, columns = self._write_options(schema, overwrite, "mode('append') or INSERT INTO")
        link(self._connector(), options.controller).served_first()
        return BatchWriter(self._connector(), options, keyed, columns).planned()

    # Spark passes ``overwrite`` by name when it commits: another name would fail every commit.
    @readable
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from penstock.spark.writing.sink import StreamWriter

        spare("writer")
        options, keyed, columns = self._write_options(schema, overwrite, "outputMode('append')")
        link(self._connector(), options.controller).served_first()
        return StreamWriter(self._connector(), options, keyed, columns).planned()

    def _connector(self) -> Connector:
        return type(self).connector

    def _read_options(self, schema: StructType) -> ReadOptions:
        options = parse_source(self.options)
        check_read_schema(_columns(schema), records=options.records)
        return options

    def _write_options(
        self, schema: StructType, overwrite: bool, instead: str
    ) -> tuple[WriteOptions, bool, tuple[str, ...]]:
        options = parse_sink(self.options)
        if overwrite:
            named = {} if options.target is None else {"stream": options.target}
            raise InvalidArgumentError(f"a stream is never overwritten; use {instead}", **named)
        event, key = options.event_column, options.routing_key_column
        if options.records:
            keyed = check_record_schema(_columns(schema), routing_key=key)
        else:
            keyed = check_write_schema(_columns(schema), event=event, routing_key=key)
        fields = [(field.name, field.dataType.simpleString(), field.metadata or {}) for field in schema.fields]
        if options.target is None:
            return options, keyed, routing_columns(fields, event, key, scope=options.scope)
        return options, keyed, target_columns(fields, event, key)


def _type_of(kind: str) -> str | DataType:
    """Spark's type by its name. Without a JVM, Spark itself parses no nested type."""
    if kind != RECORD_COLUMNS["headers"]:
        return "long" if kind == "bigint" else kind
    from pyspark.sql.types import ArrayType, StructType

    return ArrayType(StructType().add("key", "string").add("value", "binary"))


def _columns(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema.fields]


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """A bounded read between two cuts of each stream. Each action on the data frame resolves "earliest" and "latest" anew."""

    def __init__(self, connector: Connector, options: ReadOptions, schema: StructType) -> None:
        self._connector = connector
        self._options = options
        self._schema = schema
        self._wanted: Wanted | None = None

    @readable
    def partitions(self) -> list[InputPartition]:
        """Shares of the range, about ``target_partition_bytes`` each; their chunks are leased until all shares are
        read."""
        server = link(self._connector, self._options.controller)
        lease = RealRng().uuid()
        try:
            with spark_span("plan a batch read", {"messaging.system": "penstock"}) as span:
                shares = server.ask(lambda services: self._plan(services, lease))
                span.set("penstock.partitions", len(shares))
                shares = [replace(share, trace=header_of(span)) for share in shares]
        except PenstockError:
            # Some segments may already be leased.
            release_lease(server, lease)
            raise
        if not shares:
            # There is no task that would release it.
            release_lease(server, lease)
        if len(shares) > LEASE_PARTS_MAX:
            return [InputPartition(share) for share in shares]
        return [InputPartition(replace(share, part=(number, len(shares)))) for number, share in enumerate(shares)]

    async def _plan(self, services: Services, lease: UUID) -> Sequence[Share]:
        options = self._options
        streams = await chosen_at_start(services, options.choice)
        bound_us = await self._time_bound(services, streams)
        ranges = {item: await self._ranges(services, options.of(item)) for item in streams}
        sizes = {stream: sum(high - low for _, low, high in found) for stream, found in ranges.items()}
        total = sum(sizes.values())
        shares: list[Share] = []
        read = [stream for stream, found in ranges.items() if found]
        access = await access_by_stream(self._connector, services, read, valid_s=options.token_s)
        for stream, found in ranges.items():
            if found:
                shares += await plan_shares(
                    services,
                    replace(options.of(stream), min_partitions=max(1, options.min_partitions * sizes[stream] // total)),
                    found,
                    lease=lease,
                    holder=holder_of(options.of(stream), "batch read"),
                    with_times=APPEND_TIME in self._schema.names,
                    wanted=self._wanted,
                )
        shares = [replace(share, time_bound_us=bound_us, access=access[share.stream]) for share in shares]
        return together(shares, goal_bytes=max(1, -(-total // shares_for(options, total))))

    async def _time_bound(self, services: Services, streams: Iterable[StreamName]) -> int | None:
        if EVENT_TIME_BOUND not in self._schema.names:
            return None
        of = [self._options.of(stream) for stream in streams]
        # Before the ranges are resolved: if the head moves meanwhile, the bound is too early, never too late.
        starts = [await resolve(services, one.stream, one.start, "earliest") for one in of]
        return await time_bound_us(services, starts)

    async def _ranges(self, services: Services, options: ReadOptions) -> Sequence[tuple[SegmentId, int, int]]:
        """What to read of one stream."""
        start = await resolve(services, options.stream, options.start, "earliest")
        end = await resolve(services, options.stream, options.end, "latest", end=True)
        ranges = await batch_ranges(services, options.stream, start, end)
        kept = await without_lost(services, options.stream, ranges, fail=options.fail_on_data_loss)
        return [item for item in kept if self._wanted is None or self._wanted.segment_id.holds(item[0])]

    @readable_items
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._connector, self._options, self._schema, partition)


class FilteringReader(BatchReader):
    """A batch read that skips blocks in which no row passes the filters.

    It is a separate class because Spark refuses every read of a reader that has ``pushFilters`` if
    ``spark.sql.python.filterPushdown.enabled`` is false, which is the default.
    """

    @readable
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Record the filters. All are returned, so that Spark also evaluates them: the blocks contain other rows
        too."""
        self._wanted = wanted_of(filters)
        return filters


def _pushes_filters() -> bool:
    """Whether this is the process in which Spark pushes filters. It exists only if the setting is on."""
    main = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)
    return _PUSHING in (*sys.modules, main)
