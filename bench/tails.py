"""A thousand readers that wait at the tail of one stream: what each costs the server, and how soon all have an event.

Also: what writers feel while readers read history as fast as they can.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import penstock
from bench.limits import Limits
from bench.measure import Figure, figure, percentile
from bench.store import payloads
from penstock.codec.wire.commands import Hello, ReadSegment
from penstock.codec.wire.frames import encode
from penstock.testing.server import ServerProcess

KIB = 1 << 10
_HEAD_BYTES = 8
_FRAMED = 108
_ROUNDS = 20

_SPIN = """
print(flush=True)
block = bytearray(1 << 20)
while True:
    bytes(block)
"""
_READ = """
import penstock
with penstock.connect({address!r}) as store:
    print(flush=True)
    while True:
        with store.stream("bench/history").reader(until_tail=True) as reader:
            for _ in reader.read_blocks():
                pass
"""


class Tails:
    """Connections that read a segment from its tail on, with as little Python as will do: the server is measured."""

    def __init__(self, port: int, segment: str, offset: int, readers: int) -> None:
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._request = bytearray(encode(ReadSegment(segment, offset, 64 * KIB, "", 1)))
        self._offset_at = _HEAD_BYTES + 2 + len(segment)
        self._offset = offset
        for _ in range(readers):
            one = socket.create_connection(("127.0.0.1", port))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            hello = encode(Hello(17, 5))
            one.sendall(hello)
            if len(one.recv(len(hello), socket.MSG_WAITALL)) != len(hello):
                raise RuntimeError("the store did not say hello")
            one.sendall(self._request)
            self._poll.register(one.fileno(), select.EPOLLIN)
            self._sockets[one.fileno()] = one

    def round(self, write: Callable[[], None], size: int) -> list[float]:
        """Write one event of ``size`` framed bytes in another thread; microseconds until each reader had it."""
        struct.pack_into(">q", self._request, self._offset_at, self._offset + size)
        self._offset += size
        missing = dict.fromkeys(self._sockets, 0)
        lags: list[float] = []
        deadline = time.perf_counter() + 60
        thread = Thread(target=write)
        started = time.perf_counter()
        thread.start()
        while missing and time.perf_counter() < deadline:
            for handle, _ in self._poll.poll(1):
                one = self._sockets[handle]
                missing[handle] += len(one.recv(64 * KIB))
                if missing[handle] >= size:  # a reply is one segment of TCP: it comes whole
                    del missing[handle]
                    lags.append((time.perf_counter() - started) * 1e6)
                    one.send(self._request)
        thread.join()
        if missing:
            raise RuntimeError(f"readers without the event: {len(missing)}")
        return lags

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._poll.close()


class TailsBench:
    """R4 and W9, each against a server of its own."""

    def __init__(self, directory: Path, limits: Limits, runs: int, scale: float) -> None:
        self.directory = directory
        self.limits = limits
        self.runs = runs
        self.scale = scale

    def run(self) -> list[Figure]:
        shutil.rmtree(self.directory, ignore_errors=True)
        try:
            with ServerProcess(self.directory / "tails") as server, penstock.connect(server.address) as store:
                figures = self._tails(server, store)
            with (
                ServerProcess(self.directory / "mixed", "--memory", "96MiB") as server,
                penstock.connect(server.address) as store,
            ):
                return figures + self._mixed(server, store)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _tails(self, server: ServerProcess, store: Any) -> list[Figure]:
        count = max(10, int(1000 * self.scale))
        stream = store.create_stream("bench/tails", segments=1, create_scope=True)
        with stream.writer(linger_s=0) as writer:

            def write() -> None:
                writer.write(os.urandom(100), "k")
                writer.flush()

            write()
            (segment, offset), *_ = stream.tail().positions.items()
            name = f"bench/tails/{segment & 0xFFFFFFFF}.#epoch.{segment >> 32}"
            before = _resident_bytes(server)

            tails = Tails(server.store_port, name, offset, count)
            tails.round(write, _FRAMED)
            parked = (_resident_bytes(server) - before) / count
            medians, lates, costs = [], [], []
            for _ in range(self.runs):
                cpu = _cpu_s(server)
                taken = [one for _ in range(_ROUNDS) for one in tails.round(write, _FRAMED)]
                medians.append(percentile(taken, 0.5))
                lates.append(percentile(taken, 0.99))
                costs.append((_cpu_s(server) - cpu) * 1e6 / len(taken))
            later = (_resident_bytes(server) - before) / count
            tails.close()
        work_name = f"{count} tail readers of one stream, a connection each"
        return [
            figure("R4", f"{work_name}: written to received", "us p50", medians),
            figure("R4", f"{work_name}: written to received", "us p99", lates, target="<= 20,000 us"),
            figure("R4", f"{work_name}: CPU of the server for each and event", "us", costs),
            figure("R4", f"{work_name}: memory of the server for each", "KiB", [parked / KIB], target="<= 64"),
            figure("R4", f"{work_name}: the same after {_ROUNDS * self.runs + 1} events", "KiB", [later / KIB]),
        ]

    def _mixed(self, server: ServerProcess, store: Any) -> list[Figure]:
        count = int(1_500_000 * self.scale)
        history = store.create_stream("bench/history", segments=1, create_scope=True)
        with history.writer() as writer:
            for start in range(0, count, 100_000):
                writer.write_many(payloads(100, min(100_000, count - start)))
            writer.flush()
        live = store.create_stream("bench/live", segments=1)
        # Of the same load by something that is none of the server's business, a writer feels as much as of busy cores.
        # A reader of history keeps more than one core busy, together with the server.
        others = {
            "alone": [],
            "beside a busy process": [_SPIN],
            "beside two busy processes": [_SPIN, _SPIN],
            "beside readers": [_READ.format(address=server.address)],
        }
        lates: dict[str, list[float]] = {name: [] for name in others}
        medians: dict[str, list[float]] = {name: [] for name in others}
        with live.writer(linger_s=0) as writer:
            for _ in range(self.runs):
                for name, works in others.items():
                    taken = []
                    with _running(works):
                        for _ in range(int(1000 * self.scale)):
                            started = time.perf_counter()
                            writer.write(b"x" * 100, "k")
                            writer.flush()
                            taken.append((time.perf_counter() - started) * 1e6)
                    lates[name].append(percentile(taken, 0.99))
                    medians[name].append(percentile(taken, 0.5))
        alone = figure("W9", "one durable event at a time: alone", "us p99", lates["alone"])
        figures = [figure("W9", "one durable event at a time: alone", "us p50", medians["alone"]), alone]
        for name in list(others)[1:]:
            work_name = f"one durable event at a time: {name}"
            figures.append(figure("W9", work_name, "us p50", medians[name]))
            figures.append(
                figure("W9", work_name, "us p99", lates[name], limit=("alone", alone.median), target="<= 1.2")
            )
        return figures


@contextlib.contextmanager
def _running(works: Sequence[str]) -> Iterator[None]:
    """Python processes that do this, from their first line of output on."""
    others = [subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE) for work in works]
    try:
        for other in others:
            if other.stdout is not None:
                other.stdout.readline()
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _resident_bytes(server: ServerProcess) -> int:
    if server.process is None:
        return 0
    fields = Path(f"/proc/{server.process.pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def _cpu_s(server: ServerProcess) -> float:
    if server.process is None:
        return 0.0
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
