"""Workers: single appends of 100 B over many connections, to one process and to two, in turns."""

from __future__ import annotations

import asyncio
import selectors
import shutil
import socket
import statistics
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import penstock
from bench.measure import Figure, figure
from penstock.app.remote import open_remote
from penstock.codec.events import frame_events
from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import VERSION_HIGH, VERSION_LOW, encode
from penstock.model.names import StreamName, segment_name
from penstock.ports.control.layout import Endpoint
from penstock.testing.server import ServerProcess

CONNECTIONS = 64
EVENTS = 4000
WINDOW_BYTES = 32 << 10
_HEADER = struct.Struct(">ii")
_NUMBER = struct.Struct(">q")
_DATA_APPENDED, _APPEND_SETUP = 7, 2


class Connection:
    """A writer on a connection of its own: single frames, made before the clock runs, sent a window ahead of the answers."""

    def __init__(self, endpoint: Endpoint, segment: str, events: int) -> None:
        writer = uuid4().bytes
        payload = frame_events([b"x" * 92])
        self.frames = [encode(c.AppendBlockEnd(writer, len(payload), payload, 1, n, n)) for n in range(1, events + 1)]
        self.data = b"".join(self.frames)
        self.sent = self.acked = 0
        self.size = len(self.frames[0])
        self._left = bytearray()
        self.socket = socket.create_connection((endpoint.host, endpoint.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(encode(c.Hello(VERSION_HIGH, VERSION_LOW)) + encode(c.SetupAppend(1, writer, segment, "")))
        while _APPEND_SETUP not in self._codes():
            continue

    def _codes(self) -> set[int]:
        """What has come, by kind."""
        self._left += self.socket.recv(1 << 20)
        found, at = set(), 0
        while len(self._left) - at >= _HEADER.size:
            code, length = _HEADER.unpack_from(self._left, at)
            if len(self._left) - at < _HEADER.size + length:
                break
            if code == _DATA_APPENDED:
                # One answer may acknowledge several appends: behind the writer's id comes the last number.
                self.acked = _NUMBER.unpack_from(self._left, at + _HEADER.size + 16)[0]
            found.add(code)
            at += _HEADER.size + length
        del self._left[:at]
        return found

    @property
    def done(self) -> bool:
        return self.acked >= len(self.frames)

    def push(self) -> None:
        """Send as far as the window goes."""
        upto = min(len(self.data), self.acked * self.size + WINDOW_BYTES)
        if upto > self.sent:
            self.socket.sendall(memoryview(self.data)[self.sent : upto])
            self.sent = upto

    def pull(self) -> None:
        self._codes()


class WorkersBench:
    """Each run starts a server of one process and one of two workers, one after the other, on empty directories."""

    def __init__(self, directory: Path, runs: int, scale: float) -> None:
        self.directory = directory
        self.runs = runs
        self.events = max(200, int(EVENTS * scale))

    def run(self) -> list[Figure]:
        rates: dict[int, list[float]] = {1: [], 2: []}
        busy: dict[int, list[float]] = {1: [], 2: []}
        for turn in range(self.runs):
            for workers in (1, 2) if turn % 2 == 0 else (2, 1):
                rate, cpu_us = self._one(workers)
                rates[workers].append(rate)
                busy[workers].append(cpu_us)
        what = f"single appends of 100 B, {CONNECTIONS} connections, 64 segments"
        one = statistics.median(rates[1])
        return [
            figure("W10a", f"{what}, 1 process", "events/s", rates[1]),
            figure("W10b", f"{what}, --workers 2", "events/s", rates[2], limit=("1 process", one), target=">= 1.3"),
            figure("W10c", f"{what}, 1 process: CPU of the server", "us/event", busy[1]),
            figure("W10d", f"{what}, --workers 2: CPU of the server", "us/event", busy[2]),
        ]

    def _one(self, workers: int) -> tuple[float, float]:
        """Events per second, and what the server's processes took for each, in microseconds of CPU."""
        directory = self.directory / f"workers-{workers}"
        shutil.rmtree(directory, ignore_errors=True)
        options = ("--workers", str(workers), "--log", "1GiB")
        with ServerProcess(directory, *options) as server, penstock.connect(server.address) as store:
            stream = store.create_stream("bench/s", segments=CONNECTIONS, create_scope=True)
            connections = [
                Connection(endpoint, name, self.events)
                for name, endpoint in asyncio.run(endpoints(server.address, stream))
            ]
            pids = [worker["pid"] for worker in server.workers]
            if server.process is not None:
                pids.append(server.process.pid)
            before = sum(map(_cpu_s, pids))
            started = time.perf_counter()
            drive(connections)
            took = time.perf_counter() - started
            cpu_s = sum(map(_cpu_s, pids)) - before
        shutil.rmtree(directory, ignore_errors=True)
        total = self.events * len(connections)
        return total / took, cpu_s / total * 1e6


def drive(connections: Sequence[Connection]) -> None:
    """Send all, and return once all is acknowledged."""
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
            connection.push()
        left = len(connections)
        while left:
            for key, _ in selector.select():
                connection = key.data
                connection.pull()
                connection.push()
                if connection.done:
                    selector.unregister(connection.socket)
                    connection.socket.close()
                    left -= 1


async def endpoints(address: str, stream: Any) -> list[tuple[str, Endpoint]]:
    async with open_remote(address) as (_, controller):
        names = [segment_name(StreamName.parse(str(stream.name)), item.segment) for item in stream.describe().segments]
        return [(name, await controller.layout.endpoint(name)) for name in names]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100
