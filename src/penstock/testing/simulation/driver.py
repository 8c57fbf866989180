"""One seed from beginning to end: actors and faults, then heal, drain, a last look at everything, and the checker."""

from __future__ import annotations

import asyncio
import gc
import heapq
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.codec.chunk_index import SUFFIX
from penstock.model.errors import InternalError
from penstock.testing.simulation import segment_actors as on_segments
from penstock.testing.simulation import stream_actors as on_stream
from penstock.testing.simulation.actors import SCOPE, STREAM, Env
from penstock.testing.simulation.cluster import PORT, Cluster, LogWatch
from penstock.testing.simulation.config import SimConfig, draw_config
from penstock.testing.simulation.files import UNLIMITED
from penstock.testing.simulation.history import Anomaly, History, check
from penstock.testing.simulation.loop import SimLoop, VirtualDeadlineError

DRAIN_S = 150.0
"""Virtual seconds within which everything must have ended once all faults are healed."""

_HOUR_MS = 3_600_000


@dataclass(slots=True, kw_only=True)
class RunResult:
    """What one seed showed. ``trace`` is equal for equal runs."""

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


def run_seed(seed: int, *, seconds: float = 60.0, config: SimConfig | None = None) -> RunResult:
    """Run one seed with ``seconds`` of faults, in a fraction of that time. Never raises for what the product does."""
    loop = SimLoop(seed)
    config = config or draw_config(seed)
    history = History(loop.time, loop.note)
    cluster = Cluster(loop, config, history)
    logger = logging.getLogger("penstock")
    watch = LogWatch(history)
    propagate = logger.propagate
    logger.addHandler(watch)
    logger.propagate = False
    # Collected at the end, at one known moment: when garbage dies must not depend on the process.
    collecting = gc.isenabled()
    gc.disable()
    try:
        loop.run(_run(Env(loop, cluster, history, config), seconds), max_seconds=seconds + 4 * DRAIN_S)
    except VirtualDeadlineError as error:
        history.violation("stuck", str(error))
    except Exception as error:  # noqa: BLE001 - whatever a run dies of is a finding, reported with its seed
        history.violation("run failed", f"{type(error).__name__}: {error}")
    finally:
        if collecting:
            gc.enable()
        logger.removeHandler(watch)
        logger.propagate = propagate
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
        counts=cluster.figures.counts,
        last=list(history.last),
    )


async def _run(env: Env, seconds: float) -> None:
    loop, cluster, history = env.loop, env.cluster, env.history
    supervisor = loop.create_task(cluster.supervise(), name="supervisor")
    audit = history.reading(str(STREAM), "auditor")
    try:
        async with env.stack:
            await on_stream.prepare_stream(env)
            tables = on_segments.table_names(env.rng("tables"))
            for name in ("shared", "merged"):
                env.raw[f"{SCOPE}/{name}"] = None
                await on_segments.create(env, cluster.local, f"{SCOPE}/{name}")
            auditor = loop.create_task(on_stream.audit_stream(env, audit), name="auditor")
            actors = [loop.create_task(work, name=name) for name, work in _actors(env, tables)]
            faults = loop.create_task(_make_faults(env, seconds), name="faults")
            await _until(env, [faults], seconds + DRAIN_S)
            _heal(env)
            await _drain(env, actors, auditor)
            await _last_look(env, tables)
    finally:
        supervisor.cancel()
        await asyncio.wait({supervisor})
        await cluster.close()
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        raise error


def _actors(env: Env, tables: Sequence[str]) -> list[tuple[str, Coroutine[Any, Any, None]]]:
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
    add("truncator", on_stream.truncate_stream)
    add("streams", on_stream.live_streams)
    for number in range(2):
        add(f"appender{number}", on_segments.append_conditionally, f"{SCOPE}/shared")
    add("tail", on_segments.read_segment, f"{SCOPE}/shared")
    add("merger", on_segments.merge_segments, f"{SCOPE}/merged")
    add("merge-tail", on_segments.read_segment, f"{SCOPE}/merged")
    add("segments", on_segments.live_segments)
    add("leases", on_segments.lease_chunks)
    for table in tables:
        for number in range(2):
            add(f"counter{number}/{table}", on_segments.count_in_table, table)
    return made


async def _until(env: Env, tasks: Sequence[asyncio.Task[None]], within_s: float) -> None:
    """Wait for tasks, and tell of those that failed or did not end."""
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


# --- faults -------------------------------------------------------------------------------------------------------


async def _make_faults(env: Env, seconds: float) -> None:
    """Each kind at its own rate, until the fault phase ends."""
    rng, rates = env.rng("faults"), env.config.faults
    ends = env.loop.time() + seconds
    kinds: list[tuple[float | None, Callable[[Env], Coroutine[Any, Any, None]]]] = [
        (rates.process_crash_s, _process_crash),
        (rates.power_loss_s, _power_loss),
        (rates.clean_stop_s, _clean_stop),
        (rates.clock_jump_s, _clock_jump),
        (rates.full_disk_s, _full_disk),
        (rates.tier_errors_s, _tier_errors),
        (rates.sync_error_s, _sync_error),
        (rates.network_s, _network),
    ]
    due = [
        (env.loop.time() + rng.expovariate(1 / mean_s), place)
        for place, (mean_s, _) in enumerate(kinds)
        if mean_s is not None
    ]
    heapq.heapify(due)
    while due and due[0][0] < ends:
        at_s, place = heapq.heappop(due)
        await asyncio.sleep(max(0.0, at_s - env.loop.time()))
        mean_s, make = kinds[place]
        if mean_s is None:
            raise InternalError("fault has no rate", kind=make.__name__)
        await make(env)
        heapq.heappush(due, (env.loop.time() + rng.expovariate(1 / mean_s), place))
    await asyncio.sleep(max(0.0, ends - env.loop.time()))


