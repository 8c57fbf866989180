"""Tables of each format in a directory or a bucket, and rows to put into them."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.port import CommittedTable, DataFile, TableDefinition, TableState
from penstock.spark.lake.rows import FilePlan, RowWriter

STREAM = StreamName("plant", "turbine")
SCHEMA = pa.schema(
    [
        pa.field("name", pa.string()),
        pa.field("n", pa.int64()),
        pa.field("segment_id", pa.int64()),
        pa.field("offset", pa.int64()),
        pa.field("append_time", pa.timestamp("us", "UTC")),
    ]
)
DAY = datetime.datetime(2026, 1, 31, 22, tzinfo=datetime.UTC)
DEFINITION = TableDefinition(stream=str(STREAM), subscriber="lake", schema="name STRING, n BIGINT")


def address_of(kind: str, root: Path, name: str = "t") -> TableAddress:
    if kind == "iceberg":
        root.mkdir(exist_ok=True)
        catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": str(root / "warehouse")}
        return TableAddress(format=kind, target=f"lake.{name}", catalog=catalog)
    return TableAddress(format=kind, target=str(root / name))


def table_of(kind: str, root: Path, name: str = "t") -> CommittedTable:
    return open_table(address_of(kind, root, name))


def cut_at(offset: int) -> str:
    return StreamCut(STREAM, {SegmentId(0): offset}).to_text()


def offset_of(state: TableState) -> int:
    return StreamCut.from_text(state.cut).positions[SegmentId(0)]


def rows_of(numbers: Iterable[int], mark: str = "plain") -> pa.Table:
    """A row for each number, whose event begins at ten times the number, half an hour after the one before."""
    numbers = list(numbers)
    return pa.Table.from_arrays(
        [
            pa.array([f"{mark}-{number}" for number in numbers]),
            pa.array(numbers, pa.int64()),
            pa.array([0] * len(numbers), pa.int64()),
            pa.array([10 * number for number in numbers], pa.int64()),
            pa.array(
                [DAY + datetime.timedelta(minutes=30 * number) for number in numbers], SCHEMA.field("append_time").type
            ),
        ],
        schema=SCHEMA,
    )


def written(
    table: CommittedTable, state: TableState, rows: pa.Table, partition: str | None = None
) -> Sequence[DataFile]:
    """Files with the rows, which the next commit may add."""
    plan = FilePlan(
        place=table.place,
        prefix=table.data_prefix,
        sequence=state.sequence + 1,
        partition=partition,
        time="append_time",
    )
    with RowWriter(plan) as writer:
        writer.add(rows)
        return writer.close()
