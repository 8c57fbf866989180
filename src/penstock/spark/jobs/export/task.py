"""One task of an export: write the events of its shares to Parquet, without rows in Spark. Needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.jobs.event_time import TIMESTAMP, EventTime
from penstock.spark.jobs.export.files import DoneShare, ExportDirectory
from penstock.spark.jobs.reading import Place
from penstock.spark.reading.plan import Share
from penstock.spark.reading.scan import Shape, read_share
from penstock.spark.schema import APPEND_TIME

RESULT = "share int, events bigint"
_RESULT = pa.schema([pa.field("share", pa.int32()), pa.field("events", pa.int64())])

_BATCH_ROWS = 100_000
_GROUP_BYTES = 64 << 20
_OPEN_MAX = 24
"""Partitions that a task writes at the same time; a share with more of them gets more files."""

_NONE = "__HIVE_DEFAULT_PARTITION__"
_PERIODS = {"hour": "h", "day": "D"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportTask:
    """The values that all tasks need. Pickled to them.

    ``todo``: the shares that are not written yet. ``bounds``: by segment, the range of offsets that is exported.
    ``clock``: ``time`` or ``append_time``, the column for partitions and for ``since_us <= time < until_us``.
    """

    place: Place
    output: Path
    todo: tuple[int, ...]
    columns: tuple[str, ...]
    compression: str
    partition: str | None
    time: EventTime | None
    clock: str | None
    since_us: int | None = None
    until_us: int | None = None
    bounds: Mapping[SegmentId, tuple[int, int]] = field(default_factory=dict)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """For ``mapInArrow``. Input: indexes into ``todo``. Output: one row for each written share."""
        directory = ExportDirectory(self.output)
        for batch in batches:
            for share in [self.todo[place] for place in batch.column(0).to_pylist()]:
                done = self.write(directory, share)
                yield pa.RecordBatch.from_arrays(
                    [pa.array([share], pa.int32()), pa.array([done.events], pa.int64())], schema=_RESULT
                )

    def write(self, directory: ExportDirectory, number: int) -> DoneShare:
        """Write a share and record it. Files of a failed attempt stay until the end of the export deletes them."""
        share = Share(stream=self.place.stream, pieces=directory.pieces(number), lease=None, lease_until_ms=0)
        shape = Shape(self._read_schema(), self.place.stream, _BATCH_ROWS)
        files = _Files(self, directory.staging, f"part-{number:06d}-{uuid4().hex[:8]}")
        for batch in read_share(share, shape, self.place.fetch(), self.place.erased()):
            self._add(files, self._chosen(batch))
        files.close()
        return directory.record(
            DoneShare(
                share=number,
                events=files.events,
                size_bytes=files.size_bytes,
                without_time=files.without_time,
                files=files.written,
            )
        )

    def _read_schema(self) -> pa.Schema:
        kinds = {"event": pa.binary(), "segment_id": pa.int64(), "offset": pa.int64()}
        kinds |= {"scope": pa.string(), "stream": pa.string(), APPEND_TIME: TIMESTAMP}
        needed = [*self.columns]
        clock = (self.clock,) if self.clock == APPEND_TIME else ()
        for name in ("event", *clock, *(("segment_id", "offset") if self.bounds else ())):
            if name not in needed:
                needed.append(name)
        return pa.schema([pa.field(name, kinds[name]) for name in needed if name != "time"])

    def _chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch within the bounds, with the column of times."""
        if self.bounds:
            segment = batch.column("segment_id")[0].as_py()
            low, high = self.bounds.get(segment, (0, 1 << 62))
            at = batch.column("offset")
            batch = batch.filter(pc.and_(pc.greater_equal(at, low), pc.less(at, high)))
        if self.clock is None:
            return batch
        if self.time is not None:
            batch = batch.append_column(pa.field("time", TIMESTAMP), self.time.times(batch.column("event")))
        times = batch.column(self.clock)
        if self.since_us is None and self.until_us is None:
            return batch
        micros = times.cast(pa.int64())
        kept = pc.is_valid(micros)
        if self.since_us is not None:
            kept = pc.and_(kept, pc.greater_equal(micros, self.since_us))
        if self.until_us is not None:
            kept = pc.and_(kept, pc.less(micros, self.until_us))
        return batch.filter(pc.fill_null(kept, False))

    def _add(self, files: _Files, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        size = pc.sum(pc.binary_length(batch.column("event"))).as_py() or 0
        files.count(batch.num_rows, size, batch.column(self.clock).null_count if self.clock else 0)
        rows = batch.select(list(self.columns))
        if self.partition is None:
            files.add("", rows)
            return
        periods = (
            batch.column(self.clock or "time")
            .to_numpy(zero_copy_only=False)
            .astype(f"datetime64[{_PERIODS[self.partition]}]")
        )
        for period in np.unique(periods):
            same = np.isnat(periods) if np.isnat(period) else periods == period
            files.add(self._directory(period), rows if same.all() else rows.filter(pa.array(same)))

    def _directory(self, period: np.datetime64) -> str:
        date, _, hour = (_NONE, "", _NONE) if np.isnat(period) else str(period).partition("T")
        return f"date={date}" if self.partition == "day" else f"date={date}/hour={hour}"


class _Files:
    """The files of one attempt: one for each partition, row groups of about 64 MiB. Closed files are durable."""

    def __init__(self, task: ExportTask, root: Path, name: str) -> None:
        self._task = task
        self._root = root
        self._name = name
        self._open: dict[str, _File] = {}
        self._numbered = 0
        self.events = 0
        self.size_bytes = 0
        self.without_time = 0
        self.written: list[dict[str, Any]] = []

    def count(self, events: int, size_bytes: int, without_time: int) -> None:
        self.events += events
        self.size_bytes += size_bytes
        self.without_time += without_time

    def add(self, directory: str, rows: pa.RecordBatch) -> None:
        file = self._open.pop(directory, None)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._close(next(iter(self._open)))
            path = self._root / directory / f"{self._name}-{self._numbered:03d}.parquet"
            self._numbered += 1
            file = _File(path, rows.schema, self._task.compression)
        self._open[directory] = file  # at the end: the first is the least recently used
        file.add(rows)

    def close(self) -> None:
        for directory in list(self._open):
            self._close(directory)

    def _close(self, directory: str) -> None:
        file = self._open.pop(directory)
        rows, size = file.close()
        self.written.append({"path": str(file.path.relative_to(self._root)), "rows": rows, "size_bytes": size})


class _File:
    def __init__(self, path: Path, schema: pa.Schema, compression: str) -> None:
        self.path = path
        self._waiting: list[pa.RecordBatch] = []
        self._bytes = 0
        self._rows = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        names = set(schema.names)
        self._writer = pq.ParquetWriter(
            path,
            schema,
            compression=compression,
            # Events are mostly distinct, so a dictionary would be built and then dropped. Offsets rise.
            use_dictionary=sorted(names & {"segment_id", "scope", "stream"}),
            column_encoding=dict.fromkeys(sorted(names & {"offset", "time", APPEND_TIME}), "DELTA_BINARY_PACKED"),
            write_statistics=sorted(names - {"event"}),
        )

    def add(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._bytes = [], 0

    def close(self) -> tuple[int, int]:
        self._flush()
        self._writer.close()
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
            return self._rows, os.fstat(handle).st_size
        finally:
            os.close(handle)
