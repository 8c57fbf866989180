"""W10, R4 and R2: single frames of many connections, readers at the tail, and readers of chunks."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from bench.history import HistoryBench
from bench.limits import Limits
from bench.stages.bare_client import BareFrames, BareTails, BareWriter, bare_server, read_history
from bench.stages.sides import Side, here
from bench.store import payloads
from bench.tails import Tails
from bench.workers import CONNECTIONS, EVENTS, WINDOW_BYTES, Connection, drive, endpoints
from penstock.testing.server import ServerProcess

MIB = 1 << 20


@contextmanager
def frames(directory: Path, scale: float) -> Iterator[dict[str, Side]]:
    """64 connections send single events, each in a frame of its own."""
    events = max(200, int(EVENTS * scale))
    with (
        ServerProcess(directory / "ours", "--log", "1GiB") as server,
        penstock.connect(server.address) as store,
        bare_server(directory / "bare", tiers=False) as (bare_pid, port),
    ):
        stream = store.create_stream("bench/s", segments=CONNECTIONS, create_scope=True)
        places = asyncio.run(endpoints(server.address, stream))
        waiting: list[list[Connection] | list[BareFrames]] = []

        def ours() -> int:
            drive(waiting.pop())
            return events * CONNECTIONS

        def connect() -> None:
            waiting[:] = [[Connection(place, name, events) for name, place in places]]

        def connect_bare() -> None:
            waiting[:] = [[BareFrames(port, number, events, WINDOW_BYTES) for number in range(CONNECTIONS)]]

        server_pid = server.process.pid if server.process else 0
        yield {
            "product": Side(pids={"server": server_pid}, work=ours, prepare=connect),
            "bare": Side(pids={"server": bare_pid}, work=ours, prepare=connect_bare),
        }


@contextmanager
def tails(directory: Path, scale: float) -> Iterator[dict[str, Side]]:
    """Readers that wait at the tail of one stream; a unit is one event to one reader."""
    readers, rounds = max(10, int(1000 * scale)), 10
    with (
        ServerProcess(directory / "ours") as server,
        penstock.connect(server.address) as store,
        bare_server(directory / "bare", tiers=False) as (bare_pid, port),
    ):
        stream = store.create_stream("bench/tails", segments=1, create_scope=True)
        with stream.writer(linger_s=0) as writer:

            def write() -> None:
                writer.write(os.urandom(100), "k")
                writer.flush()

            write()
            (segment, offset), *_ = stream.tail().positions.items()
            name = f"bench/tails/{segment & 0xFFFFFFFF}.#epoch.{segment >> 32}"
            waiting = Tails(server.store_port, name, offset, readers)
            bare_waiting, bare = BareTails(port, readers), BareWriter(port, 1)

            def ours() -> int:
                return sum(len(waiting.round(write, 108)) for _ in range(rounds))

            def put() -> None:
                bare._send(0, [os.urandom(108)], 1)
                bare.flush()

            def theirs() -> int:
                return sum(bare_waiting.round(put) for _ in range(rounds))

            server_pid = server.process.pid if server.process else 0
            yield {
                "product": Side(pids={"server": server_pid}, work=ours),
                "bare": Side(pids={"server": bare_pid}, work=theirs),
            }
            waiting.close()
            bare_waiting.close()
            bare.close()


@contextmanager
def history(directory: Path, scale: float, *, cold: bool) -> Iterator[dict[str, Side]]:
    """Raw catch-up from chunks in the page cache or not; a unit is one MiB."""
    bench = HistoryBench(directory, NO_LIMITS, 1, scale)
    count = bench.count
    with (
        ServerProcess(bench.directory / "store", "--memory", "96MiB") as server,
        penstock.connect(server.address) as store,
    ):
        stream = store.create_stream("bench/history", segments=1, create_scope=True)
        with stream.writer() as writer:
            for start in range(0, count, 100_000):
                writer.write_many(payloads(100, min(100_000, count - start)))
            writer.flush()
        bench.settle(stream)
        (directory / "bare").mkdir(parents=True, exist_ok=True)
        size = count * 108 // MIB * MIB
        (directory / "bare" / "history").write_bytes(os.urandom(MIB) * (size // MIB))
        with bare_server(directory / "bare", tiers=False) as (bare_pid, port):

            def ours() -> int:
                with stream.reader(until_tail=True) as reader:
                    return sum(len(block.framed) for block in reader.read_blocks()) // MIB

            def drop() -> None:
                if cold:
                    bench.drop_cache()
                    _forget(directory / "bare" / "history")

            server_pid = server.process.pid if server.process else 0
            yield {
                "product": Side(pids={"client": here(), "server": server_pid}, work=ours, prepare=drop),
                "bare": Side(
                    pids={"client": here(), "server": bare_pid}, work=lambda: read_history(port, size), prepare=drop
                ),
            }
    shutil.rmtree(directory, ignore_errors=True)


NO_LIMITS = Limits(
    sync_p50_us=0,
    sync_p99_us=0,
    log_bytes_s=0,
    loopback_bytes_s=0,
    round_trip_us=0,
    file_read_bytes_s=0,
    cold_read_bytes_s=0,
)


def _forget(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)