async def _process_crash(env: Env) -> None:
    _maybe_again(env)
    env.cluster.crash(power=False)


async def _power_loss(env: Env) -> None:
    _maybe_again(env)
    env.cluster.crash(power=True)


def _maybe_again(env: Env) -> None:
    """Now and then the next start does not get far either."""
    rng, cluster = env.cluster.disk.rng, env.cluster
    if rng.random() < 0.4:
        cluster.crash_in_recovery_s = rng.expovariate(1 / (20 * cluster.disk.latency_s))
        cluster.recovery_power = rng.random() < 0.7


async def _clean_stop(env: Env) -> None:
    await env.cluster.stop()


async def _clock_jump(env: Env) -> None:
    clock = env.cluster.clock
    clock.jump_ms = env.cluster.disk.rng.choice((-_HOUR_MS, 0, _HOUR_MS))
    env.history.note(f"clock jumps to {clock.jump_ms}")


async def _full_disk(env: Env) -> None:
    disk = env.cluster.disk
    disk.capacity_bytes = disk.used_bytes() + disk.rng.randrange(16 << 10)
    env.history.note("disk is full")
    await asyncio.sleep(0.5 + 4 * disk.rng.random())
    disk.capacity_bytes = UNLIMITED
    env.history.note("disk has room")


async def _tier_errors(env: Env) -> None:
    disk = env.cluster.disk
    disk.writes_fail = "chunks/"
    env.history.note("tier 2 fails")
    await asyncio.sleep(0.5 + 4 * disk.rng.random())
    disk.writes_fail = None
    env.history.note("tier 2 works")


async def _sync_error(env: Env) -> None:
    disk = env.cluster.disk
    disk.sync_fails_once = disk.rng.choice(("wal/", "chunks/"))
    env.cluster.sync_faults += 1
    env.history.note(f"next sync of {disk.sync_fails_once} fails")


async def _network(env: Env) -> None:
    network, rng = env.loop.network, env.cluster.disk.rng
    if rng.random() < 0.5:
        network.break_all(PORT)
        env.history.note("connections are reset")
        return
    network.partitioned["store"] = None
    env.history.note("network is cut")
    await asyncio.sleep(0.2 + 5 * rng.random())
    network.partitioned.clear()
    env.history.note("network is healed")


def _heal(env: Env) -> None:
    disk = env.cluster.disk
    disk.capacity_bytes = UNLIMITED
    disk.writes_fail = disk.sync_fails_once = None
    env.cluster.crash_in_recovery_s = None
    env.loop.network.partitioned.clear()
    env.history.note("healed")


# --- the end ------------------------------------------------------------------------------------------------------


async def _drain(env: Env, actors: Sequence[asyncio.Task[None]], auditor: asyncio.Task[None]) -> None:
    """Everything that has begun must end by itself, and the subscriber must see it all."""
    env.stopping.set()
    await _until(env, actors, DRAIN_S)
    await on_stream.finish_stream(env)
    await _until(env, [auditor], DRAIN_S)


async def _last_look(env: Env, tables: Sequence[str]) -> None:
    rng, cluster = env.rng("end"), env.cluster
    ending = rng.randrange(3)
    if ending == 0:
        await cluster.stop()
    else:
        cluster.crash(power=ending == 1)
    await _until(env, [env.loop.create_task(_read_all(env, tables), name="last look")], DRAIN_S)


async def _read_all(env: Env, tables: Sequence[str]) -> None:
    await on_stream.reread_to_end(env)
    for segment in env.raw:
        await on_segments.look(env, env.cluster.local, segment)
        await on_segments.read_whole(env, segment)
    for fact in list(env.history.facts):
        if fact.what == "created" and not fact.subject.startswith("stream "):
            await on_segments.look(env, env.cluster.local, fact.subject)
    for table in tables:
        await on_segments.look_at_counters(env, table)
    await _check_chunks(env)


async def _check_chunks(env: Env) -> None:
    """Every file of tier 2 belongs to a chunk that a segment names."""
    node = env.cluster.serving()
    for _ in range(3):
        await node.call(node.store.flush)
    listed = await node.call(node.chunks.list)
    named = await _named_chunks(env)
    left = [name for name in listed if name.removesuffix(SUFFIX) not in named]
    if left:
        env.history.violation("leaked chunk", f"{left[:5]} of {len(listed)} files")


async def _named_chunks(env: Env) -> set[str]:
    node = env.cluster.serving()
    found: set[str] = set()
    for container in node.store.containers:
        found |= await node.call(container.reclaimer._named_chunks)
    return found
