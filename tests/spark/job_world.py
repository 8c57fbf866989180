"""For tests of jobs: a stand-in for Spark that runs tasks here, one after another, and may die between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.model.names import StreamName


class Killed(Exception):
    """The driver died."""


@dataclass
class HereSpark:
    """``range(...).mapInArrow(f).collect()`` in this process. ``after``: so many tasks work, then comes ``Killed``."""

    after: int | None = None
    ran: int = 0

    def range(self, start: int, end: int, step: int, partitions: int) -> HereFrame:
        assert (start, step) == (0, 1)
        assert partitions == end
        return HereFrame(self, [pa.record_batch({"id": pa.array([item], pa.int64())}) for item in range(end)])


@dataclass
class HereFrame:
    spark: HereSpark
    batches: list[pa.RecordBatch]
    task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None

    def mapInArrow(self, task: Any, schema: str) -> HereFrame:
        return HereFrame(self.spark, self.batches, task)

    def collect(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        assert self.task is not None
        for batch in self.batches:
            if self.spark.after is not None and self.spark.ran >= self.spark.after:
                raise Killed
            self.spark.ran += 1
            found += [row for out in self.task(iter([batch])) for row in out.to_pylist()]
        return found


def source_options(address: str, stream: StreamName, **more: str) -> dict[str, str]:
    return {"controller": address, "scope": stream.scope, "stream": stream.stream, **more}
