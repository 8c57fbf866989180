"""S2: how long an event takes through a micro-batch, ours beside Spark's own Kafka source in the same session."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.measure import Row, figure, percentile
from bench.spark.world import InBackground, World

_SECONDS = 8
_WARM_S = 3
_FIRST = 5
"""Events that go through a query before it is measured: its start is another figure (S6)."""


def micro_batches(world: World) -> list[Row]:
    """From the write call, in another process, to the row in ``foreachBatch``; then to what the sink has committed."""
    rows: list[Row] = []
    passes = 2 if world.runs > 1 else 1
    for rate in (100, 1000):
        taken: dict[str, list[list[float]]] = {"ours": [], "kafka": []}
        for turn in range(passes):
            for who in taken:
                if who == "ours" or world.kafka is not None:
                    taken[who].append(_to_hand(world, who, f"micro{rate}x{turn}", rate))
        rows += _rows(f"written to foreachBatch, {rate:,} events/s", taken)
    taken = {"ours": [_to_commit(world, "ours", "out100", 100)], "kafka": []}
    if world.kafka is not None:
        taken["kafka"].append(_to_commit(world, "kafka", "out100", 100))
    rows += _rows("written to read behind the sink's commit, 100 events/s", taken)
    return rows + world.without_kafka("S2", "micro-batches")


def _rows(work: str, taken: dict[str, list[list[float]]]) -> list[Row]:
    rows: list[Row] = []
    for unit, share in (("ms p50", 0.5), ("ms p99", 0.99)):
        theirs = [percentile(one, share) for one in taken["kafka"]]
        ours = [percentile(one, share) for one in taken["ours"]]
        if theirs:
            made = figure("S2", f"{work}: Kafka to Kafka" if "sink" in work else f"{work}: Kafka source", unit, theirs)
            rows += [figure("S2", work, unit, ours, limit=("Kafka in Spark", made.median), target="<= 1"), made]
        else:
            rows.append(figure("S2", work, unit, ours))
    return rows


def _source(world: World, who: str, name: str) -> Any:
    if who == "ours":
        world.stream(name, 1)
        return world.ours(name, streaming=True, columns="event").selectExpr("event")
    world.topic(name, 1)
    return world.theirs(name, streaming=True).selectExpr("value as event")


def _to_hand(world: World, who: str, name: str, rate: int) -> list[float]:
    arrived: list[tuple[float, float]] = []

    def collect(frame: Any, _: int) -> None:
        found = [float(row.event) for row in frame.collect()]
        now = time.time()
        arrived.extend((sent, (now - sent) * 1000) for sent in found)

    source = _source(world, who, name)
    query = (
        source.writeStream.foreachBatch(collect).option("checkpointLocation", world.checkpoint(f"{who}-{name}")).start()
    )
    try:
        return _steady(world, who, name, rate, lambda: arrived)
    finally:
        query.stop()


def _to_commit(world: World, who: str, name: str, rate: int) -> list[float]:
    """Through the source, a micro-batch and the sink, to a reader of what the sink wrote: only what is committed is read."""
    source, target = _source(world, who, f"{name}in"), f"{name}out"
    checkpoint = world.checkpoint(f"{who}-{name}")
    if who == "ours":
        world.stream(target, 1)
        query = world.into_ours(source.writeStream, target).option("checkpointLocation", checkpoint).start()
    else:
        world.topic(target, 1)
        query = (
            world.into_theirs(source.selectExpr("event as value").writeStream, target)
            .option("checkpointLocation", checkpoint)
            .start()
        )
    count = rate * (_SECONDS + _WARM_S)
    client, watcher = world.clients[who], world.watcher(who)
    try:
        client.ask("trickle", topic=f"{name}in", count=_FIRST, rate=rate)
        watcher.ask("watch", topic=target, count=_FIRST, limit_s=90)
        watched = InBackground(watcher, "watch", topic=target, count=_FIRST + count)
        client.ask("trickle", topic=f"{name}in", count=count, rate=rate)
        watched.wait(60)
        pairs = watched.result[_FIRST:]
        begin = pairs[0][0] + _WARM_S
        return [lag for sent, lag in pairs if sent >= begin]
    finally:
        query.stop()


def _steady(
    world: World, who: str, name: str, rate: int, arrived: Callable[[], list[tuple[float, float]]]
) -> list[float]:
    """Latencies of what was written after the query had warmed up."""
    world.clients[who].ask("trickle", topic=name, count=_FIRST, rate=rate)
    _wait(arrived, _FIRST, 90, who)
    count = rate * (_SECONDS + _WARM_S)
    InBackground(world.clients[who], "trickle", topic=name, count=count, rate=rate).wait(_SECONDS + _WARM_S + 60)
    _wait(arrived, _FIRST + count, 20, who)
    found = arrived()[_FIRST:]
    begin = found[0][0] + _WARM_S
    return [lag for sent, lag in found if sent >= begin]


def _wait(arrived: Callable[[], list[tuple[float, float]]], count: int, limit_s: float, who: str) -> None:
    deadline = time.monotonic() + limit_s
    while len(arrived()) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"events did not arrive. who={who} wanted={count} got={len(arrived())}")
        time.sleep(0.1)
