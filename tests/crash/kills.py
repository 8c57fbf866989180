"""``python -m tests.crash.kills``: ``kill -9`` a real server again and again under all that clients do.

The actors of the simulation and its checker, on real processes: writers, readers, transactions, batches, scaling, merges,
tables, truncation, leases, over gRPC and the wire. Some servers are stopped (SIGSTOP) for a while first. Before that come
the histories of ``forced``, which meet in every run what those meet by luck. At the end all
actors must end by themselves, everything is read once more, and the history is checked for what was lost, doubled,
reordered, torn, invented, skipped, or read although it was aborted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from penstock.app.telemetry import Counters
from penstock.model.errors import UnavailableError
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.dial.segments import RemoteSegments
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.files import RealFiles
from penstock.testing.fakes import InlineOffload, SeededRng
from penstock.testing.server import free_ports
from penstock.testing.simulation import erase_actors as on_erasures
from penstock.testing.simulation import segment_actors as on_segments
from penstock.testing.simulation import stream_actors as on_stream
from penstock.testing.simulation.actors import SCOPE, STREAM, Env
from penstock.testing.simulation.checker import check
from penstock.testing.simulation.config import RateSettings, draw_config
from penstock.testing.simulation.driver import actors_of, drain, read_all, until
from penstock.testing.simulation.history import History
from tests.crash.forced import force_all
from tests.crash.nursery import Nursery
from tests.crash.observe import holding
from tests.crash.states import scratch

T = TypeVar("T")

_RESTLESS = 0.6
_PAUSED = 0.25
_LIFE_S = 60.0
"""Seconds that a life waits for acknowledgements at most. On a busy machine, clients reconnect slowly."""
RATES = RateSettings(minute_ms=20, target_rate=4, factor=3, watermark_ms=1000)
"""Minutes so short that a life of a server has time to find a segment cold. The period of watermarks is the server's."""


@dataclass(slots=True, kw_only=True)
class Result:
    """``anomalies``: a line for each promise broken."""

    cycles: int = 0
    forced: int = 0
    """Kills within forced histories, not counted among the cycles."""
    pauses: int = 0
    acked: int = 0
    """Acknowledged operations: events, and also changes of tables and segments, which no reader delivers."""
    reads: int = 0
    """Events that readers got. How many the readers that start again get depends on the speed of the machine."""
    whole: frozenset[str] = frozenset()
    """Streams and segments that a reader has read completely."""
    due: int = 0
    """Acknowledged events of ``whole``. The checker has looked for each of them in a complete reading."""
    bounded: int = 0
    """Events that were read after a bound of times."""
    noted: int = 0
    """Writers that noted times."""
    epochs: int = 0
    """How often the segments of the stream changed."""
    slowest_start_s: float = 0.0
    took_s: float = 0.0
    anomalies: list[str] = field(default_factory=list)
    last: Sequence[str] = ()


