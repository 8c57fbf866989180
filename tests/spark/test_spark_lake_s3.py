"""The job ``lake`` onto a real S3 server, with executors of their own: drivers are killed, and the table is exactly the stream."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

pytest.importorskip("obstore")
sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from s3_world import S3Server, contents, running
from spark_world import World

from penstock.spark.lake.opening import TableAddress, open_table

pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]

KILLS = 1
SCHEMA = "key STRING, n BIGINT"
TABLES = (("versitygw", "delta"), ("versitygw", "iceberg"))
"""Swift has no conditional writes, which Delta needs."""
MASTERS = {"delta": "local-cluster[1,2,1024]", "iceberg": "local[2]"}
"""Executors in processes of their own take minutes to start on a busy machine, so only one format has them."""


def event(number: int) -> bytes:
    return json.dumps({"key": f"k{number % 7}", "n": number}).encode()


@pytest.fixture(params=TABLES, ids="-".join)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[S3Server, str, TableAddress]]:
    """A server, an empty bucket of it, and a table to be in this bucket."""
    name, kind = request.param
    with running(name, tmp_path) as server:
        bucket = server.new_bucket()
        if kind == "iceberg":
            catalog = {
                "type": "sql",
                "uri": f"sqlite:///{tmp_path}/catalog.db",
                "warehouse": f"{bucket}/warehouse",
                "s3.endpoint": server.endpoint,
                "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
                "s3.region": os.environ["AWS_REGION"],
            }
            yield server, bucket, TableAddress(format=kind, target="plant.t", catalog=catalog)
        else:
            storage = {"aws_endpoint": server.endpoint, "allow_http": "true"}
            yield server, bucket, TableAddress(format=kind, target=f"{bucket}/t", storage=storage)


def data_objects(server: S3Server, bucket: str) -> int:
    return sum(name.endswith(".parquet") for name in contents(server, bucket))


def test_a_table_in_a_bucket_has_each_event_once_whenever_the_driver_is_killed(
    place: tuple[S3Server, str, TableAddress], address: str, world: World, tmp_path: Path
) -> None:
    server, bucket, table = place
    rng = random.Random(f"{server.name}/{table.format}")
    stream = world.create(f"lake{server.name}{table.format}", 3)
    words = ["spark", "lake", str(stream), table.target, "--format", table.format, "--schema", SCHEMA]
    words += ["--controller", address, "--compact-at", "6", "--json", "--master", MASTERS[table.format]]
    words += [f"--catalog={name}={value}" for name, value in table.catalog.items()]
    words += [f"--storage={name}={value}" for name, value in table.storage.items()]
    command = [sys.executable, "-m", "penstock", *words]
    written = 0
    for _ in range(KILLS):
        with (tmp_path / "job.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--follow", "--every", "0"],
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                cwd=tmp_path,
            )
        with process:
            assert process.stdout is not None
            for number in range(2):
                end = written + rng.randint(100, 400)
                world.write(stream, [event(n) for n in range(written, end)])
                written = end
                if number == 0:
                    assert process.stdout.readline(), (tmp_path / "job.log").read_text()[-4000:]
            # The second batch is on its way: its executors write data objects, then the driver commits.
            before = data_objects(server, bucket)
            while not select.select([process.stdout], [], [], 0)[0] and data_objects(server, bucket) == before:
                assert process.poll() is None, (tmp_path / "job.log").read_text()[-4000:]
            os.killpg(process.pid, signal.SIGKILL)
        (counts,) = (
            duckdb.from_arrow(open_table(table).read())
            .query("t", "select count(*), count(distinct n) from t")
            .fetchall()
        )
        assert counts[0] == counts[1] <= written
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr.decode()[-4000:]
    found = open_table(table)
    rows = duckdb.from_arrow(found.read())
    exact = "select count(*), count(distinct n), min(n), max(n), count(*) filter (key = 'k' || n % 7) from t"
    assert rows.query("t", exact).fetchall() == [(written, written, 0, written - 1, written)]
    state = found.state()
    assert state is not None
    assert state.cut == world.tail(stream).to_text()
