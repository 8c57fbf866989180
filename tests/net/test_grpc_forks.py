"""Programs start other programs while a store is connected, as PySpark starts Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FORKS = 200

PROGRAM = f"""
import json, subprocess, sys, threading, time
import penstock

ports = ["--controller-port", "0", "--store-port", "0", "--http-port", "0"]
server = subprocess.Popen(
    [sys.executable, "-m", "penstock", "standalone", "--json", "--data", sys.argv[1], *ports],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
)
store = penstock.connect(json.loads(server.stdout.readline())["controller"])
stream = store.create_stream("plant/turbine", create_scope=True)
over = threading.Event()


def ask():
    while not over.is_set():
        stream.describe()


askers = [threading.Thread(target=ask) for _ in range(3)]
for asker in askers:
    asker.start()
statuses = []
for _ in range({FORKS}):
    # preexec_fn makes Python fork, where vfork would not run gRPC's handlers; PySpark gives one too.
    child = subprocess.Popen(["/bin/sh", "-c", "exit 0"], preexec_fn=lambda: time.sleep(0.002))
    try:
        statuses.append(child.wait(30))
    except subprocess.TimeoutExpired:
        child.kill()
        statuses.append("hangs")
over.set()
for asker in askers:
    asker.join()
store.close()
server.terminate()
server.wait(30)
print(json.dumps(statuses))
"""


@pytest.mark.slow
def test_programs_started_while_calls_are_under_way_run(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [0] * FORKS
