"""One query with the sink, batch by batch, without a session of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType
from spark_world import open_here

from penstock.model.names import StreamName
from penstock.spark.connect import Connector
from penstock.spark.options import parse_read, parse_write
from penstock.spark.source import BatchReader
from penstock.spark.writing import attempt
from penstock.spark.writing.messages import TaskWritten
from penstock.spark.writing.sink import StreamWriter

SCHEMA = StructType().add("event", "binary").add("offset", "long")


class Query:
    """A query of an id, whose tasks run here. Tasks of one run share what Spark pickles to them."""

    way = "inline"

    def __init__(
        self, data: Path, stream: StreamName, query: str, monkeypatch: pytest.MonkeyPatch, **options: str
    ) -> None:
        direct = {"direct": "false"} if self.way == "wire" else {}
        self._given = parse_write({"controller": str(data), "path": str(stream), **direct, **options})
        self._query = query
        self.run_id: str | None = None
        self._patch = monkeypatch
        self._planned = self.writer()

    def writer(self) -> StreamWriter:
        return StreamWriter(open_here, self._given, True)

    def plan(self) -> None:
        """Spark plans the batch anew: its tasks are another run."""
        self._planned = self.writer()

    def task(self, batch: int, events: list[bytes], partition: int = 0) -> TaskWritten:
        said = {
            "sql.streaming.queryId": self._query,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": self.run_id,
        }
        self._patch.setattr(attempt.TaskContext, "get", lambda: Context(partition, said))
        rows = [
            pa.record_batch({"event": part, "routing_key": [event.split(b":")[0].decode() for event in part]})
            for part in (events[:1], events[1:1], events[1:])
        ]
        message = self._planned.write(iter(rows))
        assert isinstance(message, TaskWritten)
        return message

    def run(self, batch: int, *tasks: list[bytes]) -> list[TaskWritten]:
        self.plan()
        messages = [self.task(batch, events, partition) for partition, events in enumerate(tasks)]
        self.writer().commit([*messages], batchId=batch)
        return messages


class Context:
    def __init__(self, partition: int, said: Mapping[str, str | None]) -> None:
        self._partition = partition
        self._said = said

    def getLocalProperty(self, name: str) -> str | None:
        return self._said.get(name)

    def partitionId(self) -> int:
        return self._partition


def stored(data: Path, stream: StreamName) -> list[bytes]:
    return read_with(open_here, data, stream)


def read_with(connector: Connector, data: Path, stream: StreamName) -> list[bytes]:
    reader = BatchReader(connector, parse_read({"controller": str(data), "path": str(stream)}), SCHEMA)
    return [event for item in reader.partitions() for rows in reader.read(item) for event in rows["event"].to_pylist()]
