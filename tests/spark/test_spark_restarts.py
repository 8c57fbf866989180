"""A running query and a store that is killed under it."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_world import World, in_order, spark_in

from penstock.spark.connect import close_links, dial, link
from penstock.testing.server import ServerProcess

pytestmark = [pytest.mark.spark, pytest.mark.server]

WAIT_S = 60
TOTAL = 16_000
EACH_BATCH = 5_000
GATES = (1_500, 9_000)


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_in(tmp_path_factory.mktemp("spark")) as session:
        # Small batches, so that rows are on their way through reader, gate and sink at the same time.
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "50")
        yield session


class Gate:
    """A place in a task at which the first attempt stops until it is let through; others pass."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        for name in ("reached", "open"):
            os.mkfifo(directory / name)
        # Read and write, so that neither side waits for the other to open.
        self._reached = os.open(directory / "reached", os.O_RDWR)
        self._open = os.open(directory / "open", os.O_RDWR)

    def wait_reached(self) -> None:
        assert select.select([self._reached], [], [], WAIT_S)[0], "no task came to the gate"

    def open(self) -> None:
        os.write(self._open, b"x")

    def close(self) -> None:
        os.close(self._reached)
        os.close(self._open)


def gated(directories: dict[int, str]) -> Any:
    """A function of batches that stops at each gate, before the batch that holds the event of its number."""

    def pass_on(batches: Iterator[Any]) -> Iterator[Any]:
        import os as files

        for batch in batches:
            numbers = {int(bytes(event.as_py()).split(b":")[1]) for event in batch.column("event")}
            for number, directory in directories.items():
                if number not in numbers:
                    continue
                try:
                    files.mkdir(f"{directory}/taken")
                except FileExistsError:
                    continue
                with open(f"{directory}/reached", "wb", buffering=0) as reached:
                    reached.write(b"x")
                with open(f"{directory}/open", "rb", buffering=0) as opened:
                    opened.read(1)
            yield batch

    return pass_on


@pytest.mark.slow
def test_a_store_killed_twice_under_a_query_that_reads_and_writes_gets_each_event_once(
    spark: Any, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        world = World(link(dial, server.address))
        source, target = world.create("in", 2), world.create("out", 2)
        events = [b"k%d:%d:" % (number % 7, number) + bytes(2_000) for number in range(TOTAL)]
        world.write(source, events)
        given = {"controller": server.address, "scope": "plant"}
        gates = {number: Gate(tmp_path / f"gate{number}") for number in GATES}
        frame = (
            spark.readStream.format("penstock")
            .options(**given, stream="in", start_stream_cut="earliest", max_events_per_trigger=str(EACH_BATCH))
            .options(direct="false", batch_rows="50", columns="event")
            .load()
            .mapInArrow(gated({number: str(gate.directory) for number, gate in gates.items()}), "event binary")
            .selectExpr("event", "substring_index(cast(event as string), ':', 1) as routing_key")
        )
        query = (
            frame.writeStream.format("penstock")
            .options(**given, stream="out", checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            for gate in gates.values():
                gate.wait_reached()
                server.kill()
                gate.open()
                server.start()
            assert query.awaitTermination(WAIT_S), "the query did not end"
            assert query.exception() is None
        finally:
            for gate in gates.values():
                gate.open()
                gate.close()
            query.stop()
        rows = spark.read.format("penstock").options(**given, stream="out").load().orderBy("segment_id", "offset")
        found = [bytes(row.event) for row in rows.select("event").collect()]
        assert len(found) == TOTAL
        assert sorted(found) == sorted(events)
        assert in_order(found)
        batches = {progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]}
        assert len(batches) >= TOTAL // EACH_BATCH
        assert world.tail(target).positions
        close_links()
