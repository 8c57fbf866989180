"""Spark in one session: batch reads beside Parquet of the same rows, and the latency of micro-batches."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import penstock
from bench.measure import Figure, figure, percentile, seconds
from bench.store import payloads
from penstock.testing.server import ServerProcess


class SparkBench:
    def __init__(self, directory: Path, runs: int, scale: float) -> None:
        self.directory = directory
        self.runs = runs
        self.scale = scale

    def session(self) -> Any:
        from pyspark.sql import SparkSession

        from penstock.spark.java import ensure_java
        from penstock.spark.session import configure

        ensure_java(Path(sys.prefix) / "java")
        builder = configure(SparkSession.builder.master("local[2]").appName("bench"))
        builder = builder.config("spark.ui.enabled", "false").config("spark.local.dir", str(self.directory / "tmp"))
        spark = builder.config("spark.sql.warehouse.dir", str(self.directory / "warehouse")).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        return spark

    def run(self) -> list[Figure]:
        shutil.rmtree(self.directory, ignore_errors=True)
        spark = self.session()
        try:
            with ServerProcess(self.directory / "store") as server, penstock.connect(server.address) as store:
                store.create_scope("bench")
                figures = []
                for size, total in ((100, 3_000_000), (1024, 500_000)):
                    figures += self.batch(spark, store, server.address, size, int(total * self.scale))
                return figures + self.micro_batches(spark, store, server.address)
        finally:
            spark.stop()
            shutil.rmtree(self.directory, ignore_errors=True)

    def batch(self, spark: Any, store: Any, address: str, size: int, count: int) -> list[Figure]:
        stream = store.create_stream(f"bench/read{size}", segments=4)
        with stream.writer() as writer:
            for start in range(0, count, 100_000):
                writer.write_many(payloads(size, min(100_000, count - start)))
            writer.flush()
        self._settle(stream)
        ours = (
            spark.read.format("penstock")
            .option("controller", address)
            .option("scope", "bench")
            .option("stream", f"read{size}")
            .option("columns", "event,segment_id,offset")
            .load()
        )
        target = str(self.directory / f"parquet{size}")
        ours.write.mode("overwrite").option("compression", "none").parquet(target)
        theirs = spark.read.parquet(target)
        assert ours.count() == theirs.count() == count
        times: dict[str, list[float]] = {"ours": [], "parquet": []}
        for _ in range(self.runs):
            for name, frame in (("ours", ours), ("parquet", theirs)):
                took = seconds(lambda frame=frame: frame.write.format("noop").mode("overwrite").save())
                times[name].append(count / took)
        parquet = figure("S1", f"Parquet read, {size} B", "rows/s", times["parquet"])
        mine = figure(
            "S1",
            f"batch read, {size} B, event, segment_id, offset",
            "rows/s",
            times["ours"],
            limit=("Parquet of the same rows", parquet.median),
            target=">= 0.8",
        )
        return [mine, parquet]

    def _settle(self, stream: Any) -> None:
        """Wait until the flusher has had its turn: a batch read is about tier 2."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = stream.describe()
            if found.disk_bytes >= found.size_bytes:
                return
            time.sleep(0.5)

    def micro_batches(self, spark: Any, store: Any, address: str) -> list[Figure]:
        stream = store.create_stream("bench/micro", segments=1)
        arrived: list[float] = []
        query = (
            spark.readStream.format("penstock")
            .option("controller", address)
            .option("scope", "bench")
            .option("stream", "micro")
            .option("start_stream_cut", "earliest")
            .option("columns", "event")
            .load()
            .writeStream.foreachBatch(lambda frame, _: self._collect(frame, arrived))
            .option("checkpointLocation", str(self.directory / "checkpoint"))
            .start()
        )
        stop = threading.Event()
        thread = threading.Thread(target=self._trickle, args=(stream, stop, 100))
        thread.start()
        deadline = time.monotonic() + 60
        while len(arrived) < 500 + int(2000 * self.scale) and time.monotonic() < deadline:
            time.sleep(0.2)
        stop.set()
        thread.join()
        query.stop()
        steady = [item * 1000 for item in arrived[500:]]
        work = "event written to its batch in foreachBatch, 100 events/s"
        return [
            figure("S2", work, "ms p50", [percentile(steady, 0.5)], target="<= 120"),
            figure("S2", work, "ms p99", [percentile(steady, 0.99)], target="<= 230"),
        ]

    @staticmethod
    def _collect(frame: Any, arrived: list[float]) -> None:
        sent = [float(row.event) for row in frame.collect()]
        now = time.time()
        arrived.extend(now - item for item in sent)

    @staticmethod
    def _trickle(stream: Any, stop: threading.Event, rate: int) -> None:
        with stream.writer(linger_s=0) as writer:
            while not stop.is_set():
                writer.write(repr(time.time()).encode(), "k")
                writer.flush()
                time.sleep(1 / rate)
