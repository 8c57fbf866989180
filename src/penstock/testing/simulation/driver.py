"""Run one seed: actors and faults, then recovery from all faults, drain, a final read of everything, and the
checker."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

from penstock.model.values.dataclass import dataclass
from penstock.testing.simulation import erase_actors as on_erasures
from penstock.testing.simulation import head_actors as on_heads
from penstock.testing.simulation import rate_actors as on_rates
from penstock.testing.simulation import segment_actors as on_segments
from penstock.testing.simulation import stream_actors as on_stream
from penstock.testing.simulation.actors import SCOPE, STREAM, Env
from penstock.testing.simulation.checker import check
from penstock.testing.simulation.config import SimConfig, draw_config
from penstock.testing.simulation.faults import heal, make_faults
from penstock.testing.simulation.history import Anomaly, History
from penstock.testing.simulation.machine.cluster import Cluster, LogWatch
from penstock.testing.simulation.machine.loop import SimLoop, VirtualDeadlineError, make_loop
from penstock.testing.simulation.tier_check import check_chunks, check_leaks

DRAIN_S = 150.0
"""Virtual seconds within which everything must end after all faults have been removed."""


@dataclass(slots=True, kw_only=True)
class RunResult:
    """Result of one seed. ``trace`` is equal for equal runs."""

    seed: int
    anomalies: Sequence[Anomaly]
    trace: str
    virtual_s: float
    crashes: int
    recoveries: int
    acked: int
    reads: int
    steps: int
    counts: dict[str, int] = field(default_factory=dict)
    last: Sequence[str] = ()
    bounded: int = 0
    """Events that were read after a bound of times."""


@contextmanager
def recorded(loop: SimLoop, cluster: Cluster, history: History) -> Iterator[None]:
    """Record in the history what a run logs and the error that ends it. At the end, stop all processes of the
    cluster."""
    logger, watch = logging.getLogger("penstock"), LogWatch(history)
    propagate, collecting = logger.propagate, gc.isenabled()
    logger.addHandler(watch)
    logger.propagate = False
    # Collect garbage once, at the end: its time must not depend on the Python process.
    gc.disable()
    try:
        yield
    except VirtualDeadlineError as error:
        history.violation("stuck", str(error))
    except Exception as error:  # noqa: BLE001 - any error that ends a run is a finding, reported with its seed
        history.violation("run failed", f"{type(error).__name__}: {error}")
    finally:
        _bury_all(loop, cluster)
        if collecting:
            gc.enable()
        logger.removeHandler(watch)
        logger.propagate = propagate


def run_seed(seed: int, *, seconds: float = 60.0, config: SimConfig | None = None) -> RunResult:
    """Run one seed with ``seconds`` of virtual faults. Errors of the product are reported in the result, never
    raised."""
    loop = make_loop(seed)
    config = config or draw_config(seed)
    history = History(loop.time, loop.note)
    cluster = Cluster(loop, config, history)
    with recorded(loop, cluster, history):
        loop.run(_run(Env(loop, cluster, history, config), seconds), max_seconds=seconds + 4 * DRAIN_S)
    return RunResult(
        seed=seed,
        anomalies=check(history),
        trace=loop.trace,
        virtual_s=loop.time(),
        crashes=cluster.crashes,
        recoveries=cluster.recoveries,
        acked=history.acked,
        reads=sum(len(item.reads) for item in history.readings),
        steps=loop.steps,
        counts={" ".join((name, *labels)): count for name, labels, count in cluster.figures.snapshot().counts},
        last=list(history.last),
        bounded=len(history.bounds),
    )


def _bury_all(loop: SimLoop, cluster: Cluster) -> None:
    """End everything that a failed run has left before its loop is closed."""

    async def bury() -> None:
        cluster.crash(power=False)
        own = asyncio.current_task()
        for _ in range(100):
            left = [task for task in asyncio.all_tasks(loop) if task is not own]
            if not left:
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0.05)

    try:
        loop.run(bury())
    except Exception as error:  # noqa: BLE001 - the result of the run is already known; this is only clean-up
        cluster.history.note(f"clean-up failed: {error!r}")


async def _run(env: Env, seconds: float) -> None:
    loop, cluster, history = env.loop, env.cluster, env.history
    supervisor = loop.create_task(cluster.supervise(), name="supervisor")
    audit = env.audit = history.reading(str(STREAM), "auditor")

    async def left_behind(wanted: Sequence[bytes]) -> list[str]:
        return cluster.disk.holding(wanted)

    env.left_behind = left_behind
    try:
        async with env.stack:
            await on_stream.prepare_stream(env)
            tables = on_segments.table_names(env.rng("tables"))
            for name in ("shared", "merged"):
                env.raw[f"{SCOPE}/{name}"] = None
                await on_segments.create(env, cluster.local, f"{SCOPE}/{name}")
            auditor = loop.create_task(on_stream.audit_stream(env, audit), name="auditor")
            actors = [loop.create_task(work, name=name) for name, work in actors_of(env, tables)]
            faults = loop.create_task(make_faults(env, seconds), name="faults")
            await until(env, [faults], seconds + DRAIN_S)
            heal(env)
            await drain(env, actors, auditor)
            await until(env, [loop.create_task(check_leaks(env), name="leaks")], DRAIN_S)
            await _last_look(env, tables)
    finally:
        supervisor.cancel()
        await asyncio.wait({supervisor})
        await cluster.close()
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        raise error


def actors_of(env: Env, tables: Sequence[str]) -> list[tuple[str, Coroutine[Any, Any, None]]]:
    """Names and coroutines of all actors of this run."""
    config = env.config
    made: list[tuple[str, Coroutine[Any, Any, None]]] = []

    def add(name: str, actor: Callable[..., Coroutine[Any, Any, None]], *args: str) -> None:
        made.append((name, actor(env, name, *args)))

    for number in range(config.writers):
        add(f"writer{number}", on_stream.write_stream)
    for number in range(config.transactions):
        add(f"txn{number}", on_stream.write_transactions)
    add("batches", on_stream.write_batches)
    add("rereader", on_stream.reread_stream)
    add("scaler", on_stream.scale_stream)
    if config.rates is not None:
        add("segments-watch", on_rates.watch_segments)
    add("truncator", on_stream.truncate_stream)
    add("streams", on_stream.live_streams)
    for number in range(2):
        add(f"appender{number}", on_segments.append_conditionally, f"{SCOPE}/shared")
    add("tail", on_segments.read_segment, f"{SCOPE}/shared")
    add("merger", on_segments.merge_segments, f"{SCOPE}/merged")
    add("importer", on_segments.import_chunks, f"{SCOPE}/merged")
    add("eraser", on_erasures.erase_in_stream)
    add("runs", on_erasures.erase_in_two_runs)
    if env.inside:
        add("segment-eraser", on_erasures.erase_in_segments, *on_erasures.names_of_segments())
        add("heads", on_heads.free_heads)
        add("counted", on_heads.erase_behind_heads)
    add("merge-tail", on_segments.read_segment, f"{SCOPE}/merged")
    add("segments", on_segments.live_segments)
    add("leases", on_segments.lease_chunks)
    for table in tables:
        for number in range(2):
            add(f"counter{number}/{table}", on_segments.count_in_table, table)
    return made


async def until(env: Env, tasks: Sequence[asyncio.Task[None]], within_s: float) -> None:
    """Wait for tasks, and report those that failed or did not end."""
    if not tasks:
        return
    done, late = await asyncio.wait(tasks, timeout=within_s)
    for task in tasks:
        if task in late:
            env.history.violation("stuck", f"{task.get_name()} has not ended: {task.get_stack(limit=8)}")
            task.cancel()
        elif task in done and not task.cancelled() and (error := task.exception()) is not None:
            env.history.violation("actor failed", f"{task.get_name()}: {type(error).__name__}: {error}")
    if late:
        await asyncio.wait(late)


# --- the end ------------------------------------------------------------------------------------------------------


async def drain(env: Env, actors: Sequence[asyncio.Task[None]], auditor: asyncio.Task[None]) -> None:
    """Everything that has begun must end by itself, and the subscriber must see all of it."""
    env.stopping.set()
    await until(env, actors, DRAIN_S)
    await on_rates.check_rest(env)
    await on_stream.finish_stream(env)
    await until(env, [auditor], DRAIN_S)


async def _last_look(env: Env, tables: Sequence[str]) -> None:
    rng, cluster = env.rng("end"), env.cluster
    ending = rng.randrange(3)
    if ending == 0:
        await cluster.stop()
    else:
        cluster.crash(power=ending == 1)
    await until(env, [env.loop.create_task(_look_at_all(env, tables), name="last look")], DRAIN_S)


async def _look_at_all(env: Env, tables: Sequence[str]) -> None:
    await read_all(env, tables)
    await on_erasures.verify_all(env)
    await on_erasures.look_for_all(env)
    await check_chunks(env)


async def read_all(env: Env, tables: Sequence[str]) -> None:
    """Read everything once more through the public interfaces."""
    await on_stream.reread_to_end(env)
    for segment in env.raw:
        await on_segments.look(env, env.cluster.local, segment)
        await on_segments.read_whole(env, segment)
    for fact in list(env.history.facts):
        if fact.what == "created" and not fact.subject.startswith("stream "):
            await on_segments.look(env, env.cluster.local, fact.subject)
    for table in tables:
        await on_segments.look_at_counters(env, table)
