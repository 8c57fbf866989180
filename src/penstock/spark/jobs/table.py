"""Compact a stream to a Parquet table of the latest event per key, so that the stream can delete older events.

Source: docs/design/0017-compact-to-table.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError, InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName, check_name
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.jobs.job_files import literal
from penstock.spark.jobs.progress import ProgressCallback, ignore_progress, repeat_in_background, task_progress
from penstock.spark.jobs.reading import check_plain
from penstock.spark.jobs.table_files import TableDirectory, TableState
from penstock.spark.jobs.table_subscriber import TableRun, publish_table
from penstock.spark.options import parse_read
from penstock.spark.reading.planning import batch_ranges, resolve

KEY, SEGMENT, OFFSET = "key", "segment_id", "offset"
_BUCKET, _DELETED, _COUNT = "bucket", "_deleted", "_count"
_OWN = frozenset({KEY, SEGMENT, OFFSET, _BUCKET, _DELETED, _COUNT})
_BUCKETS_MAX = 4096  # buckets; each is a directory of the table
_PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    """The definition of a table.

    read: Options of the source: ``controller``, ``stream``, …; ``end_stream_cut`` to stop before the tail.
    directory: Directory of the table, on a disk that driver and executors share and that supports links. Its parent must
        exist.
    key: An expression over the columns. Events with equal keys must have equal routing keys, because only then do they
        have an order.
    schema: Spark's DDL of the events' JSON, whose columns the table has. None: the table has the binary column ``event``.
    delete_when: A condition over the columns. An event for which it is true deletes its key from the table.
    subscriber: Name of the table as a subscriber of the stream. None: ``table-STREAM-DIRECTORY``.
    buckets: Number of parts. A part is rewritten as a whole when a key in it changes. The first run fixes the number.
    keep: Number of versions to keep, for readers that still use an older one.
    """

    read: Mapping[str, str]
    directory: Path
    key: str
    schema: str | None = None
    delete_when: str | None = None
    subscriber: str | None = None
    buckets: int = 16
    keep: int = 2

    def checked(self) -> TableRequest:
        """Itself. Raises InvalidArgumentError, InvalidNameError."""
        if not 1 <= self.buckets <= _BUCKETS_MAX:
            raise InvalidArgumentError(f"a table must have 1 to {_BUCKETS_MAX} buckets", buckets=self.buckets)
        if self.keep < 1:
            raise InvalidArgumentError("keep at least one version", keep=self.keep)
        if not self.key.strip():
            raise InvalidArgumentError("a table needs an expression for its key")
        if self.subscriber is not None:
            check_name("subscriber", self.subscriber)
        return self

    def subscriber_of(self, stream: StreamName) -> str:
        """The name of the table as a subscriber. Raises InvalidNameError if the directory's name does not give one."""
        return check_name("subscriber", self.subscriber or f"table-{stream.stream}-{self.directory.absolute().name}")

    def identity(self, stream: StreamName) -> dict[str, Any]:
        """The values that must be the same in all runs of one table."""
        return {
            "stream": str(stream),
            "key": self.key,
            "schema": self.schema,
            "delete_when": self.delete_when,
            "buckets": self.buckets,
            "subscriber": self.subscriber_of(stream),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport(TableRun):
    """The result of a run or, with ``dry_run``, what it would read.

    ``upserts``: keys with a new row. ``deletes``: deleted keys.
    ``without_key``: skipped events. The table now has ``rows``, as version ``number``. ``buckets``: rewritten buckets.
    """

    number: int
    upserts: int
    deletes: int
    without_key: int
    rows: int
    buckets: int


def update_table(
    spark: Any,
    request: TableRequest,
    *,
    on_progress: ProgressCallback = ignore_progress,
    dry_run: bool = False,
    connector: Connector = dial,
) -> TableReport:
    """Create a table, or bring it up to the tail of its stream. A run can be interrupted at any point and repeated.

    The table is a subscriber: retention by consumption can delete only events that the table has durably. Readers see
    either the old version or the new one.

    Raises ConflictError (the table has other options), AlreadyExistsError, DirectoryInUseError, InvalidArgumentError,
    StreamNotFoundError, TruncatedError (retention deleted events that the table lacks), UnavailableError, OSError, and
    Spark's errors for invalid expressions.
    """
    request = request.checked()
    directory = TableDirectory(request.directory)
    state = directory.state()
    options = parse_read(request.read)
    check_plain(options)
    stream = options.stream
    identity = request.identity(stream)
    if state is not None and state.request != identity:
        differing = ", ".join(name for name, value in identity.items() if state.request.get(name) != value)
        raise ConflictError(
            "the table has other options; give the same options, or choose another table", differing=differing
        )
    run = _Run(spark, request, directory, state, connector)
    return run.look() if dry_run else run.update(on_progress)


def read_table(spark: Any, directory: Path) -> Any:
    """The current version as a data frame. Raises NotFoundError."""
    files = TableDirectory(directory)
    state = files.state()
    if state is None:
        raise NotFoundError("there is no table in this directory", directory=directory)
    reader = spark.read.schema(_stored_schema(state))
    return reader.parquet(literal(files.current.resolve())).drop(_BUCKET)


class _Run:
    def __init__(
        self,
        spark: Any,
        request: TableRequest,
        directory: TableDirectory,
        state: TableState | None,
        connector: Connector,
    ) -> None:
        self._spark = spark
        self._request = request
        self._directory = directory
        self._state = state
        self._options = parse_read(request.read)
        self._subscriber = request.subscriber_of(self._options.stream)
        self._connector = connector

    def look(self) -> TableReport:
        start, end, size = self._ask(self._bounds)
        return self._report(self._state, start, end, size, {}, buckets=0, dry_run=True)

    def update(self, on_progress: ProgressCallback) -> TableReport:
        with self._directory.held():
            self._state = self._directory.state()  # another run may have ended since
            start, end, size = self._ask(self._bounds)
            keyed = self._keyed(self._read(start, end))
            # Invalid expressions are reported here, before a subscriber holds the stream for a table that is never
            # made.
            columns = [name for name in keyed.columns if name != _DELETED]
            self._ask(lambda services: self._published(services, start))
            if self._state is not None and start == end:
                return self._report(self._state, start, end, size, {}, buckets=0, dry_run=False)
            with repeat_in_background(task_progress(self._spark, on_progress, "tasks"), every_s=_PROGRESS_S):
                state, counts, buckets = self._make(keyed, columns, end)
            self._ask(lambda services: self._published(services, end))
            self._directory.forget(keep=self._request.keep)
        return self._report(state, start, end, size, counts, buckets=buckets, dry_run=False)

    def _ask(self, work: Any) -> Any:
        return link(self._connector, self._options.controller).served().ask(work)

    async def _bounds(self, services: Services) -> tuple[StreamCut, StreamCut, int]:
        options = self._options
        if self._state is not None:
            start = StreamCut.from_text(self._state.cut)
        else:
            start = await resolve(services, options.stream, options.start, "earliest")
        end = await resolve(services, options.stream, options.end, "latest", end=True)
        ranges = await batch_ranges(services, options.stream, start, end)
        return start, end, sum(high - low for _, low, high in ranges)

    async def _published(self, services: Services, cut: StreamCut) -> None:
        """Hold the stream from ``cut`` on, and release the data before it."""
        request, options = self._request, self._options
        await publish_table(
            services,
            options.stream,
            self._subscriber,
            cut,
            table=str(request.directory.absolute()),
            replaces=options.replaces_query or "",
        )

    def _make(self, keyed: Any, columns: Sequence[str], end: StreamCut) -> tuple[TableState, Mapping[str, int], int]:
        from pyspark.sql import functions as fn

        number = 1 if self._state is None else self._state.number + 1
        bucket = fn.expr(f"pmod(xxhash64({KEY}), {self._request.buckets})").cast("int")
        grouped = _latest(keyed).withColumn(_BUCKET, bucket).persist()
        try:
            rows = grouped.groupBy(_BUCKET, fn.col(KEY).isNull().alias("none")).agg(
                fn.count_if(~fn.col(_DELETED)).alias("upserts"),
                fn.count_if(fn.col(_DELETED)).alias("deletes"),
                fn.sum(_COUNT).alias("events"),
            )
            found = rows.collect()
            named = [row for row in found if not row["none"]]
            touched = sorted(row[_BUCKET] for row in named)
            written = self._write(grouped.where(fn.col(KEY).isNotNull()), columns, touched, number)
        finally:
            grouped.unpersist()
        kept = {} if self._state is None else {int(name): count for name, count in self._state.buckets.items()}
        unchanged = sorted(kept.keys() - set(touched))
        buckets = written | {bucket: kept[bucket] for bucket in unchanged}
        state = TableState(
            number=number,
            stream=str(self._options.stream),
            cut=end.to_text(),
            request=self._request.identity(self._options.stream),
            schema=type(keyed.schema)([item for item in keyed.schema if item.name != _DELETED]).json(),
            buckets={str(bucket): buckets[bucket] for bucket in sorted(buckets)},
        )
        self._directory.publish(state, unchanged=unchanged)
        counts = {
            "upserts": sum(row["upserts"] for row in named),
            "deletes": sum(row["deletes"] for row in named),
            "events": sum(row["events"] for row in found),
            "without_key": sum(row["events"] for row in found if row["none"]),
        }
        return state, counts, len(touched)

    def _read(self, start: StreamCut, end: StreamCut) -> Any:
        ours = {
            "start_stream_cut": start.to_text(),
            "end_stream_cut": end.to_text(),
            "columns": "event,segment_id,offset",
        }
        plain = {name.replace("_", "") for name in ours}
        given = {
            name: value for name, value in self._request.read.items() if name.lower().replace("_", "") not in plain
        }
        return self._spark.read.format("penstock").options(**given, **ours).load()

    def _keyed(self, events: Any) -> Any:
        """For each event, the table's columns, key first, and whether it deletes its key."""
        from pyspark.sql import functions as fn

        request = self._request
        place = [SEGMENT, OFFSET]
        if request.schema is None:
            parsed, names = events, ["event"]
        else:
            value = fn.from_json(fn.col("event").cast("string"), request.schema).alias("_value")
            flat = events.select("event", value, *place)
            names = [item.name for item in flat.schema["_value"].dataType.fields]
            # Spark ignores the case of names.
            clash = sorted(name for name in names if name.lower() in _OWN)
            if clash and not (clash == [KEY] and request.key.strip() in (KEY, f"`{KEY}`")):
                raise InvalidArgumentError("the table reserves these column names", columns=", ".join(clash))
            # If the schema has a column "event", expressions mean that column.
            raw = [] if "event" in {name.lower() for name in names} else ["event"]
            parsed = flat.select(*raw, "_value.*", *place)
        key = fn.expr(request.key).cast("string").alias(KEY)
        deleted = fn.coalesce(fn.expr(request.delete_when or "false"), fn.lit(False)).alias(_DELETED)
        others = [fn.col(_quoted(name)) for name in names if name != KEY]
        return parsed.select(key, *others, *place, deleted)

    def _write(self, latest: Any, columns: Sequence[str], touched: Sequence[int], number: int) -> dict[int, int]:
        """Write the changed buckets in full. Returns the number of rows in each."""
        from pyspark.sql import functions as fn

        columns = [_quoted(name) for name in columns]
        fresh = latest.where(~fn.col(_DELETED)).select(*columns, _BUCKET)
        merged = fresh
        old = [bucket for bucket in touched if self._state is not None and str(bucket) in self._state.buckets]
        if old and self._state is not None:
            reader = self._spark.read.schema(_stored_schema(self._state))
            base = reader.option("basePath", str(self._directory.current.resolve()))
            there = base.parquet(*[literal(self._directory.bucket(bucket)) for bucket in old])
            merged = there.join(latest.select(KEY), KEY, "left_anti").select(*columns, _BUCKET).unionByName(fresh)
        staging = self._directory.making(number)
        parts = merged.repartition(max(1, len(touched)), _BUCKET)
        parts.write.partitionBy(_BUCKET).option("compression", "zstd").parquet(str(staging))
        return _rows_by_bucket(staging)

    def _report(
        self,
        state: TableState | None,
        start: StreamCut,
        end: StreamCut,
        size: int,
        counts: Mapping[str, int],
        *,
        buckets: int,
        dry_run: bool,
    ) -> TableReport:
        return TableReport(
            stream=str(self._options.stream),
            table=str(self._directory.path),
            subscriber=f"{self._options.stream.scope}/{self._subscriber}",
            number=0 if state is None else state.number,
            start=start.to_text(),
            end=end.to_text(),
            read_bytes=size,
            events=counts.get("events", 0),
            upserts=counts.get("upserts", 0),
            deletes=counts.get("deletes", 0),
            without_key=counts.get("without_key", 0),
            rows=0 if state is None else state.rows,
            buckets=buckets,
            dry_run=dry_run,
        )


def _quoted(name: str) -> str:
    """A column's name, quoted for Spark's expressions."""
    return f"`{name.replace('`', '``')}`"


def _stored_schema(state: TableState) -> Any:
    """The columns of a version's files: as Spark's JSON, or as DDL if an earlier version wrote it."""
    from pyspark.sql.types import IntegerType, StructType

    if not state.schema.startswith("{"):
        return f"{state.schema}, {_BUCKET} int"
    return StructType.fromJson(json.loads(state.schema)).add(_BUCKET, IntegerType())


def _latest(keyed: Any) -> Any:
    """The last event of each key, and the number of its events. Events without a key count as one key.

    Segments of a later epoch have higher ids, and their events follow those of earlier segments in every key.
    """
    from pyspark.sql import functions as fn

    row = fn.struct(*[fn.col(_quoted(name)) for name in keyed.columns if name != KEY])
    last = fn.max_by(row, fn.struct(SEGMENT, OFFSET)).alias("_row")
    return keyed.groupBy(KEY).agg(last, fn.count(fn.lit(1)).alias(_COUNT)).select(KEY, "_row.*", _COUNT)


def _rows_by_bucket(staging: Path) -> dict[int, int]:
    import pyarrow.parquet as pq

    found: dict[int, int] = {}
    for file in staging.glob("bucket=*/*.parquet"):
        bucket = int(file.parent.name.partition("=")[2])
        found[bucket] = found.get(bucket, 0) + int(pq.read_metadata(file).num_rows)
    for path in [*staging.glob("_SUCCESS"), *staging.rglob(".*.crc")]:
        path.unlink()
    return found
