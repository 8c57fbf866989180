# %% [markdown]
# # A stream from its first event to its last
#
# Store, query, retention, erase: a real store in a process of its own, one Spark session, some thousand readings of turbines.
# Needs `pip install 'penstock[spark,java]'`. The notebook `store-query-retention-erase.ipynb` is made from this file by
# `python scripts/notebook.py`; both run as they are.

# %%
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import penstock
from penstock.spark.java import ensure_java
from penstock.spark.jobs.erase import erase
from penstock.spark.jobs.event_time import EventTime
from penstock.spark.jobs.export.job import ExportRequest, export
from penstock.spark.jobs.table import TableRequest, read_table, update_table
from penstock.spark.matching import JsonField
from penstock.spark.session import configure

work = Path(tempfile.mkdtemp(prefix="penstock-notebook-"))
ports = ["--controller-port", "0", "--store-port", "0", "--http-port", "0"]  # any that are free
server = subprocess.Popen(
    [sys.executable, "-m", "penstock", "standalone", "--json", "--data", str(work / "store"), *ports],
    stdout=subprocess.PIPE,
    text=True,
)
assert server.stdout is not None
controller = json.loads(server.stdout.readline())["controller"]
print("a store serves at", controller)

# %% [markdown]
# ## Store
#
# Events are bytes; those of one key stay in the order in which they were written. When `flush` returns they are on disk.

# %%
store = penstock.connect(controller)
turbine = store.create_stream("plant/turbine", segments=2, create_scope=True)
with turbine.writer() as writer:
    for number in range(5000):
        sensor = f"s{number % 20}"
        reading = {"sensor": sensor, "at": 1_790_000_000_000 + number * 1000, "rpm": 3000 + number % 7}
        writer.write(json.dumps(reading), key=sensor)
    writer.flush()
print(turbine.describe().size_bytes, "bytes in", len(turbine.describe().segments), "segments")

# %% [markdown]
# ## Query
#
# History comes straight from the files of the store, in parallel; only the tail that is not in a file yet is asked from it.

# %%
ensure_java(work / "java")
builder = configure(SparkSession.builder.master("local[2]").appName("notebook"))
spark = (
    builder.config("spark.ui.enabled", "false").config("spark.sql.warehouse.dir", str(work / "warehouse")).getOrCreate()
)

events = spark.read.format("penstock").option("controller", controller).option("columns", "event").load("plant/turbine")
readings = events.select(
    fn.from_json(fn.col("event").cast("string"), "sensor STRING, at BIGINT, rpm INT").alias("reading")
).select("reading.*")
by_sensor = readings.groupBy("sensor").agg(fn.count("*").alias("readings"), fn.max("rpm").alias("fastest"))
by_sensor.orderBy("sensor").show(5)
assert readings.count() == 5000

# %% [markdown]
# ## Keep it elsewhere, in a form that answers questions
#
# A table holds the latest event of each key as Parquet. It is a *subscriber* of the stream: the stream keeps what the table
# lacks, and may forget what it has.

# %%
request = TableRequest(
    read={"controller": controller, "stream": "plant/turbine"},
    directory=work / "latest",
    schema="sensor STRING, at BIGINT, rpm INT",
    key="sensor",
    buckets=2,
)
report = update_table(spark, request)
print(f"{report.events} events became {report.rows} rows")
read_table(spark, work / "latest").select("key", "at", "rpm").orderBy("key").show(3)
assert report.rows == 20

# %% [markdown]
# A range of the stream becomes Parquet files as well: whole, or not there at all.

# %%
exported = export(
    spark,
    ExportRequest(
        read={"controller": controller, "stream": "plant/turbine"},
        output=work / "archive",
        time=EventTime(field="at"),
        partition="hour",
    ),
)
print(f"{exported.events} events in {exported.files} files, ending at cut {exported.end[:20]}…")
assert spark.read.parquet(str(work / "archive")).count() == 5000

# %% [markdown]
# ## Retention
#
# Ask before anything is deleted: what would this policy delete, which subscribers would lose data, what keeps the rest?
# Then set it, and see it kept.

# %%
plan = turbine.retention.plan({"retain": {"min_bytes": 0}})
print(plan.why)
print("would free", plan.frees_bytes, "bytes")

# %%
with turbine.writer() as writer:
    writer.write(json.dumps({"sensor": "s0", "at": 1_790_000_000_000 + 9_000_000, "rpm": 1}), key="s0")
    writer.flush()

turbine.retention.set({"retain": {"min_bytes": 0}})  # what all subscribers have may go
turbine.retention.run()
left = turbine.describe()
print(left.size_bytes, "bytes are left: what the table does not have yet. Held by:", left.held_by)
assert 0 < left.size_bytes < 200

# %%
report = update_table(spark, request)
turbine.retention.run()
print(report.events, "event more in the table,", turbine.describe().size_bytes, "bytes left in the stream")
assert (report.events, turbine.describe().size_bytes) == (1, 0)

# %% [markdown]
# ## Erase
#
# Somebody asks to be forgotten. The tasks look for the events, the store blanks them for good: in files, log and caches, with
# offsets unchanged and a receipt that can be checked at any time.

# %%
with turbine.writer() as writer:
    for number in range(200):
        sensor = f"s{number % 20}"
        writer.write(json.dumps({"sensor": sensor, "at": 1_790_010_000_000 + number, "rpm": 2000}), key=sensor)
    writer.flush()

erased = erase(
    spark,
    "plant/turbine",
    JsonField(path="sensor", values=frozenset({"s7"})),
    controller=controller,
    who="notebook",
    why="request 17",
)
print(erased.events, "events erased; the receipt:", json.dumps(erased.receipt)[:200], "…")
# Load anew: a frame keeps the plan of its first action, and with it what was there then.
now = spark.read.format("penstock").option("controller", controller).option("columns", "event").load("plant/turbine")
sensors = [json.loads(row.event)["sensor"] for row in now.collect()]
assert (erased.events, len(sensors), "s7" in sensors) == (10, 190, False)
assert erased.receipt is not None
assert store.erasures().verify(erased.receipt["erasure"]).holds

# %% [markdown]
# ## The end

# %%
spark.stop()
store.close()
server.terminate()
server.wait(30)
shutil.rmtree(work)
