"""A log on bookies with and without encryption, in one alternated run.

    make setup-cluster
    python -m bench.encryption [--directory DIR] [--rounds 5]

One ZooKeeper and three bookies on this machine, as in ``bench.bookies``. Frames are appended to the log itself, one after
another and many at a time; events are written to a store in this process. The contestants take turns. Prints medians of
the rounds so far, the least and the most of them, and ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import penstock
from bench.bookies import EVENTS, ROOT, SINGLES, Bench
from bench.measure import percentile
from penstock.app.replicated import log_keys
from penstock.ports.durable_log import DurableLog
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import open_ledger_log
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys

sys.path.append(str(ROOT / "scripts"))
import cluster_engines

FRAMES = {100: 10_000, 65_536: 1_500, 1 << 20: 150}
IN_FLIGHT = 16
PLAIN, SEALED = "without", "encrypted"


async def append_frames(bench: Bench, who: str, number: int) -> None:
    """Appends to a new log, singly and ``IN_FLIGHT`` at a time."""
    clock, rng, objects = RealClock(), RealRng(), MemoryObjects()
    sealing = Sealing(
        keys=lambda uid: ObjectLedgerKeys(objects, uid=uid, clock=clock), clock=clock, may_write=lambda: who == SEALED
    )
    async with (
        open_nodes(bench.zookeeper.address) as nodes,
        open_ledgers(nodes, root=bench.bookies.root, clock=clock, rng=rng) as ledgers,
        open_ledger_log(ledgers, nodes, path=f"/penstock/{who}-{number}", rng=rng, sealing=sealing) as log,
    ):
        async for _ in log.replay():
            pass
        for size in (100, 65_536):
            data, taken = os.urandom(size), []
            for index in range(-SINGLES // 4, SINGLES):
                since = time.perf_counter()
                await log.append([data])
                if index >= 0:
                    taken.append((time.perf_counter() - since) * 1e6)
            bench.note(who, f"one frame of {size} B, us p50", percentile(taken, 0.5))
            bench.note(who, f"one frame of {size} B, us p99", percentile(taken, 0.99))
        for size, count in FRAMES.items():
            await append_many(bench, who, log, size, count)


async def append_many(bench: Bench, who: str, log: DurableLog, size: int, count: int) -> None:
    data, places = os.urandom(size), asyncio.Semaphore(IN_FLIGHT)

    async def add() -> None:
        try:
            await log.append([data])
        finally:
            places.release()

    since, used = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            await places.acquire()
            group.create_task(add())
    taken_s, used_s = time.perf_counter() - since, time.process_time() - used
    bench.note(who, f"frames of {size} B, {IN_FLIGHT} at a time, MB/s", count * size / taken_s / 1e6)
    bench.note(who, f"frames of {size} B, us of our CPU each", used_s / count * 1e6)


@asynccontextmanager
async def plain_sealing(*arguments: Any, **named: Any) -> AsyncIterator[Sealing]:
    """In place of ``open_sealing``: nothing is encrypted."""
    async with ORIGINAL(*arguments, **{**named, "may_write": lambda: False}) as sealing:
        yield sealing


ORIGINAL = log_keys.open_sealing


def write_events(bench: Bench, who: str, number: int) -> None:
    """Events through a store in this process."""
    place = bench.directory / f"{who}-{number}"
    log_at = f"bookkeeper://{bench.zookeeper.address}/penstock/store-{who}-{number}?ledgers={bench.bookies.root}"
    chosen = plain_sealing if who == PLAIN else ORIGINAL
    with patch.object(log_keys, "open_sealing", chosen), penstock.open(place, log_at=log_at) as store:
        store.create_scope("bench")
        bench._single(who, store)
        for size, count in EVENTS.items():
            bench._ingest(who, store, size, count)


def turn(bench: Bench, who: str, number: int) -> None:
    asyncio.run(append_frames(bench, who, number))
    write_events(bench, who, number)


def main() -> None:
    """Run all rounds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.encryption", description=__doc__)
    parser.add_argument("--directory", type=Path, help="where bookies and stores keep their files")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    if (reason := cluster_engines.missing()) is not None:
        sys.exit(f"bench: {reason}")
    with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="penstock-encryption-") as name:
        directory = Path(name)
        with (
            cluster_engines.ZooKeeper(directory) as zookeeper,
            cluster_engines.Bookies(directory, zookeeper.address) as bookies,
        ):
            bench = Bench(directory, zookeeper, bookies)
            for number in range(chosen.rounds):
                turns: list[Callable[[], None]] = [
                    lambda number=number: turn(bench, PLAIN, number),  # type: ignore[misc]
                    lambda number=number: turn(bench, SEALED, number),  # type: ignore[misc]
                ]
                for one in turns if number % 2 == 0 else reversed(turns):
                    one()
                print(f"after round {number + 1} of {chosen.rounds}:", flush=True)
                bench.show()


if __name__ == "__main__":
    main()
