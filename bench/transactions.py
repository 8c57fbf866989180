"""W7 alone, with what a transaction costs each side: ``python -m bench.transactions``.

Begin, ten events of 100 bytes, commit, readable: one after the other and from sixteen threads by the blocking client, and 64
at a time by the asynchronous one. CPU is all of the server's process (``/proc``), and all of this one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from bench.limits import sync_us
from bench.measure import percentile
from penstock.testing.server import ServerProcess

EVENTS = 10
THREADS = 16
TOGETHER = 64
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one run: transactions a second, and CPU of each side for one of them, milliseconds."""

    rate: float
    server_ms: float
    client_ms: float


def cpu_s(pid: int) -> float:
    """CPU time that the process has used, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def measured(pid: int, count: int, work: Callable[[], object]) -> Cost:
    """Run ``work``, which makes ``count`` transactions."""
    server, client, started = cpu_s(pid), time.process_time(), time.perf_counter()
    work()
    took = time.perf_counter() - started
    return Cost(
        rate=count / took,
        server_ms=(cpu_s(pid) - server) / count * 1e3,
        client_ms=(time.process_time() - client) / count * 1e3,
    )


def run(address: str, pid: int, count: int, rounds: int, segments: int) -> dict[str, list[Cost]]:
    """``count`` transactions of each kind in each round; those one after the other a quarter of that."""
    event = os.urandom(100)
    found: dict[str, list[Cost]] = {"one by one": [], f"{THREADS} threads": [], f"{TOGETHER} at a time, async": []}
    with penstock.connect(address) as store, ThreadPoolExecutor(THREADS) as threads:
        stream = store.create_stream("bench/txn", segments=segments, create_scope=True)

        def one(_: int) -> None:
            with stream.transaction() as transaction:
                for number in range(EVENTS):
                    transaction.write(event, f"k{number}")

        def alone() -> None:
            for number in range(count // 4):
                one(number)

        for number in range(20):
            one(number)
        for _ in range(rounds):
            found["one by one"].append(measured(pid, count // 4, alone))
            found[f"{THREADS} threads"].append(measured(pid, count, lambda: list(threads.map(one, range(count)))))
            found[f"{TOGETHER} at a time, async"].append(
                measured(pid, count, lambda: asyncio.run(_together(address, event, count)))
            )
    return found


async def _together(address: str, event: bytes, count: int) -> None:
    events, keys = [event] * EVENTS, [f"k{number}" for number in range(EVENTS)]
    async with penstock.connect_async(address) as store:
        stream: Any = store.stream("bench/txn")
        left = iter(range(count))

        async def worker() -> None:
            for _ in left:
                async with stream.transaction() as transaction:
                    await transaction.write_many(events, keys)

        await asyncio.gather(*(worker() for _ in range(TOGETHER)))


def show(found: dict[str, list[Cost]], sync_p50_us: float) -> str:
    def spread(values: Sequence[float]) -> str:
        return f"{percentile(values, 0.5):.3g} ({min(values):.3g}-{max(values):.3g})"

    lines = [f"fdatasync of 4 KiB, p50: {sync_p50_us:.0f} us"]
    for name, costs in found.items():
        rates = spread([item.rate for item in costs])
        server = spread([item.server_ms for item in costs])
        client = spread([item.client_ms for item in costs])
        lines.append(f"{name:22} {rates:>20} txn/s   server {server} ms   client {client} ms")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="transactions of a run (default: 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind (default: 3)")
    parser.add_argument("--segments", type=int, default=1, help="segments of the stream (default: 1)")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="penstock-txn-"))
    try:
        sync_p50_us = percentile(sync_us(directory), 0.5)
        with ServerProcess(directory / "store") as server:
            if server.process is None:
                raise SystemExit("the server is not running")
            found = run(server.address, server.process.pid, given.count, given.rounds, given.segments)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    if given.json:
        values = {
            name: [{"rate": c.rate, "server_ms": c.server_ms, "client_ms": c.client_ms} for c in costs]
            for name, costs in found.items()
        }
        json.dump({"sync_p50_us": sync_p50_us, "costs": values}, sys.stdout)
        print()
    else:
        print(show(found, sync_p50_us))


if __name__ == "__main__":
    main()
