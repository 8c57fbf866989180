"""What a plan does when data is deleted after it was found and before its chunks are listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_driver import SCHEMA, Driver
from spark_world import World, keyed, open_here

from penstock.model.errors import SegmentNotFoundError, TruncatedError
from penstock.model.names import StreamName
from penstock.segmentstore.store import SegmentStore
from penstock.spark.connect import Services
from penstock.spark.options import parse_read
from penstock.spark.source import BatchReader

DELETIONS = ("truncate", "delete")
CALLS = ("lease_chunks", "chunk_ranges")


def meanwhile(monkeypatch: pytest.MonkeyPatch, world: World, stream: StreamName, what: str, call: str) -> list[str]:
    """Delete the stream's data at the first such call. Returns the calls that came until now."""
    known: list[Services] = []
    world.link.run(lambda services: _keep(known, services))
    done: list[str] = []
    original: Callable[..., Any] = getattr(SegmentStore, call)

    async def called(self: SegmentStore, *given: Any, **named: Any) -> Any:
        if not done:
            done.append(call)
            streams = known[0].controller.streams
            if what == "delete":
                await streams.seal(stream)
                await streams.delete(stream)
            else:
                await streams.truncate(stream, await known[0].controller.cuts.tail(stream))
        return await original(self, *given, **named)

    monkeypatch.setattr(SegmentStore, call, called)
    return done


async def _keep(known: list[Services], services: Services) -> None:
    known.append(services)


@pytest.mark.parametrize("what", DELETIONS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_data_deleted_while_a_read_is_planned_is_skipped_or_fails_as_the_option_says(
    world_here: World, data: Path, monkeypatch: pytest.MonkeyPatch, what: str, call: str, kind: str
) -> None:
    for fail in ("false", "true"):
        stream = world_here.create(f"s{fail}", 2)
        world_here.write(stream, keyed(0, 2000))
        world_here.wait_tiered(stream)
        with monkeypatch.context() as patch:
            read = prepared(data, stream, kind, fail)
            done = meanwhile(patch, world_here, stream, what, call)
            if fail == "true":
                with pytest.raises((TruncatedError, SegmentNotFoundError)):
                    read()
            else:
                assert set(read()) <= set(keyed(0, 2000))
            assert done == [call]


def prepared(data: Path, stream: StreamName, kind: str, fail: str) -> Callable[[], list[bytes]]:
    """A read of the stream up to its present tail, ready to be planned."""
    if kind == "batch":
        given = {"controller": str(data), "path": str(stream), "fail_on_data_loss": fail}
        reader = BatchReader(open_here, parse_read(given), SCHEMA)
        return lambda: [
            event
            for share in reader.partitions()
            for rows in reader.read(share)
            for event in rows.column("event").to_pylist()
        ]
    driver = Driver(data, stream, fail_on_data_loss=fail)
    start = driver.reader.initialOffset()
    end = driver.reader.latestOffset(start, driver.reader.getDefaultReadLimit())
    return lambda: driver.read(start, end)
