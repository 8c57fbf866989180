"""The table of peers: every store in the same run on the same machine, in turns, each with its class of durability."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import Figure, Row, Skipped, figure, percentile
from bench.peers import servers
from bench.peers.client_process import ClientProcess, WorkError
from bench.peers.servers import AbsentError, Durability, Server

# A budget for all of it; what is not reached stands in the table with fewer runs, or as left out.
BUDGET_S = 450
_STARTING_SHARE, _ROUNDS_SHARE = 0.25, 0.85
OURS = "ours, write()"
OURS_OFFICIAL = "ours, pravega 0.3.8"
PRAVEGA = "Pravega 0.13 standalone"
# Stores whose server no package registry has, and why: they are listed as left out.
NOT_PACKAGED = {
    "Apache Iggy": "its server is published as an image and as a binary of a release only: "
    "crates.io has the crate iggy, its client, and no iggy-server; PyPI's apache-iggy is a client too",
}


@dataclass(slots=True, kw_only=True)
class Contestant:
    """One store with one setting and one client. ``server`` names one in the contest: two settings may share it."""

    who: str
    durability: Durability
    server: str
    module: str
    arguments: Callable[[Any], Sequence[str]]
    python: Callable[[], str] = lambda: sys.executable
    partitions: int = 4
    official: bool = False
    client: ClientProcess | None = None
    rates: dict[str, float] = field(default_factory=dict)
    values: dict[str, list[float]] = field(default_factory=dict)

    def keep(self, work: str, value: float) -> None:
        self.values.setdefault(work, []).append(value)


def contestants() -> list[Contestant]:
    """Ours first: all others are shown relative to it."""
    peers_python = servers.clients_python

    def at(server: Any) -> list[str]:
        return [server.address]

    def ours(how: str) -> Callable[[Any], Sequence[str]]:
        return lambda server: [server.address, how]

    mine: dict[str, Any] = {"server": "ours", "module": "penstock_client"}
    official: dict[str, Any] = {"module": "pravega_client", "arguments": at, "official": True, "partitions": 1}
    redis: dict[str, Any] = {"module": "redis_client", "arguments": at, "python": peers_python, "partitions": 1000}
    nats: dict[str, Any] = {"module": "nats_client", "arguments": at, "python": peers_python}
    kafka: dict[str, Any] = {"server": "kafka", "module": "kafka_client", "python": peers_python, "partitions": 1000}
    return [
        Contestant(who=OURS, durability="F", arguments=ours("write"), partitions=1000, **mine),
        Contestant(who="ours, Arrow", durability="F", arguments=ours("arrow"), **mine),
        Contestant(who="Kafka 4.1, flush.messages=1", durability="F", arguments=ours("flush"), **kafka),
        Contestant(who="Kafka 4.1", durability="O", arguments=ours("default"), **kafka),
        Contestant(who="Redis, appendfsync always", durability="F", server="redis-always", **redis),
        Contestant(who="Redis, appendfsync everysec", durability="O", server="redis-everysec", **redis),
        Contestant(who="NATS JetStream, sync always", durability="F", server="nats-always", **nats),
        Contestant(who="NATS JetStream", durability="O", server="nats", **nats),
        Contestant(
            who="Pulsar, journal synced",
            durability="F",
            server="pulsar",
            module="pulsar_client",
            arguments=lambda server: [server.address, server.http],
            python=peers_python,
        ),
        Contestant(who=OURS_OFFICIAL, durability="F", server="ours", **official),
        Contestant(who=PRAVEGA, durability="M", server="pravega", **official),
    ]


def all_servers(directory: Path) -> dict[str, Server]:
    return {
        "ours": servers.Penstock(directory=directory / "ours"),
        "kafka": servers.Kafka(directory=directory / "kafka"),
        "redis-always": servers.Redis(directory=directory / "redis-always", options={"appendfsync": "always"}),
        "redis-everysec": servers.Redis(directory=directory / "redis-everysec", options={"appendfsync": "everysec"}),
        "nats-always": servers.Nats(directory=directory / "nats-always", options={"sync": "always"}),
        "nats": servers.Nats(directory=directory / "nats"),
        "pulsar": servers.Pulsar(directory=directory / "pulsar"),
        "pravega": servers.Pravega(directory=directory / "pravega"),
    }


# Identifier, what is done, unit, whether more is better.
WORKS = {
    "ingest": ("V1", "ingest 100 B, 1 partition", "events/s", True),
    "keys": ("V2", "ingest 100 B, 4 partitions, 1,000 keys", "events/s", True),
    "large": ("V3", "ingest 1 KiB, 1 partition", "events/s", True),
    "single50": ("V4", "one at a time, 100 B", "us p50", False),
    "single99": ("V4", "one at a time, 100 B", "us p99", False),
    "tail50": ("V5", "tail, 200 events/s: written to received", "us p50", False),
    "tail99": ("V5", "tail, 200 events/s: written to received", "us p99", False),
    "read": ("V6", "catch up to Python objects, 100 B", "events/s", True),
    "many": ("V7", "ingest 100 B, 1,000 partitions, 100,000 keys", "events/s", True),
    "start": ("V8", "start to first acknowledged event", "s", False),
    "idle": ("V9", "memory after start", "MiB", False),
    "loaded": ("V9", "most memory while loaded", "MiB", False),
    "streams": ("V10", "create a stream, one after the other", "streams/s", True),
    "transactions": ("V11", "transactions of 10 events, one after the other", "txn/s", True),
}
WANTED = {("keys", "Kafka 4.1"): ">= 1.5", ("read", "Kafka 4.1"): ">= 1"}


class PeersBench:
    """Starts all that is here, then goes round: every contestant does the first work, then every one the second."""

    def __init__(self, directory: Path, runs: int, scale: float, budget_s: float = BUDGET_S) -> None:
        self.directory = directory
        self.runs = max(3, runs)
        self.slice_s = scale
        self.budget_s = budget_s
        self.skipped: list[Skipped] = []
        self.servers = all_servers(directory)
        self.present: list[Contestant] = []

    def run(self) -> list[Row]:
        began = time.monotonic()
        self.deadline = began + self.budget_s * _ROUNDS_SHARE
        self.directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            for server in self.servers.values():
                stack.callback(server.stop)
            self._start_all(stack, began + self.budget_s * _STARTING_SHARE)
            for turn in range(self.runs + 1):
                self._round(turn, warm=turn == 0)
            self.deadline = began + self.budget_s
            self._each("loaded", self._memory)
            self._many_partitions()
        print(f"peers: took {time.monotonic() - began:.0f} s", flush=True)
        return self._rows()

    def _say(self, text: str) -> None:
        print(f"peers: {text}", flush=True)

    def _leave_out(self, one: Contestant, reason: str, work: str = "") -> None:
        """Tell why. Without a work, it takes no further part."""
        name, what = (WORKS[work][0], WORKS[work][1]) if work else ("V", "all")
        self.skipped.append(Skipped(id=name, work=what, who=one.who, reason=reason))
        self._say(f"left out: {one.who}, {what}: {reason}")
        if not work:
            self.present = [item for item in self.present if item is not one]

    def _start_all(self, stack: ExitStack, until: float) -> None:
        """Start each server as often as there are runs; the last one stays."""
        started: dict[str, str] = {}
        for one in contestants():
            server = self.servers[one.server]
            try:
                if one.server in started:
                    if started[one.server]:
                        raise AbsentError(started[one.server])
                    one.client = self._client(stack, one)
                    one.client.ask("first")
                else:
                    started[one.server] = ""
                    self._say(f"start {one.who}")
                    self._starts(stack, one, server, until)
            except (AbsentError, WorkError, RuntimeError, OSError) as error:
                started[one.server] = started[one.server] or str(error)
                self._leave_out(one, str(error))
                continue
            self.present.append(one)
        time.sleep(2)
        self._each("idle", self._memory)

    def _client(self, stack: ExitStack, one: Contestant) -> ClientProcess:
        log = self.directory / f"client-{one.module}.log"
        made = ClientProcess(one.python(), one.module, list(one.arguments(self.servers[one.server])), log)
        stack.callback(made.close)
        return made

    def _starts(self, stack: ExitStack, one: Contestant, server: Server, until: float) -> None:
        if one.official and not servers.has_module("pravega_client"):
            raise AbsentError("the client pravega is not installed")
        one.python()
        for _ in range(self.runs):
            server.stop()
            if one.client is not None:
                one.client.close()
            server.prepare()
            # A client that is there already, as an application is, tries until it is served.
            one.client = self._client(stack, one)
            began = time.perf_counter()
            server.launch()
            server.wait()
            self._first(one.client)
            one.keep("start", time.perf_counter() - began)
            if time.monotonic() > until:
                break

    @staticmethod
    def _first(client: ClientProcess, limit_s: float = 60) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                client.ask("first", limit_s=limit_s)
                return
            except WorkError:
                if time.monotonic() > deadline or client.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def _each(self, work: str, do: Callable[[Contestant], None]) -> None:
        """One turn of all. What fails once is left out of this work from then on."""
        for one in list(self.present):
            if time.monotonic() > self.deadline:
                return
            if any(item.who == one.who and item.id == WORKS[work][0] for item in self.skipped):
                continue
            try:
                do(one)
            except WorkError as error:
                self._leave_out(one, str(error), work)
                if one.client is not None and one.client.process.poll() is not None:
                    self._leave_out(one, "its client process ended")

    def _memory(self, one: Contestant) -> None:
        """Of the one that started the server; others use it as well, and make it no smaller."""
        if "start" in one.values:
            work = "loaded" if "idle" in one.values else "idle"
            server = self.servers[one.server]
            one.keep(work, (server.most_resident() if work == "loaded" else server.resident()) / (1 << 20))

    def _ask(self, one: Contestant, do: str, **given: Any) -> Any:
        if one.client is None:
            raise WorkError("the client process has ended")
        return one.client.ask(do, **given)

    def _count(self, one: Contestant, work: str, first: int) -> int:
        """As many events as take one slice of time."""
        rate = one.rates.get(work)
        return first if rate is None else max(first, min(2_000_000, int(rate * self.slice_s)))

    def _round(self, turn: int, *, warm: bool) -> None:
        self._say("warm up" if warm else f"round {turn} of {self.runs}")

        def ingest(work: str, size: int, partitions: int, keys: int) -> Callable[[Contestant], None]:
            def do(one: Contestant) -> None:
                topic = f"{work}{turn}x{contest_number(one.who)}"
                count = self._count(one, work, 5000)
                self._ask(one, "create", topic=topic, partitions=partitions)
                took = self._ask(one, "ingest", topic=topic, size=size, count=count, keys=keys, partitions=partitions)
                one.rates[work] = count / took
                if not warm:
                    one.keep(work, count / took)
                if work == "ingest":
                    one.rates["written"] = count
                else:
                    self._ask(one, "delete", topic=topic)

            return do

        def read(one: Contestant) -> None:
            topic = f"ingest{turn}x{contest_number(one.who)}"
            count = int(one.rates["written"])
            took = self._ask(one, "read", topic=topic, count=count)
            if not warm:
                one.keep("read", count / took)
            self._ask(one, "delete", topic=topic)

        def latencies(work: str, do: str, first: int, **given: int) -> Callable[[Contestant], None]:
            def go(one: Contestant) -> None:
                topic = f"{work}{turn}x{contest_number(one.who)}"
                count = first if do == "tail" else min(2000, self._count(one, work, 100))
                self._ask(one, "create", topic=topic, partitions=1)
                times = self._ask(one, do, topic=topic, count=count, **given)
                one.rates[work] = 1e6 / statistics.mean(times)
                if not warm:
                    one.keep(f"{do}50", percentile(times, 0.5))
                    one.keep(f"{do}99", percentile(times, 0.99))
                self._ask(one, "delete", topic=topic)

            return go

        self._each("single50", latencies("single50", "single", 100))
        self._each("ingest", ingest("ingest", 100, 1, 0))
        self._each("read", read)
        self._each("keys", ingest("keys", 100, 4, 1000))
        self._each("large", ingest("large", 1024, 1, 0))
        self._each("tail50", latencies("tail50", "tail", 40 if warm else int(400 * self.slice_s), rate=200))
        if not warm:
            self._each("streams", lambda one: self._streams(one, turn))
            self._each("transactions", lambda one: self._transactions(one, turn))

    def _streams(self, one: Contestant, turn: int) -> None:
        if one.official:
            count = 20
            one.keep("streams", count / self._ask(one, "streams", prefix=f"made{turn}n", count=count))

    def _transactions(self, one: Contestant, turn: int) -> None:
        if one.official:
            count = 20
            self._ask(one, "create", topic=f"txn{turn}", partitions=1)
            one.keep("transactions", count / self._ask(one, "transactions", topic=f"txn{turn}", count=count))

    def _many_partitions(self) -> None:
        """A thousand partitions, made once; after everything else, for they weigh on what comes after them."""
        self._say("1,000 partitions")
        for turn in range(self.runs + 1):

            def do(one: Contestant, turn: int = turn) -> None:
                if one.partitions < 1000:
                    return
                topic = f"many{contest_number(one.who)}"
                if turn == 0:
                    self._ask(one, "create", topic=topic, partitions=1000)
                count = self._count(one, "many", 5000)
                took = self._ask(one, "ingest", topic=topic, size=100, count=count, keys=100_000, partitions=1000)
                one.rates["many"] = count / took
                if turn:
                    one.keep("many", count / took)

            self._each("many", do)

    def _rows(self) -> list[Row]:
        """By work, ours first. The ratio says how many times better ours is."""
        rows: list[Row] = []
        everyone = {one.who: one for one in contestants()} | {one.who: one for one in self.present}
        for work in WORKS:
            yardstick = everyone[OURS].values.get(work)
            for one in everyone.values():
                values = one.values.get(work)
                if values and not one.official:
                    rows.append(self._row(work, one, values, yardstick, WANTED.get((work, one.who), "")))
        official = everyone[OURS_OFFICIAL]
        for work in WORKS:
            for one in (official, everyone[PRAVEGA]):
                values = one.values.get(work)
                if values:
                    target = ">= 2" if work in ("single50", "single99", "start") else ">= 1"
                    mine = (
                        everyone[OURS].values.get(work)
                        if work in ("start", "idle", "loaded")
                        else official.values.get(work)
                    )
                    rows.append(self._row(work, one, values, mine, target, "W6"))
        absent = [Skipped(id="V", work="all", who=who, reason=reason) for who, reason in NOT_PACKAGED.items()]
        return [*rows, *absent, *self.skipped]

    @staticmethod
    def _row(
        work: str,
        one: Contestant,
        values: Sequence[float],
        yardstick: Sequence[float] | None,
        target: str,
        name: str = "",
    ) -> Figure:
        mark, what, unit, more = WORKS[work]
        made = figure(name or mark, what, unit, values, target=target, who=one.who, durability=one.durability)
        if not yardstick or one.who in (OURS, OURS_OFFICIAL):
            return made
        mine = statistics.median(yardstick)
        return made.beside("ours better by", mine / made.median if more else made.median / mine)


def contest_number(who: str) -> str:
    """A name for topics: letters and digits of who it is."""
    return "".join(letter for letter in who if letter.isalnum())
