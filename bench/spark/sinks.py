"""S3: writing from Spark, and copying a stream to another one."""

from __future__ import annotations

from typing import Any

from bench.measure import Row, seconds
from bench.spark.world import World, beside

_KAFKA_SINK = "Spark's Kafka sink"
_KAFKA_COPY = "Spark's Kafka to Kafka"
_PARQUET = "writing Parquet"


def sinks(world: World) -> list[Row]:
    count = world.rows(1_000_000)
    name = "source100"
    world.fill(name, 100, count)
    frame = world.spark.read.parquet(world.parquet_of(name, count)).select("event").cache()
    frame.count()
    rates: dict[str, list[float]] = {"ours": [], _PARQUET: [], _KAFKA_SINK: []}
    kafka_rows = frame.limit(count // 3).selectExpr("event as value").cache()
    for turn in range(world.runs + 1):
        target = f"sunk{turn}"
        world.stream(target)

        def ours(target: str = target) -> None:
            world.into_ours(frame.write, target).mode("append").save()

        def parquet(turn: int = turn) -> None:
            frame.write.option("compression", "none").parquet(str(world.directory / f"written{turn}"))

        def kafka(target: str = target) -> None:
            world.into_theirs(kafka_rows.write, target).save()

        works: list[tuple[str, Any, int]] = [("ours", ours, count), (_PARQUET, parquet, count)]
        if world.kafka is not None:
            world.topic(target)
            works.append((_KAFKA_SINK, kafka, kafka_rows.count()))
        for who, work, total in works:
            took = seconds(work)
            if turn:
                rates[who].append(total / took)
        _forget(world, target)
    frame.unpersist()
    kafka_rows.unpersist()
    mine = rates.pop("ours")
    rows = beside("S3", "sink, 100 B rows", "rows/s", mine, rates, {_PARQUET: ">= 0.5", _KAFKA_SINK: ">= 4"})
    return [*rows, *_copies(world, name, count), *world.without_kafka("S3", "sink and copy")]


def _forget(world: World, target: str) -> None:
    stream = world.store.stream(f"bench/{target}")
    stream.truncate(stream.tail())
    if world.kafka is not None:
        world.clients["kafka"].ask("delete", topic=target)


def _copies(world: World, name: str, count: int) -> list[Row]:
    """All of a stream, from the start of the query to its end, by ``availableNow``."""
    rates: dict[str, list[float]] = {"ours": [], _KAFKA_COPY: []}
    third = count // 3
    if world.kafka is not None:
        world.fill_topic(name, 100, third)
    for turn in range(world.runs + 1):
        target = f"copied{turn}"
        world.stream(target)
        if world.kafka is not None:
            world.topic(target)

        def run(writer: Any, who: str, turn: int = turn) -> float:
            writer = writer.option("checkpointLocation", world.checkpoint(f"copy-{who}-{turn}")).trigger(
                availableNow=True
            )
            return seconds(lambda: writer.start().awaitTermination())

        source = world.ours(name, streaming=True, columns="event")
        took = run(world.into_ours(source.writeStream, target), "ours")
        if turn:
            rates["ours"].append(count / took)
        if world.kafka is not None:
            theirs = world.theirs(name, streaming=True).selectExpr("value")
            took = run(world.into_theirs(theirs.writeStream, target), "kafka")
            if turn:
                rates[_KAFKA_COPY].append(third / took)
        _forget(world, target)
    mine = rates.pop("ours")
    return beside("S3", "stream to stream copy, 100 B rows", "rows/s", mine, rates, {_KAFKA_COPY: ">= 4"})
