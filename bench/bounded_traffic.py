"""Politeness: malformed traffic, peers that connect and say nothing, more load than the store can take."""

from __future__ import annotations

import http.client
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from bench.bounded_report import Bench, pid_of
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.testing.server import ServerProcess
from tests.abuse.peers import MIB, Peer, append, closed, connections, cpu_s_of, event, rss_of


@dataclass
class Load:
    """Writers of 1 KiB events, each waiting for each acknowledgement, and what they saw."""

    port: int
    segment: str
    writers: int
    in_flight: int = 1
    size: int = 1024
    acked: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        self.acked = [0] * self.writers
        self.threads = [threading.Thread(target=self._write, args=(index,)) for index in range(self.writers)]
        for thread in self.threads:
            thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def total(self) -> int:
        return sum(self.acked)

    def _write(self, index: int) -> None:
        data = event(bytes(self.size - 8))
        try:
            with Peer(self.port, timeout_s=60) as peer:
                writer, last = peer.set_up(self.segment, index + 1)
                number = acked = last
                while not self.stop.is_set() or number > acked:
                    while not self.stop.is_set() and number - acked < self.in_flight:
                        number += 1
                        peer.send(append(writer, data, number))
                    started = time.monotonic()
                    answer = peer.receive()
                    if not isinstance(answer, c.DataAppended):
                        raise TypeError(f"not acknowledged: {answer}")
                    self.latencies.append(time.monotonic() - started)
                    self.acked[index] += answer.event_number - acked
                    acked = answer.event_number
        except Exception as error:  # noqa: BLE001 - shown with the figure
            self.errors.append(repr(error))


def segment_of(server: ServerProcess, name: str) -> str:
    segment = f"load/{name}/0.#epoch.0"
    with Peer(server.store_port) as peer:
        peer.ask(c.CreateSegment(1, segment, 0, 0))
    return segment


@contextmanager
def loaded(server: ServerProcess, name: str, writers: int, in_flight: int = 1, size: int = 1024) -> Iterator[Load]:
    load = Load(
        port=server.store_port, segment=segment_of(server, name), writers=writers, in_flight=in_flight, size=size
    )
    load.start()
    try:
        yield load
    finally:
        load.end()


def rate_over(load: Load, seconds: float) -> float:
    before, started = load.total(), time.monotonic()
    time.sleep(seconds)
    return (load.total() - before) / (time.monotonic() - started)


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 100 else max(values, default=0.0)


def length_of(server: ServerProcess, segment: str) -> int:
    with Peer(server.store_port) as peer:
        return int(peer.ask(c.GetStreamSegmentInfo(1, segment)).length)  # type: ignore[attr-defined]


# --- malformed traffic --------------------------------------------------------------------------------------

BAD = (
    struct.pack(">ii", 1, -1),
    struct.pack(">ii", 1, 1 << 30),
    struct.pack(">ii", 12345, 8) + bytes(8),
    struct.pack(">ii", 4, 40) + bytes(40),
    struct.pack(">ii", 1, 3) + b"abc",
    struct.pack(">ii", 74, 40) + b"\x00" * 8 + b"\x00\x01s" + b"\x00\x00" + b"\x7f\xff\xff\xff" + bytes(20),
    wire.encode(c.SetupAppend(1, b"w" * 16, "../../etc/passwd\0", "")),
    wire.encode(c.ReadSegment("other/scope/0.#epoch.0", -5, 1 << 30, "stale", 9)),
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
)


