"""What is left of a query whose driver is killed: nothing."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from spark_world import World, keyed

from penstock.app.demo.processes import Child
from penstock.spark.connect import close_links, dial, link
from penstock.spark.flight_delays import socket_settings
from penstock.testing.server import ServerProcess

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
PROGRAM = """
import subprocess, sys
child = '''
import sys, threading
from importlib.machinery import ModuleSpec
from penstock.spark.worker.lifetime import end_with_driver
sys.modules["__main__"].__spec__ = ModuleSpec("{name}", None)
end_with_driver()
print("watching", flush=True)
threading.Event().wait({wait_s})
'''
subprocess.Popen([sys.executable, "-c", child]).wait()
"""


def ends_with_its_parent(name: str, *, wait_s: float, within_s: float) -> bool:
    parent = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(name=name, wait_s=wait_s)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as out:
        assert out.readline() == "watching\n"
        parent.kill()
        parent.wait()
        # The child holds the other end: this is readable once it is gone, too.
        return bool(select.select([out], [], [], within_s)[0])


def test_sparks_runner_of_a_source_ends_with_the_process_that_started_it() -> None:
    assert ends_with_its_parent(RUNNER, wait_s=60, within_s=20)


def test_other_processes_are_left_alone() -> None:
    assert not ends_with_its_parent("somebody.elses", wait_s=6, within_s=3)


def test_sockets_lie_below_the_work_directory_where_their_names_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    assert socket_settings(Path("/data/spark/tmp")) == {"spark.python.unix.domain.socket.dir": "data/spark/tmp"}
    long = Path("/" + "d" * 66)
    assert socket_settings(long) == {"spark.python.unix.domain.socket.enabled": "false"}
    monkeypatch.chdir(tmp_path)
    assert socket_settings(tmp_path / "x") == {"spark.python.unix.domain.socket.dir": "x"}


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.server
def test_a_query_whose_driver_is_killed_leaves_no_process_and_no_file_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # so that the names of sockets are short
    work = tmp_path / "work"
    seen = threading.Event()

    def on_line(name: str, values: dict[str, Any]) -> None:
        if "batch" in values:
            seen.set()

    with ServerProcess(tmp_path / "data") as server:
        world = World(link(dial, server.address))
        world.write(world.create("flights"), keyed(0, 100))
        world.create("delays")
        child = Child(
            "query",
            [
                *("-m", "penstock.spark.flight_delays", "--controller", server.address, "--scope", "plant"),
                *("--input", "flights", "--output", "delays", "--checkpoint", str(work / "checkpoint")),
                *("--parquet", str(work / "parquet"), "--work", str(work / "spark")),
            ],
            tmp_path / "query.log",
            on_line,
        )
        close_links()
        try:
            assert seen.wait(180), child.tail()
            running = child.members()
            names = {process: Path(f"/proc/{process}/cmdline").read_text().split("\0") for process in running}
            java = [process for process, words in names.items() if Path(words[0]).name == "java"]
            assert len(java) == 1
            assert any(RUNNER in words for words in names.values())
            assert not list(Path("/tmp").glob(f"hsperfdata_*/{java[0]}"))
            assert list((work / "spark" / "tmp").glob(".*.sock"))
            assert os.getsid(java[0]) == child.process.pid
            # The runner waits for a store that is gone when its JVM goes.
            server.kill()
            child.process.kill()
            child.process.wait()
            for process in running:
                wait_gone(process)
            assert child.members() == []
        finally:
            child.kill()


def wait_gone(process: int) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    try:
        assert select.select([descriptor], [], [], 30)[0], f"process {process} is still there"
    finally:
        os.close(descriptor)
