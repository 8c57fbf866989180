"""A log on bookies: our client of ledgers beside BookKeeper's own, and a server on bookies beside one on a local log.

    make setup-cluster
    python -m bench.bookies [--directory DIR] [--rounds 5]

One ZooKeeper and three bookies on this machine, all on the disk of ``--directory``; each entry is on three bookies, two of
which have synced it before it is acknowledged. The contestants take turns. Prints medians of the rounds, the least and the
most of them, and ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import penstock
from bench.measure import percentile
from bench.store import KEYS, payloads
from penstock.model.ledgers import LedgerSpec
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.server import ServerProcess

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "scripts"))
import cluster_engines  # noqa: E402

JAVA = ROOT / "tests" / "compat" / "bookkeeper" / "JavaLedgers.java"
SINGLES = 1000
ENTRIES = {100: 20_000, 1024: 10_000}
WINDOW = 1000
EVENTS = {100: 300_000, 1024: 60_000}
STEP = 10_000
REPLAYED = 60_000


@dataclass(slots=True)
class Bench:
    """``found``: the values of each row, by contestant and work."""

    directory: Path
    zookeeper: cluster_engines.ZooKeeper
    bookies: cluster_engines.Bookies
    found: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def note(self, who: str, work: str, value: float) -> None:
        self.found.setdefault((who, work), []).append(value)

    def java(self, *arguments: object) -> list[float]:
        jars = f"{cluster_engines.jars(cluster_engines.BOOKKEEPER)}/*"
        uri = f"zk+hierarchical://{self.zookeeper.address}{self.bookies.root}"
        logs = self.bookies.servers[0].directory.parent / "bookie-shell" / "log4j2.xml"
        command = ["java", f"-Dlog4j2.configurationFile={logs}", "-cp", jars, str(JAVA), uri, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return [float(word) for word in done.stdout.strip().splitlines()[-1].split()]

    def java_client(self) -> None:
        p50, p99 = self.java("latency", SINGLES, 100)
        self.note("Java client", "one entry of 100 B, us p50", p50)
        self.note("Java client", "one entry of 100 B, us p99", p99)
        for size, count in ENTRIES.items():
            self.note("Java client", f"entries of {size} B, entries/s", self.java("rate", count, size)[0])

    def our_client(self) -> None:
        asyncio.run(self._our_client())

    async def _our_client(self) -> None:
        async with (
            open_nodes(self.zookeeper.address) as nodes,
            open_ledgers(nodes, root=self.bookies.root, clock=RealClock(), rng=RealRng()) as ledgers,
        ):
            writer = await ledgers.create(LedgerSpec(labels=()), b"header")
            taken, event = [], os.urandom(100)
            for number in range(-SINGLES, SINGLES):
                since = time.perf_counter()
                await writer.add([event])
                if number >= 0:
                    taken.append((time.perf_counter() - since) * 1e6)
            self.note("our client", "one entry of 100 B, us p50", percentile(taken, 0.5))
            self.note("our client", "one entry of 100 B, us p99", percentile(taken, 0.99))
            for size, count in ENTRIES.items():
                data = os.urandom(size)
                rate = 0.0
                for _ in range(2):  # the first one warms up
                    window = asyncio.Semaphore(WINDOW)
                    since = time.perf_counter()

                    async def add(window: asyncio.Semaphore = window, data: bytes = data) -> None:
                        try:
                            await writer.add([data])
                        finally:
                            window.release()

                    async with asyncio.TaskGroup() as group:
                        for _ in range(count):
                            await window.acquire()
                            group.create_task(add())
                    rate = count / (time.perf_counter() - since)
                self.note("our client", f"entries of {size} B, entries/s", rate)
            await writer.close()

    def server(self, who: str, number: int, *options: str) -> None:
        """Events through a server, and a start after ``kill -9``."""
        place = self.directory / f"{who.replace(' ', '-')}-{number}"
        with ServerProcess(place / "data", *options) as server:
            with penstock.connect(server.address) as store:
                store.create_scope("bench")
                self._single(who, store)
                for size, count in EVENTS.items():
                    self._ingest(who, store, size, count)
                stream = store.create_stream("bench/replayed", segments=4)
                with stream.writer() as writer:
                    events = payloads(1024, REPLAYED)
                    writer.write_many(events, [KEYS[index % 1000] for index in range(REPLAYED)])
                    writer.flush()
                server.kill()
            self.note(who, "start after kill -9 behind 60 MB, s", server.start())

    def _single(self, who: str, store: Any) -> None:
        event, taken = os.urandom(100), []
        with store.create_stream("bench/single", segments=1).writer(linger_s=0) as writer:
            for number in range(-SINGLES // 5, SINGLES):
                since = time.perf_counter()
                writer.write(event, "k")
                writer.flush()
                if number >= 0:
                    taken.append((time.perf_counter() - since) * 1e6)
        self.note(who, "one durable event of 100 B, us p50", percentile(taken, 0.5))
        self.note(who, "one durable event of 100 B, us p99", percentile(taken, 0.99))

    def _ingest(self, who: str, store: Any, size: int, count: int) -> None:
        events = payloads(size, count)
        keys = [KEYS[index % 1000] for index in range(count)]
        stream = store.create_stream(f"bench/bulk-{size}", segments=4)
        with stream.writer() as writer:
            since = time.perf_counter()
            for start in range(0, count, STEP):
                writer.write_many(events[start : start + STEP], keys[start : start + STEP])
            writer.flush()
            self.note(who, f"events of {size} B in batches, events/s", count / (time.perf_counter() - since))
        stream.truncate(stream.tail())

    def show(self) -> None:
        works = dict.fromkeys(work for _, work in self.found)
        for work in works:
            rows = [(who, values) for (who, of), values in self.found.items() if of == work]
            first = statistics.median(rows[0][1])
            for who, values in rows:
                median = statistics.median(values)
                spread = f"{min(values):,.4g} to {max(values):,.4g}"
                print(f"{work:42} {who:18} {median:12,.4g}   ({spread}; {median / first:.2f} of {rows[0][0]})")


def main() -> None:
    """Run all rounds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.bookies", description=__doc__)
    parser.add_argument("--directory", type=Path, help="where bookies and servers keep their files")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    if (reason := cluster_engines.missing()) is not None:
        sys.exit(f"bench: {reason}")
    with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="penstock-bookies-") as name:
        directory = Path(name)
        with (
            cluster_engines.ZooKeeper(directory) as zookeeper,
            cluster_engines.Bookies(directory, zookeeper.address) as bookies,
        ):
            bench = Bench(directory, zookeeper, bookies)
            for number in range(chosen.rounds):
                (directory / f"tier2-{number}").mkdir()
                log_at = f"bookkeeper://{zookeeper.address}/penstock/bench-{number}"
                turns: list[Callable[[], None]] = [
                    bench.java_client,
                    bench.our_client,
                    lambda number=number: bench.server("local log", number),  # type: ignore[misc]
                    lambda number=number, log_at=log_at: bench.server(  # type: ignore[misc]
                        "log on bookies", number, "--log", log_at
                    ),
                ]
                for turn in turns if number % 2 == 0 else reversed(turns):
                    turn()
                print(f"round {number + 1} of {chosen.rounds} is over", file=sys.stderr, flush=True)
            bench.show()


if __name__ == "__main__":
    main()