def malformed(bench: Bench) -> None:
    """2,000 bad frames a second over 200 connections beside a healthy writer, alternated with the same sent elsewhere.

    Sender, writer and server share the machine: what the sender takes by itself is no cost of the server's.
    """
    seconds = bench.seconds
    with bench.server("assaulted") as server:
        spent, started = cpu_s_of(pid_of(server)), time.monotonic()
        _beside(server.store_port, Load(port=0, segment="", writers=0), seconds / 4)
        core = (cpu_s_of(pid_of(server)) - spent) / (time.monotonic() - started)
    met = core <= 0.2
    bench.show("malformed", "what they take of the core that the server runs on", f"{core:.0%}", "<= 20 %", met=met)
    with bench.server("malformed") as server, loaded(server, "healthy", 1, 16) as load, _sink() as elsewhere:
        rate_over(load, 1)
        pid = pid_of(server)
        grown = 0
        alone, sunk, bad, costs_sunk, costs_bad, sent = [], [], [], [], [], []
        for _ in range(4):
            alone.append(rate_over(load, seconds / 12))
            for port, rates, costs in ((elsewhere, sunk, costs_sunk), (server.store_port, bad, costs_bad)):
                spent, done, before = cpu_s_of(pid), load.total(), rss_of(pid)
                rate, frames = _beside(port, load, seconds / 4)
                rates.append(rate)
                costs.append((cpu_s_of(pid) - spent) / max(1, load.total() - done))
                sent.append(frames)
                if rates is bad:
                    # What the healthy writer wrote meanwhile is in the tail cache, where it belongs.
                    grown += rss_of(pid) - before - (load.total() - done) * load.size
        lines = server.log.read_text().count("\n")
    bench.show(
        "malformed", "bad frames sent per second, over 200 connections", f"{min(sent):,.0f}/s", "(2,000/s)", met=True
    )
    share = statistics.median(bad) / statistics.median(sunk)
    bench.show(
        "malformed",
        "healthy writer, of its rate beside a sender to elsewhere",
        f"{share:.0%}",
        ">= 80 %",
        met=share >= 0.8,
    )
    share = statistics.median(bad) / statistics.median(alone)
    bench.show("malformed", "healthy writer, of its rate without any sender", f"{share:.0%}", "(shown)", met=True)
    cost, more = statistics.median(costs_sunk) * 1e6, statistics.median(costs_bad) * 1e6
    bench.show(
        "malformed",
        "server CPU for each of its events, without and with",
        f"{cost:.0f}, {more:.0f} us",
        "(shown)",
        met=True,
    )
    bench.show(
        "malformed",
        "memory grown beyond what was written",
        f"{grown / MIB:.0f} MiB",
        "<= 32 MiB",
        met=grown <= 32 << 20,
    )
    bench.show("malformed", "lines in the log", f"{lines:,}", "<= 20 a second", met=lines <= 20 * (3 * seconds + 5))
    if load.errors:
        bench.show("malformed", "healthy writer failed", load.errors[0][:24], "never", met=False)


