"""Append a stream to a table of a lake, each event exactly once. Source: docs/design/0045-lake-tables.md.

Tasks write data files. The driver commits them together with the cut that they end at, then publishes the cut as a
subscriber. The next run begins at the cut in the table, so a run may die at any point.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa

from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError, InvalidArgumentError, PenstockError, UnsupportedError
from penstock.model.names import StreamName, check_name
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.jobs.lake.events import columns_to_read, event_rows
from penstock.spark.jobs.lake.keys import DELETED, check_times, latest_of_keys, with_keys
from penstock.spark.jobs.lake.task import BAD, RESULT, LakeTask, files_of, on_spark
from penstock.spark.jobs.progress import ProgressCallback, ignore_progress, repeat_in_background, task_progress
from penstock.spark.jobs.table_subscriber import TableRun, publish_table
from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.port import (
    APPEND_TIME,
    KEY,
    PERIODS,
    POSITION,
    Change,
    DataFile,
    TableDefinition,
    TableMovedError,
    TableState,
)
from penstock.spark.lake.rows import FilePlan
from penstock.spark.lake.upkeep import compact, replace_keys, small_groups
from penstock.spark.options import parse_read
from penstock.spark.reading.planning import batch_ranges, resolve

log = logging.getLogger("penstock.spark")

BAD_EVENTS = ("fail", "null")
_PROGRESS_S = 1.0
_LOST_MAX = 5
"""Steps in a row that lose to other commits: then another run appends to the table, and one of them must stop."""
_MOMENTS = ("start_timestamp", "end_timestamp")
"""Options that the job has resolved to cuts before it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRequest:
    """What to append, and where.

    read: options of the source: ``controller``, ``stream``, …; ``start_stream_cut`` for the first run; ``event_format``:
        with ``record``, each event is a record, and its value is what a schema describes.
    schema: Spark's DDL of the events' JSON, whose columns the table has. None: the table has the binary column ``event``,
        or the columns of records.
    partition: ``day`` or ``hour`` of the timestamp in the column ``time``; None: no partitions.
    key: an expression over the columns; the table has the latest event of each key. Events with equal keys must have equal
        routing keys, because only then do they have an order. None: the table has all events.
    delete_when: a condition over the columns. An event for which it is true deletes its key from the table.
    bad_events: what happens to an event that does not fit the schema: ``fail`` the run, or ``null`` in its columns.
    compact_at: merge small files when there are so many of them; 0: never. compact_bytes: size of the merged ones.
    """

    read: Mapping[str, str]
    address: TableAddress
    schema: str | None = None
    partition: str | None = None
    time: str = APPEND_TIME
    subscriber: str | None = None
    key: str | None = None
    delete_when: str | None = None
    bad_events: str = "fail"
    compact_at: int = 64
    compact_bytes: int = 128 << 20

    def checked(self) -> LakeRequest:
        """Itself. Raises InvalidArgumentError, InvalidNameError."""
        if self.partition is not None and self.partition not in PERIODS:
            raise InvalidArgumentError("partitions must be by hour or day", partition=self.partition)
        if self.bad_events not in BAD_EVENTS:
            raise InvalidArgumentError(f"bad_events must be one of {', '.join(BAD_EVENTS)}", bad_events=self.bad_events)
        if self.compact_at < 0 or self.compact_at == 1 or self.compact_bytes < 1:
            raise InvalidArgumentError(
                "files to merge must be at least 2, or 0 for never",
                compact_at=self.compact_at,
                bytes=self.compact_bytes,
            )
        if self.subscriber is not None:
            check_name("subscriber", self.subscriber)
        if self.key is not None and not self.key.strip():
            raise InvalidArgumentError("the expression for the key is empty")
        if self.delete_when is not None and self.key is None:
            raise InvalidArgumentError("only a table of keys has deletions; give a key")
        return self

    def definition(self, stream: StreamName, *, records: bool = False) -> TableDefinition:
        """What all runs of the table have in common. Raises InvalidNameError if the table's name gives no subscriber."""
        name = self.address.target.rstrip("/").rpartition("/")[2].replace(".", "-")
        return TableDefinition(
            stream=str(stream),
            subscriber=check_name("subscriber", self.subscriber or f"lake-{stream.stream}-{name}"),
            schema=self.schema,
            partition=self.partition,
            time=self.time,
            key=self.key,
            delete_when=self.delete_when,
            event_format="record" if records else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReport(TableRun):
    """The result of one step or, with ``dry_run``, what it would read.

    The ``events`` are in ``files`` new files, in commit ``sequence`` of the table; of a
    table of keys, only the latest one of each key.
    ``merged``: small files that were replaced by larger ones.
    """

    sequence: int
    files: int
    merged: int


def append_to_table(
    spark: Any,
    request: LakeRequest,
    *,
    on_progress: ProgressCallback = ignore_progress,
    dry_run: bool = False,
    connector: Connector = dial,
) -> LakeReport:
    """Create a table, or append all events since its last commit, up to the tail of the stream.

    A run may be stopped at any point and repeated: each event is in the table once. The table is a subscriber: retention by
    consumption can delete only events that are committed to the table.

    Raises ConflictError (the table has other options, or another run has committed), AlreadyExistsError (something else is
    there), InvalidArgumentError, StreamNotFoundError, TruncatedError (retention deleted events that the table lacks),
    WriterInUseError (the subscriber belongs to another table), UnavailableError, and Spark's errors for a schema that it
    cannot parse and for what a task raised.
    """
    return _Run(spark, request.checked(), connector).step(on_progress, dry_run=dry_run)


def follow_with_table(
    spark: Any,
    request: LakeRequest,
    *,
    every_s: float,
    on_commit: Callable[[LakeReport], None],
    on_progress: ProgressCallback = ignore_progress,
    connector: Connector = dial,
    stop: threading.Event | None = None,
) -> None:
    """Append to a table, again and again, until ``stop`` is set or the call interrupted. A step begins ``every_s`` seconds
    after the last one ended.

    ``on_commit`` is called after each step that has committed events. If it raises, that ends the call. If another commit
    comes first, as of an erasure, the step is repeated. Raises as ``append_to_table``; ConflictError only if steps in a row
    lose to other commits.
    """
    run = _Run(spark, request.checked(), connector)
    stop = threading.Event() if stop is None else stop
    lost = 0
    while not stop.is_set():
        try:
            report = run.step(on_progress)
        except TableMovedError as error:
            lost += 1
            if lost == _LOST_MAX:
                raise
            log.warning("another commit to the table came first; the step is repeated", extra={"error": str(error)})
        else:
            lost = 0
            if report.events:
                on_commit(report)
        stop.wait(every_s)


class _Run:
    def __init__(self, spark: Any, request: LakeRequest, connector: Connector) -> None:
        self._spark = spark
        self._request = request
        self._options = parse_read(request.read)
        self._connector = connector
        self._definition = request.definition(self._options.stream, records=self._options.records)
        self._table = open_table(request.address)
        self._settled: TableState | None = None
        """The last commit that is known to be durable and complete."""

    def step(self, on_progress: ProgressCallback, *, dry_run: bool = False) -> LakeReport:
        state = self._table.state()
        if state is not None:
            self._check_same(state)
        start, end, size = self._ask(lambda services: self._bounds(services, state))
        if dry_run:
            return self._report(state, start, end, size, [], merged=0, dry_run=True)
        # Invalid options are reported here, before there is a table or a subscriber.
        rows, schema = self._typed(start, end)
        if state is None:
            state = self._table.create(self._definition, schema, start.to_text())
        elif state != self._settled:
            # The process that made this commit may have died before it was durable. What is published may be deleted.
            self._table.settle()
        self._publish(start)
        files: list[DataFile] = []
        if start != end:
            with repeat_in_background(task_progress(self._spark, on_progress, "tasks"), every_s=_PROGRESS_S):
                state, files = self._append(rows, schema, state, end.to_text())
            self._publish(end)
        self._settled = state
        merged = self._compact() if files else 0
        return self._report(state, start, end, size, files, merged=merged, dry_run=False)

    def _check_same(self, state: TableState) -> None:
        wanted = self._definition.as_json()
        differing = ", ".join(name for name, value in wanted.items() if state.definition.get(name) != value)
        if differing:
            raise ConflictError(
                "the table has other options; give the same options, or choose another table",
                differing=differing,
                table=self._request.address.target,
            )

    def _ask(self, work: Any) -> Any:
        return link(self._connector, self._options.controller).served().ask(work)

    def _publish(self, cut: StreamCut) -> None:
        async def publish(services: Services) -> None:
            await publish_table(
                services,
                self._options.stream,
                self._definition.subscriber,
                cut,
                table=self._request.address.registered(),
                replaces=self._options.replaces_query or "",
            )

        self._ask(publish)

    async def _bounds(self, services: Services, state: TableState | None) -> tuple[StreamCut, StreamCut, int]:
        options = self._options
        if state is not None:
            start = StreamCut.from_text(state.cut)
        else:
            start = await resolve(services, options.stream, options.start, "earliest")
        end = await resolve(services, options.stream, options.end, "latest", end=True)
        ranges = await batch_ranges(services, options.stream, start, end)
        return start, end, sum(high - low for _, low, high in ranges)

    def _typed(self, start: StreamCut, end: StreamCut) -> tuple[Any, pa.Schema]:
        """The rows with the table's columns and ``BAD``, and the schema of the data files."""
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType, TimestampType

        request, records = self._request, self._options.records
        rows, names = event_rows(self._read(start, end), request.schema, key=request.key, records=records)
        time_field = next((item for item in rows.schema if item.name == request.time), None)
        is_key = request.key is not None and request.time == KEY
        if time_field is None or is_key or not isinstance(time_field.dataType, TimestampType):
            raise InvalidArgumentError("partitions by time need a column of type TIMESTAMP", column=request.time)
        if request.time != APPEND_TIME:
            rows = check_times(rows, request.time)
        if request.key is not None:
            rows = with_keys(rows, request.key, request.delete_when)
            names = [KEY, *(name for name in names if name != KEY)]
        kept = {*names, *POSITION, BAD, *([] if request.key is None else [DELETED])}
        rows = rows.drop(*(name for name in rows.columns if name not in kept))
        plain = StructType([rows.schema[name] for name in [*names, *POSITION]])
        schema = to_arrow_schema(plain, timezone="UTC")
        return rows, pa.schema([item.with_nullable(True) for item in schema])

    def _read(self, start: StreamCut, end: StreamCut) -> Any:
        ours = {
            "start_stream_cut": start.to_text(),
            "end_stream_cut": end.to_text(),
            "columns": ",".join(columns_to_read(records=self._options.records)),
        }
        plain = {name.replace("_", "") for name in (*ours, *_MOMENTS)}
        given = {
            name: value for name, value in self._request.read.items() if name.lower().replace("_", "") not in plain
        }
        return self._spark.read.format("penstock").options(**given, **ours).load()

    def _append(self, rows: Any, schema: pa.Schema, state: TableState, cut: str) -> tuple[TableState, list[DataFile]]:
        if self._request.key is None:
            files = self._write(rows, schema, state)
            return self._table.commit(state, Change(cut=cut, added=files)), files
        from pyspark.sql import functions as fn

        latest = latest_of_keys(rows, bad_first=self._request.bad_events == "fail").persist()
        try:
            keys = frozenset(latest.select(KEY).toArrow().column(KEY).to_pylist())
            files = self._write(latest.where(~fn.col(DELETED) | fn.col(BAD)), schema, state)
        finally:
            latest.unpersist()
        run = on_spark(self._spark)
        return replace_keys(self._table, state, keys, fresh=files, cut=cut, run=run), files

    def _write(self, rows: Any, schema: pa.Schema, state: TableState) -> list[DataFile]:
        request = self._request
        plan = FilePlan(
            place=self._table.place,
            prefix=self._table.data_prefix,
            sequence=state.sequence + 1,
            partition=request.partition,
            time=request.time,
            run=uuid4().hex[:12],
        )
        task = LakeTask(plan=plan, schema=schema, fails=request.bad_events == "fail")
        try:
            found = rows.mapInArrow(task, RESULT).collect()
        except Exception:
            # One bad event stops each run. Without this, what the other tasks have written would fill the disk.
            self._drop(plan)
            raise
        return [file for row in found for file in files_of(row["files"]) or ()]

    def _drop(self, plan: FilePlan) -> None:
        try:
            plan.drop()
        except PenstockError as error:
            log.warning(
                "files of a failed run could not be deleted",
                extra={"table": self._table.place.url, "error": str(error)},
            )

    def _compact(self) -> int:
        request = self._request
        if not request.compact_at:
            return 0
        try:
            small = sum(map(len, small_groups(self._table.files(), request.compact_bytes)))
            if small < request.compact_at:
                return 0
            return compact(self._table, target_bytes=request.compact_bytes, run=on_spark(self._spark)).removed
        except ConflictError:
            return 0  # another writer was first; the events are committed, and a later run merges the files
        except UnsupportedError as error:
            # Another writer marked rows as deleted. That stops no append.
            log.warning("small files of the table are not merged", extra={"error": str(error)})
            return 0

    def _report(
        self,
        state: TableState | None,
        start: StreamCut,
        end: StreamCut,
        size: int,
        files: list[DataFile],
        *,
        merged: int,
        dry_run: bool,
    ) -> LakeReport:
        return LakeReport(
            stream=str(self._options.stream),
            table=self._request.address.registered(),
            subscriber=f"{self._options.stream.scope}/{self._definition.subscriber}",
            sequence=0 if state is None else state.sequence,
            start=start.to_text(),
            end=end.to_text(),
            read_bytes=size,
            events=sum(file.rows for file in files),
            files=len(files),
            merged=merged,
            dry_run=dry_run,
        )
