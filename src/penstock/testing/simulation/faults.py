"""Faults of a run: crashes at critical moments, power losses, clock jumps, failing disks and networks."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from penstock.model.errors import InternalError
from penstock.testing.simulation.actors import Env
from penstock.testing.simulation.history import MOMENTS
from penstock.testing.simulation.machine.cluster import PORT
from penstock.testing.simulation.machine.files import UNLIMITED

_HOUR_MS = 3_600_000


async def make_faults(env: Env, seconds: float) -> None:
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
    _crash(env, power=False)


async def _power_loss(env: Env) -> None:
    _crash(env, power=True)


def _crash(env: Env, *, power: bool) -> None:
    """Crash now, or with an unsynced write, or at or shortly after an acknowledgement."""
    _maybe_again(env)
    rng = env.cluster.disk.rng
    aim = rng.randrange(5)
    if aim == 0:
        env.cluster.crash(power=power)
    elif aim == 1:
        _crash_with_write(env, power=power, prefix=rng.choice(("wal/", "chunks/")), left=rng.randrange(10))
    else:
        _crash_at_moment(env, power=power)


def _crash_with_write(env: Env, *, power: bool, prefix: str, left: int) -> None:
    def written(path: str) -> None:
        nonlocal left
        if path.startswith(prefix):
            left -= 1
            if left < 0:
                env.cluster.disk.on_write = None
                env.cluster.crash(power=power)

    env.cluster.disk.on_write = written


def _crash_at_moment(env: Env, *, power: bool) -> None:
    rng, cluster = env.cluster.disk.rng, env.cluster
    wanted = rng.choice((*MOMENTS, "decision", "decision", "decision", "decision", "resolved", "resolved"))
    left = rng.randrange(2)
    # A decision starts a few log writes and dozens of I/Os. A crash is worth testing at each of them. An answered query
    # starts nothing: what it returned must be durable at this moment.
    later = 0 if wanted == "resolved" else rng.randrange(4)
    delay_s = rng.choice((4.0, 16.0, 40.0)) * cluster.disk.latency_s * 2 * rng.random()
    writes = rng.randrange(5)

    def happened(kind: str) -> None:
        nonlocal left
        if kind != wanted:
            return
        left -= 1
        if left >= 0:
            return
        env.history.on_moment = None
        if later == 0:
            cluster.crash(power=power)
        elif later == 1:
            env.loop.call_later(delay_s, partial(cluster.crash, power=power))
        else:
            _crash_with_write(env, power=power, prefix="wal/", left=writes)

    env.history.on_moment = happened


def _maybe_again(env: Env) -> None:
    """Sometimes also crash during the next start."""
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
    env.history.note(f"next sync of {disk.sync_fails_once} fails")
    if disk.rng.random() < 0.5:
        # The worst case: the process still sees the bytes that the sync lost, and a power loss removes them.
        await asyncio.sleep(2 * disk.rng.random())
        env.cluster.crash(power=True)


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


def heal(env: Env) -> None:
    disk = env.cluster.disk
    disk.capacity_bytes = UNLIMITED
    disk.writes_fail = disk.sync_fails_once = None
    env.cluster.crash_in_recovery_s = None
    env.history.on_moment = disk.on_write = None
    env.loop.network.partitioned.clear()
    env.history.note("healed")