@contextmanager
def _sink() -> Iterator[int]:
    """A port that takes everything and says nothing, in a process of its own."""
    script = (
        "import asyncio\n"
        "async def take(reader, writer):\n"
        "    while await reader.read(65536): pass\n"
        "async def main():\n"
        "    server = await asyncio.start_server(take, '127.0.0.1', 0)\n"
        "    print(server.sockets[0].getsockname()[1], flush=True)\n"
        "    await server.serve_forever()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield int(process.stdout.readline()) if process.stdout else 0
        finally:
            process.kill()


def _beside(port: int, load: Load, seconds: float) -> tuple[float, float]:
    """The writer's rate while a process of its own sends 2,000 bad frames a second to the port, over 200 connections."""
    script = (
        "import sys, time, random, socket, selectors\n"
        "port, seconds, frames = int(sys.argv[1]), float(sys.argv[2]), [bytes.fromhex(one) for one in sys.argv[3:]]\n"
        "hello = bytes.fromhex('ffffff81000000080000001100000005')\n"
        "def fresh():\n"
        "    one = socket.create_connection(('127.0.0.1', port)); one.setblocking(False); one.send(hello); return one\n"
        "held = [fresh() for _ in range(200)]\n"
        "chance, sent, begun = random.Random(1), 0, time.monotonic()\n"
        "while time.monotonic() - begun < seconds:\n"
        "    for index in range(200):\n"
        "        while sent > 2000 * (time.monotonic() - begun): time.sleep(0.002)\n"
        "        try:\n"
        "            while True:\n"
        "                if not held[index].recv(65536): raise ConnectionError\n"
        "        except BlockingIOError: pass\n"
        "        except ConnectionError: held[index].close(); held[index] = fresh()\n"
        "        try: held[index].send(chance.choice(frames)); sent += 1\n"
        "        except ConnectionError: held[index].close(); held[index] = fresh()\n"
        "        except BlockingIOError: pass\n"
        "print(sent / seconds)\n"
    )
    command = [sys.executable, "-c", script, str(port), str(seconds), *(frame.hex() for frame in BAD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        time.sleep(0.5)
        rate = rate_over(load, seconds - 1)
        out, _ = process.communicate(timeout=60)
    return rate, float(out or 0)


# --- peers that say nothing ---------------------------------------------------------------------------------


def slow(bench: Bench) -> None:
    """1,000 connections that never finish their handshake: on the segment store's, the controller's and the HTTP port."""
    count = bench.count(1_000)
    with bench.server("slow") as server, loaded(server, "others", 2) as load:
        ports = {
            "store": (server.store_port, b"\xff\xff\xff"),
            "grpc": (server.controller_port, b"PRI * HT"),
            "http": (server.http_port, b"GET / HTTP/1.1\r\nHost: 127"),
        }
        time.sleep(2)
        load.latencies.clear()
        time.sleep(5)
        before = p99(load.latencies)
        for name, (port, first) in ports.items():
            grown, took = rss_of(pid_of(server)), time.monotonic()
            held = list(connections(port, count, first=first))
            load.latencies.clear()
            while (gone := closed(held)) < count and time.monotonic() - took < 12:
                time.sleep(0.1)
            took = time.monotonic() - took
            after = p99(load.latencies)
            grown = rss_of(pid_of(server)) - grown
            for one in held:
                one.close()
            bench.show(
                "slow",
                f"{name} port: {gone:,} of {count:,} silent peers closed within",
                f"{took:.1f} s",
                "<= 5 s",
                met=gone == count and took <= 6,
            )
            bench.show(
                "slow", f"{name} port: memory grown by", f"{grown / MIB:.0f} MiB", "<= 32 MiB", met=grown <= 32 << 20
            )
            bench.show(
                "slow",
                f"{name} port: p99 of writers beside them ({before * 1000:.1f} ms without)",
                f"{after * 1000:.1f} ms",
                "<= 2 x",
                met=after <= 2 * max(before, 0.002),
            )
        held = list(connections(server.http_port, count))
        answered = 0
        for _ in range(20):
            with suppress(OSError, http.client.HTTPException):
                asked = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=5)
                asked.request("GET", "/ping")
                answered += asked.getresponse().status == 200
                asked.close()
        bench.show(
            "slow", "HTTP requests answered among 1,000 silent peers", f"{answered} of 20", ">= 19", met=answered >= 19
        )
        for one in held:
            one.close()


# --- overload -----------------------------------------------------------------------------------------------


def overload(bench: Bench) -> None:
    """Five times the writers that reach the peak, each with as much in flight as it likes; then a few again."""
    seconds = bench.seconds
    with bench.server("overload") as server:
        with loaded(server, "peak", 4, 64) as load:
            rate_over(load, 2)
            peak = rate_over(load, seconds / 4)
        with bench.peak(server, "overload", "20 writers with 1,024 appends in flight each, instead of 4 with 64"):
            with loaded(server, "over", 20, 1024) as load:
                rate_over(load, 2)
                over = rate_over(load, seconds)
            lost = load.total() * 1024 - length_of(server, load.segment)
        met = over >= 0.8 * peak
        bench.show("overload", f"goodput, of a peak of {peak:,.0f} events/s", f"{over / peak:.0%}", ">= 80 %", met=met)
        bench.show("overload", "acknowledged and not there, bytes", f"{max(lost, 0):,}", "0", met=lost <= 0)
        began = time.monotonic()
        with loaded(server, "again", 4, 64) as load:
            while rate_over(load, 1) < 0.9 * peak and time.monotonic() - began < 30:
                pass
        took = time.monotonic() - began
        bench.show("overload", "nine tenths of the peak again after", f"{took:.0f} s", "<= 10 s", met=took <= 10)
        if load.errors:
            bench.show("overload", "a writer failed", load.errors[0][:24], "never", met=False)


SCENARIOS: dict[str, Callable[[Bench], None]] = {"malformed": malformed, "slow": slow, "overload": overload}
