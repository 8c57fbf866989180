"""S4: exporting a stream to Parquet, beside Spark writing Parquet of the same rows anew."""

from __future__ import annotations

from bench.measure import Row, seconds
from bench.spark.world import World, beside

_PARQUET = "Parquet to Parquet"


def rows(world: World) -> list[Row]:
    from penstock.spark.jobs.export.job import ExportRequest, export

    count = world.rows(1_000_000)
    name = "bulk100"
    if name not in world.parquet:
        world.fill(name, 100, count)
    source = world.parquet_of(name, count)
    rates: dict[str, list[float]] = {"ours": [], _PARQUET: []}
    for turn in range(world.runs + 1):
        request = ExportRequest(
            read={"controller": world.address, "path": f"bench/{name}"}, output=world.directory / f"exported{turn}"
        )
        took = seconds(lambda request=request: export(world.spark, request))
        target = str(world.directory / f"recompressed{turn}")
        frame = world.spark.read.parquet(source)
        writer = frame.write.option("compression", request.compression)
        other = seconds(lambda target=target, writer=writer: writer.parquet(target))
        if turn:
            rates["ours"].append(count / took)
            rates[_PARQUET].append(count / other)
    return beside("S4", "export to Parquet, 100 B", "rows/s", rates.pop("ours"), rates, {_PARQUET: ">= 0.5"})
