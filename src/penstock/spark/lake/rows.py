"""Write rows as data files of a table, by partition, and read them back."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import BinaryIO, cast
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model.values.dataclass import dataclass
from penstock.spark.lake.place import Place
from penstock.spark.lake.port import DATE, HOUR, PERIODS, DataFile, file_name, file_name_of_run

_NONE = "__HIVE_DEFAULT_PARTITION__"
_UNITS: Mapping[str, str] = {"hour": "h", "day": "D"}
_GROUP_BYTES = 64 << 20
_FILE_BYTES = 256 << 20
"""Size in memory of the rows of one file: a task keeps the file on its disk until it is complete."""
_OPEN_MAX = 24
"""Partitions that a writer has open at the same time. With more of them, there are more files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePlan:
    """Where and how to write data files of one commit. Plain values, for tasks.

    ``prefix``: a directory in ``place``; ``sequence``: of the commit. ``partition``: ``day``, ``hour`` or None, of the column
    ``time``. ``splits``: begin another file where one has 256 MiB in memory; False: one file for each partition.
    ``run``: begins the token in the files' names, so that a run that fails finds what its tasks have written.
    """

    place: Place
    prefix: str
    sequence: int
    partition: str | None
    time: str
    splits: bool = True
    run: str = ""

    def drop(self) -> int:
        """Delete the complete files of this run, which no commit may name. Returns how many. Raises UnavailableError."""
        begin = file_name_of_run(self.sequence, self.run)
        there = self.place.paths(self.prefix)
        return self.place.delete([path for path in there if path.rpartition("/")[2].startswith(begin)])


class RowWriter:
    """Writes the files of one attempt. A file exists when it is complete; no reader sees it before the commit.

    A context: at the end of the block, what is not complete is dropped.
    """

    def __init__(self, plan: FilePlan) -> None:
        self._plan = plan
        self._token = plan.run + uuid4().hex[:12]
        self._numbered = 0
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self.written: list[DataFile] = []

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._open.values():
            file.drop()
        self._open.clear()

    def add(self, rows: pa.Table) -> None:
        """Write rows to the files of their partitions."""
        for values, same in split(rows, self._plan.partition, self._plan.time):
            self.add_to(values, same)

    def add_to(self, values: tuple[str | None, ...], rows: pa.Table) -> None:
        """Write rows of one partition, which has these values."""
        file = self._open.pop(values, None)
        if file is None:
            if len(self._open) >= _OPEN_MAX:
                self._close(next(iter(self._open)))
            file = _OpenFile(self._numbered, rows.schema)
            self._numbered += 1
        self._open[values] = file  # at the end: the first is the least recently used
        file.add(rows)
        if self._plan.splits and file.size_bytes >= _FILE_BYTES:
            self._close(values)

    def close(self) -> Sequence[DataFile]:
        """Complete all files and return them."""
        for values in list(self._open):
            self._close(values)
        return self.written

    def _close(self, values: tuple[str | None, ...]) -> None:
        file, plan = self._open.pop(values), self._plan
        names = PERIODS[plan.partition]
        directory = "".join(
            f"{name}={_NONE if value is None else value}/" for name, value in zip(names, values, strict=True)
        )
        path = f"{plan.prefix}{directory}{file_name(plan.sequence, self._token, file.number)}"
        rows, content = file.close()
        with content:
            size = plan.place.put(path, content)
        partition = dict(zip(names, values, strict=True))
        self.written.append(DataFile(path=path, size_bytes=size, rows=rows, partition=partition))


class _OpenFile:
    def __init__(self, number: int, schema: pa.Schema) -> None:
        # Without a name: a task that is killed leaves no copy of its events behind.
        self._content = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115, closed by its reader
        self.number = number
        self.size_bytes = 0
        self._rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_bytes = 0
        self._writer = pq.ParquetWriter(pa.PythonFile(self._content, mode="w"), schema, compression="zstd")

    def add(self, rows: pa.Table) -> None:
        self._rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting))
        self.size_bytes += self._waiting_bytes
        self._waiting, self._waiting_bytes = [], 0

    def drop(self) -> None:
        self._content.close()

    def close(self) -> tuple[int, BinaryIO]:
        """The number of rows, and the complete file, which the caller closes."""
        self._flush()
        self._writer.close()
        self._content.seek(0)
        return self._rows, self._content


def split(rows: pa.Table, partition: str | None, time: str) -> list[tuple[tuple[str | None, ...], pa.Table]]:
    """The rows by the values of their partition. Rows without a time have a partition of their own."""
    if not rows.num_rows:
        return []
    if partition is None:
        return [((), rows)]
    times = rows.column(time).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    missing = times.is_null().to_numpy()
    periods = times.fill_null(0).to_numpy().astype("datetime64[us]").astype(f"datetime64[{_UNITS[partition]}]")
    periods[missing] = np.datetime64("NaT")
    found = []
    for period in np.unique(periods):
        same = np.isnat(periods) if np.isnat(period) else periods == period
        found.append((_values(period, partition), rows if same.all() else rows.filter(pa.array(same))))
    return found


def _values(period: np.datetime64, partition: str) -> tuple[str | None, ...]:
    if np.isnat(period):
        return tuple(None for _ in PERIODS[partition])
    date, _, hour = str(period).partition("T")
    return (date,) if partition == "day" else (date, str(int(hour)))


def read_rows(place: Place, file: DataFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Rows of a data file."""
    with tempfile.TemporaryFile() as scratch:
        scratch.write(place.read(file.path))
        scratch.seek(0)
        # From a stream, so that no directory of the path becomes a column.
        return pq.ParquetFile(pa.PythonFile(scratch, mode="r")).read(columns)


def with_partition(rows: pa.Table, file: DataFile) -> pa.Table:
    """The rows with the partition of their file as columns."""
    kinds = {DATE: pa.date32(), HOUR: pa.int32()}
    for name, value in file.partition.items():
        column = pa.array([value] * rows.num_rows, pa.string()).cast(kinds[name])
        rows = rows.append_column(pa.field(name, kinds[name]), column)
    return rows
