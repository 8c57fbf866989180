"""Executors' part of the lake job: write typed rows as data files, and rewrite files of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.spark.lake.port import OFFSET, SEGMENT, DataFile
from penstock.spark.lake.rows import FilePlan, RowWriter
from penstock.spark.lake.upkeep import Rewrite, Rewritten

BAD = "_penstock_bad"
"""Whether the event does not fit the schema; a column that only tasks see."""

RESULT = "item bigint, files string"
_RESULT = pa.schema([pa.field("item", pa.int64()), pa.field("files", pa.string())])


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeTask:
    """For ``mapInArrow``: writes rows, and returns the files. Pickled to tasks.

    ``schema``: of the files. ``fails``: a row that does not fit the schema fails the task.
    """

    plan: FilePlan
    schema: pa.Schema
    fails: bool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of one partition of Spark's. A failed attempt leaves files that no commit names."""
        with RowWriter(self.plan) as writer:
            for batch in batches:
                if batch.num_rows:
                    writer.add(self._checked(batch))
            files = writer.close()
        if files:
            yield _result(0, files)

    def _checked(self, batch: pa.RecordBatch) -> pa.Table:
        rows = pa.Table.from_batches([batch])
        bad = rows.column(BAD)
        if self.fails and pc.any(bad).as_py():
            first = rows.filter(bad).slice(0, 1).to_pylist()[0]
            raise InvalidArgumentError(
                "an event does not fit the schema; nothing was committed: correct the schema, or keep such events with "
                "null columns (--bad-events null)",
                segment=first[SEGMENT],
                offset=first[OFFSET],
            )
        return rows.select(self.schema.names).cast(self.schema)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask:
    """For ``mapInArrow``: rewrites groups of files by their numbers. Pickled to tasks."""

    work: Rewrite
    groups: Sequence[Sequence[DataFile]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Input: numbers of groups. Output: a row for each."""
        for batch in batches:
            for item in batch.column(0).to_pylist():
                yield _result(item, self.work(self.groups[item]))


def on_spark(spark: Any) -> Any:
    """A ``upkeep.Runner`` that uses executors."""

    def run(work: Rewrite, groups: Sequence[Sequence[DataFile]]) -> Sequence[Rewritten]:
        if not groups:
            return []
        count = len(groups)
        rows = spark.range(0, count, 1, count).mapInArrow(RewriteTask(work=work, groups=groups), RESULT).collect()
        found = {row["item"]: files_of(row["files"]) for row in rows}
        return [found[item] for item in range(count)]

    return run


def files_of(text: str) -> list[DataFile] | None:
    """The files of a result."""
    found = json.loads(text)
    return None if found is None else [DataFile(**item) for item in found]


def _result(item: int, files: Rewritten) -> pa.RecordBatch:
    text = json.dumps(None if files is None else [asdict(file) for file in files])
    return pa.RecordBatch.from_arrays([pa.array([item], pa.int64()), pa.array([text])], schema=_RESULT)
