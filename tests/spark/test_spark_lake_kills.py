"""The job ``lake`` is killed with all its processes, again and again, while events arrive: the table is exactly the stream."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from spark_world import World

from penstock.spark.lake.opening import TableAddress, open_table
from penstock.spark.lake.port import FORMATS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROUNDS = 6
SCHEMA = "key STRING, n BIGINT"


def event(number: int) -> bytes:
    return json.dumps({"key": f"k{number % 7}", "n": number}).encode()


@pytest.mark.parametrize("kind", FORMATS)
def test_a_job_that_is_killed_again_and_again_leaves_each_event_in_the_table_once(
    kind: str, address: str, world: World, tmp_path: Path
) -> None:
    rng = random.Random(kind)
    stream = world.create(f"killed{kind}", 3)
    target, catalog = str(tmp_path / "t"), {}
    if kind == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path / "warehouse")}
        target = "plant.t"
    words = ["spark", "lake", str(stream), target, "--format", kind, "--schema", SCHEMA, "--controller", address]
    words += ["--partition-by", "hour", "--compact-at", "6", "--json", "--master", "local[1]"]
    words += [f"--catalog={name}={value}" for name, value in catalog.items()]
    command = [sys.executable, "-m", "penstock", *words]
    written = 0
    for _ in range(ROUNDS):
        process = subprocess.Popen(
            [*command, "--follow", "--every", "0"], stdout=subprocess.PIPE, start_new_session=True, cwd=tmp_path
        )
        with process:
            assert process.stdout is not None
            for _ in range(rng.randint(1, 3)):
                end = written + rng.randint(1, 400)
                world.write(stream, [event(n) for n in range(written, end)])
                written = end
                assert process.stdout.readline(), "the job ended by itself"
            end = written + rng.randint(1, 400)
            world.write(stream, [event(n) for n in range(written, end)])
            written = end
            select.select([process.stdout], [], [], rng.random() * 3)
            os.killpg(process.pid, signal.SIGKILL)
        table = open_table(TableAddress(format=kind, target=target, catalog=catalog))
        (counts,) = duckdb.from_arrow(table.read()).query("t", "select count(*), count(distinct n) from t").fetchall()
        assert counts[0] == counts[1]
    done = subprocess.run(command, capture_output=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr.decode()
    table = open_table(TableAddress(format=kind, target=target, catalog=catalog))
    rows = duckdb.from_arrow(table.read())
    exact = "select count(*), count(distinct n), min(n), max(n), count(*) filter (key = 'k' || n % 7) from t"
    assert rows.query("t", exact).fetchall() == [(written, written, 0, written - 1, written)]
    state = table.state()
    assert state is not None
    assert state.cut == world.tail(stream).to_text()
    subscriber = "lake-killed" + kind + "-" + ("plant-t" if kind == "iceberg" else "t")
    assert world.published(stream, subscriber) == world.tail(stream)
