"""Pravega's Python client, unchanged, writes while stores and the active controller are killed.

The client takes one address of a controller, so it is given that of a load balancer, as HTTP clients are.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from tests.cluster.cluster_processes import ClusterOfProcesses
from tests.cluster.failover_facts import event_anomalies, whole_lines

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

HOST = "127.0.0.1"
STREAM = "shop/clicks"
SEGMENTS, KEYS = 4, 5
PATIENCE_S = 180.0


async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        to.write(data)
        await to.drain()
    raise ConnectionResetError


@contextmanager
def balanced(ports: Sequence[int]) -> Iterator[int]:
    """A port that passes each connection to the first of the ports that accepts one."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        above = None
        try:
            for port in ports:
                try:
                    above_reader, above = await asyncio.open_connection(HOST, port)
                    break
                except OSError:
                    continue
            if above is not None:
                async with asyncio.TaskGroup() as group:
                    group.create_task(copy(reader, above))
                    group.create_task(copy(above_reader, writer))
        except (OSError, ExceptionGroup):
            pass  # One of both ends has closed the connection, which closes the other.
        finally:
            writer.transport.abort()
            if above is not None:
                above.transport.abort()

    opened: list[int] = []
    ready, end = threading.Event(), asyncio.Event()

    async def main() -> None:
        server = await asyncio.start_server(serve, HOST, 0)
        opened.append(server.sockets[0].getsockname()[1])
        ready.set()
        await end.wait()
        server.close()
        running = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    ready.wait()
    try:
        yield opened[0]
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@contextmanager
def client(directory: Path, verb: str, address: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.crash.official_load", verb, address, STREAM, str(directory / verb)]
    with (directory / f"{verb}.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(directory / "stop"), *words],
            stdout=log,
            stderr=log,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def test_readers_of_the_python_client_go_on_when_their_groups_table_moves(zookeeper, bookies, tmp_path):
    """The client asks once where the table of a reader group is. The store that had it passes its requests on, also after a
    restart; only while that store is down must the reader wait."""
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        stores = [cluster.store(f"s{number}") for number in range(2)]
        cluster.controller("c0")
        cluster.active()
        cluster.run("stream", "create", STREAM, "--segments", str(SEGMENTS), "--controller", cluster.controllers)
        address = cluster.controllers.removeprefix("tcp://")

        with (
            client(tmp_path, "write", address, "w", str(KEYS), "0.5") as writing,
            client(tmp_path, "read", address, "g") as reading,
        ):

            def progress(what: str) -> None:
                before, began = len(whole_lines(tmp_path / "read")), time.monotonic()
                cluster.until(lambda: len(whole_lines(tmp_path / "read")) > before + 300, PATIENCE_S)
                print(f"{what}: the reader went on after {time.monotonic() - began:.1f} s")
                assert writing.poll() is None
                assert reading.poll() is None

            progress("before")
            for store in (0, 1, 0):
                for container in range(4):
                    cluster.run("cluster", "move", str(container), f"s{store}", "--cluster", cluster.url)
                progress(f"all containers moved to s{store}")
            stores[0].kill()
            stores[0].start()
            progress("the store killed and started again")
            (tmp_path / "stop").touch()
            assert writing.wait(PATIENCE_S) == 0
            acked = [line.strip() for line in whole_lines(tmp_path / "write")]
            cluster.until(lambda: len(whole_lines(tmp_path / "read")) >= len(acked), PATIENCE_S)
    read = [line.strip() for line in whole_lines(tmp_path / "read")]
    assert len(acked) > 2000
    assert not any(event_anomalies(acked, read).values())


def test_the_python_client_writes_on_when_stores_and_the_active_controller_are_killed(zookeeper, bookies, tmp_path):
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        stores = [cluster.store(f"s{number}") for number in range(2)]
        controllers = [cluster.controller(f"c{number}") for number in range(2)]
        first = cluster.active()
        cluster.run("stream", "create", STREAM, "--segments", str(SEGMENTS), "--controller", cluster.controllers)
        with (
            balanced([int(one.address.rpartition(":")[2]) for one in controllers]) as port,
            client(tmp_path, "write", f"{HOST}:{port}", "w", str(KEYS)) as writing,
        ):

            def progress(what: str) -> None:
                """Wait for more acknowledged events, and print how long that took."""
                before, began = len(whole_lines(tmp_path / "write")), time.monotonic()
                cluster.until(
                    lambda: len(whole_lines(tmp_path / "write")) > before + 500 or writing.poll() is not None,
                    PATIENCE_S,
                )
                assert writing.poll() is None, (tmp_path / "write.log").read_text()
                print(f"{what}: the writer went on after {time.monotonic() - began:.1f} s")

            progress("before")
            stores[0].kill()
            progress("store killed")
            first.kill()
            progress("controller killed")
            assert cluster.active() is not first
            # From here on the writer needs the second controller, to find the containers of the other store.
            stores[0].start()
            cluster.until(lambda: stores[0].facts != {}, PATIENCE_S)
            stores[1].kill()
            progress("the other store killed")
            (tmp_path / "stop").touch()
            assert writing.wait(PATIENCE_S) == 0, (tmp_path / "write.log").read_text()
        with penstock.connect(cluster.controllers) as store:
            found = [event.data.decode() for event in store.stream(STREAM).reader(until_tail=True)]
    acked = [line.strip() for line in whole_lines(tmp_path / "write")]
    assert len(acked) > 2000
    assert not any(event_anomalies(acked, found).values())
