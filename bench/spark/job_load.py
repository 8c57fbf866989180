"""S4: loading files into a stream, beside Spark writing the same files anew."""

from __future__ import annotations

from bench.measure import Row, seconds
from bench.spark.world import World, beside

_PARQUET = "Parquet to Parquet"


def rows(world: World) -> list[Row]:
    from penstock.spark.jobs.load import LoadRequest, load

    count = world.rows(1_000_000)
    name = "bulk100"
    if name not in world.parquet:
        world.fill(name, 100, count)
    source = world.parquet_of(name, count)
    rates: dict[str, list[float]] = {"ours": [], _PARQUET: []}
    for turn in range(world.runs + 1):
        stream = world.stream(f"loaded{turn}")
        request = LoadRequest(
            paths=(source,), write={"controller": world.address, "path": f"bench/loaded{turn}"}, event="event"
        )
        took = seconds(lambda request=request: load(world.spark, request))
        target = str(world.directory / f"rewritten{turn}")
        frame = world.spark.read.parquet(source)
        other = seconds(lambda target=target, frame=frame: frame.write.option("compression", "none").parquet(target))
        if turn:
            rates["ours"].append(count / took)
            rates[_PARQUET].append(count / other)
        stream.truncate(stream.tail())
    return beside("S4", "load of Parquet, 100 B", "rows/s", rates.pop("ours"), rates, {_PARQUET: ">= 0.5"})
