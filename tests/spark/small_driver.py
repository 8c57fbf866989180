"""What Spark's driver does with a streaming copy, without Spark: a process that can be killed a hundred times in a few minutes.

The source and the sink are the real ones, and are called in Spark's order. The checkpoint has Spark's parts: ``metadata`` with the
id of the query, ``offsets`` written before a batch, ``commits`` behind it. Run by ``kill_owners.py``.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from kill_matrix import EACH_BATCH, PausingWriter, pause
from pyspark import TaskContext
from pyspark.sql.types import StructType

from penstock.model.errors import PenstockError
from penstock.spark.connect import dial
from penstock.spark.options import parse_read, parse_write
from penstock.spark.reading.stream import StreamReader
from penstock.spark.reasons import reason

SCHEMA = StructType().add("event", "binary")


class Context:
    """What a task of Spark knows."""

    def __init__(self, partition: int, said: dict[str, str]) -> None:
        self._partition = partition
        self._said = said

    def partitionId(self) -> int:
        return self._partition

    def getLocalProperty(self, name: str) -> str | None:
        return self._said.get(name)


class Checkpoint:
    """The files of a checkpoint; each appears whole, or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in ("offsets", "commits"):
            (path / name).mkdir(parents=True, exist_ok=True)
        if not (path / "metadata").exists():
            self._put(path / "metadata", {"id": str(uuid4())})
        self.query = str(json.loads((path / "metadata").read_text())["id"])

    def _put(self, path: Path, value: Any) -> None:
        part = path.with_name(f".{path.name}.tmp")
        part.write_text(json.dumps(value))
        part.rename(path)

    def _last(self, name: str) -> int:
        return max((int(item.name) for item in (self.path / name).iterdir() if item.name.isdecimal()), default=-1)

    def offset(self, batch: int) -> Any:
        return json.loads((self.path / "offsets" / str(batch)).read_text())

    @property
    def planned(self) -> int:
        return self._last("offsets")

    @property
    def committed(self) -> int:
        return self._last("commits")

    def plan(self, batch: int, end: Any) -> None:
        self._put(self.path / "offsets" / str(batch), end)

    def commit(self, batch: int) -> None:
        self._put(self.path / "commits" / str(batch), {})


def keyed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        events = rows.column("event").to_pylist()
        yield pa.record_batch({"event": events, "routing_key": [item.split(b":")[0].decode() for item in events]})


def run_batch(reader: StreamReader, options: Any, checkpoint: Checkpoint, run: str, batch: int, start: Any) -> None:
    planned = PausingWriter(dial, options, True)
    messages = []
    for number, partition in enumerate(reader.partitions(start, checkpoint.offset(batch))):
        task_reader, task_partition, writer = pickle.loads(pickle.dumps((reader, partition, planned)))
        said = {
            "sql.streaming.queryId": checkpoint.query,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": run,
        }
        context = Context(number, said)
        TaskContext.get = staticmethod(lambda context=context: context)
        messages.append(writer.write(keyed(task_reader.read(task_partition))))
    PausingWriter(dial, options, True).commit(messages, batchId=batch)
    checkpoint.commit(batch)


def drive(work: Path, address: str) -> None:
    """The query of ``query.json``, until it is killed or fails."""
    said = json.loads((work / "query.json").read_text())
    given = {"controller": address, "scope": "kill"}
    read = {"columns": "event", "max_events_per_trigger": str(EACH_BATCH), "min_partitions": "4", "batch_rows": "60"}
    reader = StreamReader(dial, parse_read({**given, "stream": "in", **read, **said["read"]}), SCHEMA)
    options = parse_write(
        {**given, "stream": "out", "writer_id": "copy", "transaction_timeout_ms": "60000", **said["write"]}
    )
    checkpoint, run = Checkpoint(Path(said["checkpoint"])), str(uuid4())
    (work / "started").touch()
    while True:
        batch = checkpoint.planned
        if batch == checkpoint.committed:
            start = json.loads(json.dumps(reader.initialOffset() if batch < 0 else checkpoint.offset(batch)))
            if batch < 0:
                pause("start")
            end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
            if end == start and batch >= 0:
                continue  # It has waited for something new. Spark logs the end of batch 0 in any case.
            batch += 1
            checkpoint.plan(batch, end)
        else:
            start = json.loads(json.dumps(reader.initialOffset())) if batch == 0 else checkpoint.offset(batch - 1)
        run_batch(reader, options, checkpoint, run, batch, start)


def main() -> int:
    work = Path(sys.argv[2])
    try:
        drive(work, sys.argv[4])
    except PenstockError as error:
        (work / "failure").write_text(reason(error) or str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
