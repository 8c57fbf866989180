"""The query of the demo: ``python -m penstock.spark.flight_delays``.

Reads flights as subscriber ``delays``, keeps delay statistics per carrier and hour, and writes every update to a second
stream through the exactly-once sink and to Parquet. Prints one JSON object for each batch; ends when its standard input
is closed and everything written until then has been processed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from penstock.spark.java import ensure_java
from penstock.spark.reasons import reason
from penstock.spark.session import configure

_SCHEMA = "carrier STRING, time_hour STRING, dep_delay INT, arr_delay INT"


# A socket's name holds 107 bytes, Spark's own part of it is "/.", a UUID and ".sock".
_SOCKET_DIRECTORY_MAX = 107 - len("/.00000000-0000-0000-0000-000000000000.sock")


def socket_settings(directory: Path) -> dict[str, str]:
    """Settings that put Spark's sockets into ``directory``; where its name is too long for that, there are none."""
    here = min(str(directory), os.path.relpath(directory), key=len)
    if len(os.fsencode(here)) > _SOCKET_DIRECTORY_MAX:
        return {"spark.python.unix.domain.socket.enabled": "false"}
    return {"spark.python.unix.domain.socket.dir": here}


def session(work: Path) -> SparkSession:
    """A local session on two cores that leaves its files below ``work``, and none elsewhere."""
    ensure_java(Path(sys.prefix) / "java")
    temporary = work.absolute() / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    # For this process, which may have looked up the old value already, and for its children.
    tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
    # Java keeps its performance counters in /tmp, whatever the temporary directory is. The first line is for the JVM that
    # only works out how to start Spark's own.
    os.environ["SPARK_LAUNCHER_OPTS"] = "-XX:-UsePerfData"
    builder = configure(SparkSession.builder.master("local[2]").appName("flight delays"))
    for name, value in socket_settings(temporary).items():
        builder = builder.config(name, value)
    return (
        builder.config("spark.local.dir", str(temporary))
        .config("spark.driver.extraJavaOptions", f'-XX:-UsePerfData "-Djava.io.tmpdir={temporary}"')
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def delays(flights: DataFrame) -> DataFrame:
    """Flights, summed and longest departure delay per carrier and hour."""
    parsed = flights.select(fn.from_json(fn.col("event").cast("string"), _SCHEMA).alias("flight")).select("flight.*")
    return parsed.groupBy("carrier", fn.col("time_hour").alias("hour")).agg(
        fn.count("*").alias("flights"),
        fn.sum(fn.coalesce("dep_delay", fn.lit(0))).alias("delay"),
        fn.max("dep_delay").alias("longest"),
    )


class Outputs:
    """Writes each batch to the result stream and to Parquet, both safe to repeat for the same batch."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given

    def write(self, updates: DataFrame, batch: int) -> None:
        updates = updates.persist()
        try:
            updates.write.mode("overwrite").parquet(f"{self._given.parquet}/batch_{batch:06d}")
            (
                updates.select(
                    fn.to_json(fn.struct("carrier", "hour", "flights", "delay", "longest")).alias("event"),
                    fn.concat_ws("/", "carrier", "hour").alias("routing_key"),
                )
                .write.format("penstock")
                .option("controller", self._given.controller)
                .option("scope", self._given.scope)
                .option("stream", self._given.output)
                .option("txnAppId", self._given.checkpoint)
                .option("txnVersion", str(batch))
                .mode("append")
                .save()
            )
        finally:
            updates.unpersist()


def _report(query: Any, seen: int, rows: int) -> tuple[int, int]:
    for progress in query.recentProgress:
        if progress["batchId"] > seen and progress["numInputRows"] > 0:
            seen = progress["batchId"]
            rows += progress["numInputRows"]
            took = progress["durationMs"].get("triggerExecution", 0)
            print(
                json.dumps({"batch": seen, "rows": rows, "batch_rows": progress["numInputRows"], "ms": took}),
                flush=True,
            )
    return seen, rows


def run(spark: SparkSession, given: argparse.Namespace) -> int:
    """Run the query until standard input is closed, then to the end of what was written. Returns the rows read."""
    flights = (
        spark.readStream.format("penstock")
        .option("controller", given.controller)
        .option("scope", given.scope)
        .option("stream", given.input)
        .option("subscriber", "delays")
        .option("start_stream_cut", "earliest")
        .option("columns", "event")
        .option("maxBytesPerTrigger", str(given.max_bytes))
        .load()
    )
    query = (
        delays(flights)
        .writeStream.outputMode("update")
        .option("checkpointLocation", given.checkpoint)
        .foreachBatch(Outputs(given).write)
        .trigger(processingTime="1 second")
        .start()
    )
    closed = threading.Event()

    def wait_for_end() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    print(json.dumps({"started": True}), flush=True)
    seen, rows = -1, 0
    while not closed.wait(0.3):
        seen, rows = _report(query, seen, rows)
        if query.exception() is not None:
            raise query.exception()
    query.processAllAvailable()
    seen, rows = _report(query, seen, rows)
    query.stop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--controller", "--scope", "--input", "--output", "--checkpoint", "--parquet", "--work"):
        parser.add_argument(name, required=True)
    parser.add_argument("--max-bytes", type=int, default=16_000_000)
    given = parser.parse_args()
    spark = session(Path(given.work))
    spark.sparkContext.setLogLevel("ERROR")
    try:
        rows = run(spark, given)
    except StreamingQueryException as error:
        sys.exit(f"the query failed: {reason(error) or error}")
    finally:
        spark.stop()
    print(json.dumps({"finished": True, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
