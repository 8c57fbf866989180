"""A Spark query that follows a stream by its event times, as a process of its own:

    python spark_crowd.py HOST:PORT SCOPE/STREAM EVENTS DIRECTORY

Prints "ready", and at the end one JSON object with the events in order, and the bounds of their batches.
"""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from penstock.spark.java import ensure_java
from penstock.spark.session import configure


def main() -> None:
    address, stream, expected, directory = sys.argv[1:]
    work = Path(directory)
    ensure_java(work / "java")
    builder = configure(SparkSession.builder.master("local[2]").appName("crowd"))
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(work / "tmp"))
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    batches: list[tuple[int | None, list[str]]] = []

    def take(frame, _) -> None:
        rows = frame.collect()
        if rows:
            (bound,) = {row.bound for row in rows}
            batches.append((bound, [row.event for row in rows]))

    query = (
        spark.readStream.format("penstock")
        .options(controller=address, path=stream, start_stream_cut="earliest", columns="event, event_time_bound")
        .load()
        .withWatermark("event_time_bound", "0 seconds")
        .selectExpr("cast(event as string) as event", "unix_millis(event_time_bound) as bound")
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(work / "checkpoint"))
        .start()
    )
    print("ready", flush=True)
    while query.isActive and sum(len(events) for _, events in batches) < int(expected):
        time.sleep(0.1)
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))
    times = [item.eventTime.get("watermark") for item in query.recentProgress if item.eventTime]
    query.stop()
    print(json.dumps({"batches": batches, "watermark": times[-1] if times else None}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
