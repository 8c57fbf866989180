"""One session of Spark at a server with TLS and identities, as a program of its own: its environment is the driver's.

Run by ``test_spark_auth.py``, which reads what it prints: one JSON object.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark.java import ensure_java
from penstock.spark.session import configure

_SLOW = "Python worker failed to connect back"
_TRIES = 4  # starts of the query

LOG4J = """
status = error
appenders = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c: %m%n%ex
rootLogger.level = info
rootLogger.appenderRefs = file
rootLogger.appenderRef.file.ref = file
"""


def session(work: Path, master: str, conf: dict[str, str]) -> SparkSession:
    ensure_java(work / "java")
    settings = work / "log4j2.properties"
    settings.write_text(LOG4J.format(file=work / "driver.log"))
    (work / "events").mkdir()
    given = {
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": (work / "events").as_uri(),
        "spark.eventLog.logStageExecutorMetrics": "true",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.local.dir": str(work / "tmp"),
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={settings.as_uri()}",
        **conf,
    }
    builder = configure(SparkSession.builder.master(master).appName("identities"))
    for name, value in given.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def explained(frame: DataFrame) -> str:
    text = io.StringIO()
    with redirect_stdout(text):
        frame.explain(extended=True)
    return text.getvalue()


def copied(
    spark: SparkSession, work: Path, given: dict[str, str], name: str, sizes: dict[str, str]
) -> list[dict[str, Any]]:
    """A streaming copy of ``plant/NAME-in`` to ``plant/NAME-out``. Returns its progress."""
    frame = spark.readStream.format("penstock").options(**given, path=f"plant/{name}-in", **sizes).load()
    sink = frame.select("event").writeStream.format("penstock")
    sink = sink.options(**given, path=f"plant/{name}-out", checkpointLocation=str(work / "checkpoint"))
    progress: list[dict[str, Any]] = []
    for tries_left in reversed(range(_TRIES)):
        query = sink.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(300)
            break
        except StreamingQueryException as error:
            # A loaded machine does not start Python within Spark's fixed 10 s. The checkpoint continues the query.
            if _SLOW not in str(error) or not tries_left:
                raise
        finally:
            progress += [json.loads(item.json) for item in query.recentProgress]
    return progress


def main(work: Path, address: str, name: str, master: str, conf: dict[str, str]) -> dict[str, Any]:
    spark = session(work, master, conf)
    try:
        given = {"controller": address}
        rows = spark.range(40).selectExpr("concat('k:', id) AS event")
        rows.write.format("penstock").options(**given, path=f"plant/{name}-in").mode("append").save()
        read = spark.read.format("penstock").options(**given, path=f"plant/{name}-in").load()
        batch = sorted(bytes(row.event).decode() for row in read.collect())
        read.createOrReplaceTempView("events")
        query = "SELECT count(*) AS many FROM events WHERE cast(event AS string) > 'k:1'"
        (counted,) = spark.sql(query).collect()
        progress = copied(
            spark,
            work,
            given,
            name,
            {"start_stream_cut": "earliest", "max_events_per_trigger": "25", "subscriber": f"{name}-copy"},
        )
        large = spark.range(2).selectExpr("repeat(cast(id AS string), 300000) AS event")
        large.write.format("penstock").options(**given, path=f"plant/{name}-large").mode("append").save()
        out = spark.read.format("penstock").options(**given, path=f"plant/{name}-out").load()
        sizes = spark.read.format("penstock").options(**given, path=f"plant/{name}-large").load()
        return {
            "batch": batch,
            "sql": counted.many,
            "batches": len([item for item in progress if item["numInputRows"]]),
            "copied": out.count(),
            "large": sorted(len(row.event) for row in sizes.collect()),
            "shown": [explained(read), explained(spark.sql(query)), json.dumps(progress)],
        }
    finally:
        spark.stop()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), *sys.argv[2:5], json.loads(sys.argv[5]))))
