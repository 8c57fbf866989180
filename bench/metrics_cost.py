"""What the metrics cost a server: the CPU of awaited appends, with counters and without, in turns.

    chrt -r 10 python -m bench.metrics_cost [rounds] [appends]

Two servers run at once, each with a store of its own on the same disk. They differ in their telemetry only. One client
sends single appends and awaits each, to the one and to the other in turns, so that both see the same machine. The CPU of
a server is read from the kernel, in nanoseconds.

On a shared machine the rounds differ by far more than the metrics cost. So the calls themselves are measured too: what
the server calls for one awaited append, in a loop, with counters and without, in turns.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from penstock.app.segments import open_segments
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import HEADER, append_block_end_parts, encode
from penstock.net.wire.append_meter import AppendMeter
from penstock.net.wire.wire_server import WireServer
from penstock.ports.telemetry import NoTelemetry, Telemetry
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

SEGMENT = "bench/metrics/0.#epoch.0"
WRITER = bytes(15) + b"\1"
EVENT = b"\0\0\0\0\0\0\0\x64" + bytes(100)
WARM = 2_000  # appends before the first round


class Silent(NoTelemetry):
    """Counts nothing, and has no clock."""


async def _serve(data: Path, line: Connection, *, counts: bool) -> None:
    telemetry: Telemetry = Counters() if counts else Silent()
    settings = EmbeddedSettings(data=data)
    async with (
        open_segments(settings, clock=RealClock(), rng=RealRng(), telemetry=telemetry) as store,
        WireServer(store, host="127.0.0.1", port=0, rng=RealRng(), telemetry=telemetry) as wire,
    ):
        line.send(wire.port)
        await asyncio.to_thread(line.recv)


def _server(data: Path, line: Connection, counts: bool) -> None:
    uvloop.run(_serve(data, line, counts=counts))


class Client:
    """One connection that appends one event at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._number = 0
        for command in (
            c.Hello(17, 5),
            c.CreateSegment(1, SEGMENT, 0, 0, "", 0),
            c.SetupAppend(2, WRITER, SEGMENT, ""),
        ):
            self._socket.sendall(encode(command))
            self._reply()

    def _reply(self) -> None:
        head = self._socket.recv(HEADER.size, socket.MSG_WAITALL)
        _, size = HEADER.unpack(head)
        self._socket.recv(size, socket.MSG_WAITALL)

    def append(self, count: int) -> None:
        for _ in range(count):
            self._number += 1
            self._socket.sendall(b"".join(append_block_end_parts(WRITER, EVENT, 1, self._number, 3)))
            self._reply()


def cpu_ns(pid: int) -> int:
    """The CPU of all threads of a process."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir())


def compare(rounds: int, appends: int) -> tuple[list[float], list[float]]:
    """Microseconds of CPU for each append, round by round: with counters, and without."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        servers = []
        for counts in (True, False):
            ours, theirs = context.Pipe()
            data = Path(directory) / str(counts)
            data.mkdir()
            process = context.Process(target=_server, args=(data, theirs, counts), daemon=True)
            process.start()
            servers.append((process, ours, Client(ours.recv())))
        for _, _, client in servers:
            client.append(WARM)
        spent: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds):
            for which in (0, 1) if turn % 2 else (1, 0):
                process, _, client = servers[which]
                before = cpu_ns(process.pid or 0)
                client.append(appends)
                spent[which].append((cpu_ns(process.pid or 0) - before) / appends / 1000)
        for process, ours, _ in servers:
            ours.send(None)
            process.join()
    return spent


class Append:
    """What the meter needs of an append."""

    def attributes(self) -> dict[str, str | int | float | bool]:
        return {}


def calls_ns(telemetry: Telemetry, times: int = 20_000) -> float:
    """CPU of the calls for one awaited append: in ``wire.connection``, ``wire.append_meter`` and ``shared_log``."""
    meter, item = AppendMeter(telemetry), Append()
    received, writes, written = (telemetry.tally(name) for name in ("received", "writes", "written"))
    observe, steady_s = telemetry.durations("log_write_seconds"), telemetry.steady_s
    began = time.thread_time_ns()
    for _ in range(times):
        received.value += 148
        meter.arrived(item)
        began_s = steady_s()
        writes.value += 1
        observe(steady_s() - began_s)
        written.value += 108
        meter.acknowledged(item, 1, 108)
        meter.ended(item)
        meter.sent()
    return (time.thread_time_ns() - began) / times


def main() -> None:
    words = [*sys.argv[1:], *("40", "1000")[len(sys.argv) - 1 :]]
    rounds, appends = int(words[0]), int(words[1])
    with_counters, without = compare(rounds, appends)
    shares = [100 * (one / two - 1) for one, two in zip(with_counters, without, strict=True)]
    low, middle, high = statistics.quantiles(shares, n=4)
    one, two = statistics.median(with_counters), statistics.median(without)
    print(f"CPU of the server for each append: {one:.2f} us with counters, {two:.2f} us without ({rounds} rounds)")
    print(f"difference of the medians: {100 * (one / two - 1):+.2f} %")
    pairs = [(calls_ns(Counters()), calls_ns(Silent())) for _ in range(21)]
    calls = statistics.median(one for one, _ in pairs) - statistics.median(two for _, two in pairs)
    print(f"the calls of an append: {calls:.0f} ns more with counters, {calls / two / 10:.2f} % of {two:.2f} us")
    print(f"difference in each round: median {middle:+.2f} %, quartiles {low:+.2f} to {high:+.2f} %")


if __name__ == "__main__":
    main()
