"""A stream reader called as Spark calls it, without Spark."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType
from spark_world import open_here

from penstock.model.names import StreamName
from penstock.spark.options import parse_source
from penstock.spark.reading.stream import StreamReader

SCHEMA = StructType().add("event", "binary").add("segment_id", "long").add("offset", "long")


class Driver:
    """Calls a stream reader in Spark's order, with offsets that went through Spark's log."""

    def __init__(self, data: Path, stream: StreamName, **options: str) -> None:
        given = {"controller": str(data), "path": str(stream), "start_stream_cut": "earliest", **options}
        self.reader = StreamReader(open_here, parse_source({k: v for k, v in given.items() if v}), SCHEMA)
        self.log: list[dict[str, Any]] = []

    def batch(self, limit: ReadLimit | None = None) -> list[bytes] | None:
        """The events of the next batch; None where there is none."""
        if not self.log:
            self.log.append(logged(self.reader.initialOffset()))
        start = self.log[-1]
        end = logged(self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit()))
        if end == start:
            return None
        self.log.append(end)
        return self.read(start, end)

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
        found: list[bytes] = []
        for partition in self.reader.partitions(start, end):
            task = pickle.loads(pickle.dumps((self.reader, partition)))
            for rows in task[0].read(task[1]):
                found += rows.column("event").to_pylist()
        return found

    def all(self) -> list[list[bytes]]:
        """All batches until there is nothing more."""
        batches: list[list[bytes]] = []
        while (found := self.batch()) is not None:
            batches.append(found)
        return batches


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found
