"""W1a, W1, W2, W3, W4 and W5: durable events of one client, in batches, one at a time, and over many segments."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

import penstock
from bench.stages.bare_client import BareWriter, bare_server
from bench.stages.sides import Side, here
from bench.store import KEYS, payloads
from penstock.testing.server import ServerProcess

STEP = {"arrow": 100_000, "list": 10_000, "many": 300_000}


def _batches(how: str, size: int, count: int, keys: list[str]) -> Callable[[Any], None]:
    """A function that writes ``count`` events to a writer of either side."""
    events = payloads(size, count)
    named = [keys[index * 7919 % len(keys)] for index in range(count)]
    step = STEP[how]
    if how == "arrow":
        arrow, arrow_keys = pa.array(events, pa.binary()), pa.array(named)

        # Arrays that begin at zero, as the bare loop wants them.
        parts = [
            (pa.concat_arrays([arrow.slice(start, step)]), pa.concat_arrays([arrow_keys.slice(start, step)]))
            for start in range(0, count, step)
        ]

        def write(writer: Any) -> None:
            for part, part_keys in parts:
                writer.write_arrow(part, part_keys)
            writer.flush()

        return write

    def write_lists(writer: Any) -> None:
        for start in range(0, count, step):
            writer.write_many(events[start : start + step], named[start : start + step])
        writer.flush()

    return write_lists


@contextmanager
def batches(
    directory: Path, scale: float, *, how: str, size: int = 100, segments: int = 4
) -> Iterator[dict[str, Side]]:
    """Batches of events from one writer. The bare server writes all that it gets to a chunk as well."""
    count = max(STEP["list"], int((1_000_000 if size < 1000 else 200_000) * scale))
    keys = KEYS
    if how == "many":
        count, keys = int(300_000 * scale), [f"key-{number}" for number in range(100_003)]
    write = _batches(how, size, count, keys)
    with (
        ServerProcess(directory / "ours") as server,
        penstock.connect(server.address) as store,
        bare_server(directory / "bare", tiers=True) as (bare_pid, port),
    ):
        stream = store.create_stream("bench/s", segments=segments, create_scope=True)
        with stream.writer() as writer:
            bare = BareWriter(port, segments)

            def ours() -> int:
                write(writer)
                return count

            def theirs() -> int:
                write(bare)
                return count

            server_pid = server.process.pid if server.process else 0
            yield {
                "product": Side(pids={"client": here(), "server": server_pid}, work=ours),
                "bare": Side(pids={"client": here(), "server": bare_pid}, work=theirs),
            }
            bare.close()


def _one_by_one(side: Side, write: Callable[[], None], count: int) -> Callable[[], int]:
    def work() -> int:
        for _ in range(count):
            began = time.perf_counter()
            write()
            side.waits.append((time.perf_counter() - began) * 1e6)
        return count

    return work


def _sync_side(directory: Path, count: int, who: str, *, checks: bool) -> Side:
    """One write of 4 KiB and one ``fdatasync`` of a recycled file, in this process."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = os.open(directory / "sync", os.O_RDWR | os.O_CREAT)
    block = os.urandom(4096)
    for at in range(4096):
        os.pwrite(handle, block, at * 4096)
    os.fsync(handle)
    at = 0

    def write() -> None:
        nonlocal at
        at = (at + 1) % 4096
        if checks:
            crc32c(block[:136])
        os.pwrite(handle, block, at * 4096)
        os.fdatasync(handle)

    side = Side(pids={who: here()}, work=lambda: 0, sampled=checks)
    side.work = _one_by_one(side, write, count)
    return side


def _product(writer: Any, pids: dict[str, int], count: int) -> Side:
    event = os.urandom(100)

    def write() -> None:
        writer.write(event, "k")
        writer.flush()

    side = Side(pids=pids, work=lambda: 0)
    side.work = _one_by_one(side, write, count)
    return side


@contextmanager
def single(directory: Path, scale: float) -> Iterator[dict[str, Side]]:
    """One durable event at a time over loopback."""
    count = max(100, int(1000 * scale))
    with (
        ServerProcess(directory / "ours") as server,
        penstock.connect(server.address) as store,
        bare_server(directory / "bare", tiers=False) as (bare_pid, port),
        store.create_stream("bench/s", segments=1, create_scope=True).writer(linger_s=0) as writer,
    ):
        bare = BareWriter(port, 1)
        event = os.urandom(108)

        def write() -> None:
            bare._send(0, [event], 1)
            bare.flush()

        theirs = Side(pids={"client": here(), "server": bare_pid}, work=lambda: 0)
        theirs.work = _one_by_one(theirs, write, count)
        server_pid = server.process.pid if server.process else 0
        yield {
            "product": _product(writer, {"client": here(), "server": server_pid}, count),
            "bare": theirs,
            "one sync": _sync_side(directory, count, "client", checks=False),
        }
        bare.close()


@contextmanager
def embedded(directory: Path, scale: float) -> Iterator[dict[str, Side]]:
    """The same in an embedded store; the bare loop is a checksum, a write and a sync in the caller's thread."""
    count = max(100, int(1000 * scale))
    with (
        penstock.open(directory / "ours") as store,
        store.create_stream("bench/s", segments=1, create_scope=True).writer(linger_s=0) as writer,
    ):
        yield {
            "product": _product(writer, {"store": here()}, count),
            "bare": _sync_side(directory, count, "store", checks=True),
        }