class _Loop:
    """What actors ask of their loop, on the real one."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        return self._loop.time()

    def fork(self, label: str) -> random.Random:
        return random.Random(f"{self._seed}/{label}")

    def create_task(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        return self._loop.create_task(work, name=name)


class _Cluster:
    """What actors ask of the simulated cluster, by connections to real processes."""

    def __init__(self, loop: _Loop, controller: RemoteController, data: Path) -> None:
        self._loop = loop
        self.controller = controller
        self.clock = RealClock()
        self.chunks = FileChunks(RealFiles(data, InlineOffload()), handles=1)
        self.local = self.remote("local")

    def remote(self, label: str) -> RemoteSegments:
        return RemoteSegments(
            self.controller,
            native=self.controller.segments,
            rng=SeededRng(self._loop.fork(f"client/{label}")),
            telemetry=Counters(),
        )


async def run(
    data: Path, *, cycles: int, seed: int, planted: str | None = None, rates: RateSettings | None = None
) -> Result:
    """Forced histories, so many more lives of a server on ``data``, and a last one in which everything must come to its end.
    Raises UnavailableError where not even the first one starts. ``planted``: see ``Nursery``. ``rates``: the stream
    scales by rate, and its writers note times."""
    result = Result()
    began = time.monotonic()
    loop = _Loop(seed)
    history = History(loop.time, lambda text: None)
    config = replace(
        draw_config(seed),
        wire=True,
        writers=2,
        transactions=2,
        segments=2,
        think_s=0.12,
        latency_s=0.002,
        event_bytes=200,
        rates=rates,
    )
    minute_ms = 60_000 if rates is None else rates.minute_ms
    controller_port, store_port = free_ports(2)
    async with AsyncExitStack() as stack:
        nursery = stack.enter_context(Nursery(data, controller_port, store_port, planted=planted, minute_ms=minute_ms))
        # Not counted among the restarts: it waits for the imports.
        await asyncio.to_thread(nursery.start, restless=True)
        controller = await stack.enter_async_context(dial_controller(f"127.0.0.1:{controller_port}", patience_s=60))
        cluster = _Cluster(loop, controller, data)
        stack.push_async_callback(cluster.local.close)
        env = Env(cast("Any", loop), cast("Any", cluster), history, config)
        await stack.enter_async_context(env.stack)
        env.inside = False
        env.left_behind = lambda wanted: asyncio.to_thread(holding, data, wanted)
        await _work(env, nursery, cycles, result)
    history_anomalies = check(history)
    result.anomalies += [str(item) for item in history_anomalies]
    result.acked, result.reads = history.acked, sum(len(item.reads) for item in history.readings)
    result.whole = frozenset(item.stream for item in history.readings if item.complete)
    result.due = sum(item.must_be_read and item.stream in result.whole for item in history.writes)
    result.bounded, result.noted = len(history.bounds), len(history.timed)
    result.took_s, result.last = time.monotonic() - began, list(history.last)
    return result


async def _work(env: Env, nursery: Nursery, cycles: int, result: Result) -> None:
    loop, history = env.loop, env.history
    try:
        await force_all(env, nursery, partial(_again, nursery, result))
    except UnavailableError as error:
        result.anomalies.append(f"a server died, or did not start again: {error}")
        return
    await on_stream.prepare_stream(env)
    tables = on_segments.table_names(env.rng("tables"))
    for name in ("shared", "merged"):
        env.raw[f"{SCOPE}/{name}"] = None
        await on_segments.create(env, env.cluster.local, f"{SCOPE}/{name}")
    audit = env.audit = history.reading(str(STREAM), "auditor")
    auditor = loop.create_task(on_stream.audit_stream(env, audit), name="auditor")
    actors = [loop.create_task(work, name=name) for name, work in actors_of(env, tables)]
    rng = env.rng("kills")
    try:
        for _ in range(cycles):
            await _one_cycle(nursery, history, rng, result)
        history.note("no more kills")
        result.epochs = (await env.insist(lambda: env.controller.streams.describe(STREAM))).epoch
        await drain(env, actors, auditor)
        await asyncio.to_thread(nursery.kill)
        await _start(nursery, result, restless=True)
        await until(env, [loop.create_task(read_all(env, tables), name="last look")], 120.0)
        await until(env, [loop.create_task(on_erasures.verify_all(env), name="receipts")], 120.0)
        await until(env, [loop.create_task(on_erasures.look_for_all(env), name="erased bytes")], 120.0)
    except UnavailableError as error:
        result.anomalies.append(f"a server died, or did not start again: {error}")
    finally:
        left = [task for task in (*actors, auditor) if not task.done()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _one_cycle(nursery: Nursery, history: History, rng: random.Random, result: Result) -> None:
    # A life in which nothing was promised shows nothing: clients need a moment to come back.
    promised, goal = asyncio.Event(), history.acked + rng.randrange(3, 30)
    history.on_moment = lambda kind: promised.set() if history.acked >= goal else None
    with suppress(TimeoutError):
        await asyncio.wait_for(promised.wait(), _LIFE_S)
    await asyncio.sleep(rng.uniform(0.0, 0.05))
    if rng.random() < _PAUSED:
        # A server that stands still is not dead: what it answers afterwards must still be true.
        nursery.signal(signal.SIGSTOP)
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        nursery.signal(signal.SIGCONT)
        result.pauses += 1
        if rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0.0, 0.2))
    await asyncio.to_thread(nursery.kill)
    result.cycles += 1
    await _start(nursery, result, restless=rng.random() < _RESTLESS)


async def _again(nursery: Nursery, result: Result, *, restless: bool = False, holdable: bool = False) -> None:
    await asyncio.to_thread(nursery.kill)
    result.forced += 1
    await _start(nursery, result, restless=restless, holdable=holdable)


async def _start(nursery: Nursery, result: Result, *, restless: bool, holdable: bool = False) -> None:
    began = time.monotonic()
    await asyncio.to_thread(nursery.start, restless=restless, holdable=holdable)
    result.slowest_start_s = max(result.slowest_start_s, time.monotonic() - began)


def main(argv: list[str] | None = None) -> int:
    """1 where any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.kills", description=__doc__)
    parser.add_argument("--cycles", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rates", action="store_true", help="scale the stream by rate, and let writers note times")
    parser.add_argument("--disk", action="store_true", help="on the disk of TMPDIR, not in memory")
    chosen = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(dir=None if chosen.disk else scratch(), prefix="penstock-kills-") as name:
        rates = RATES if chosen.rates else None
        result = asyncio.run(run(Path(name) / "data", cycles=chosen.cycles, seed=chosen.seed, rates=rates))
    for line in result.anomalies[:20]:
        sys.stdout.write(f"{line}\n"[:800])
    if result.anomalies:
        sys.stdout.write("\n".join(line[:200] for line in result.last[-60:]) + "\n")
    sys.stdout.write(
        f"{result.cycles} kills and {result.forced} forced ones, {result.pauses} pauses, "
        f"{result.acked} acknowledgements and {result.reads} reads checked, {result.due} events looked for, {result.epochs} changes of segments, "
        f"{result.bounded} reads after a bound of times, "
        f"slowest start {result.slowest_start_s:.2f} s, {len(result.anomalies)} anomalies, {result.took_s:.0f} s\n"
    )
    return 1 if result.anomalies else 0


if __name__ == "__main__":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    sys.exit(main())
