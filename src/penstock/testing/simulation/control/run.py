"""A minute of the control plane under crashes, late answers and clocks that jump; see ``control_actors``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import field
from typing import Any

from penstock.controller import keys
from penstock.model.values.dataclass import dataclass
from penstock.testing.simulation.actors import Env, cancel
from penstock.testing.simulation.control import actors as on_control
from penstock.testing.simulation.control.actors import Seen
from penstock.testing.simulation.control.audit import check_audit, decide
from penstock.testing.simulation.control.cuts import publish_cuts
from penstock.testing.simulation.control.deletions import check_freed, delete_and_restore
from penstock.testing.simulation.control.flips import flip_bits
from penstock.testing.simulation.control.groups import share_groups
from penstock.testing.simulation.control.processing import copy_events
from penstock.testing.simulation.control.world import ControlCluster, control_config
from penstock.testing.simulation.driver import DRAIN_S, recorded, until
from penstock.testing.simulation.history import Anomaly, History
from penstock.testing.simulation.machine.loop import make_loop

_HALF_HOUR_MS = 1_800_000
_CRASH_S = 8.0
_JUMP_S = 6.0
_FULL_S = 12.0
_FULL_FOR_S = 8.0
_LEASES_END_S = 60.0
"""After the last fault: the longest lease, what a crash adds to it, and some sweeps."""

Actor = Callable[[Env, Seen, str], Coroutine[Any, Any, None]]
ACTORS: tuple[tuple[str, Actor], ...] = (
    ("policies", on_control.replace_policies),
    ("remaker", on_control.remake_stream),
    ("beginner0", on_control.begin_in_stream),
    ("beginner1", on_control.begin_in_stream),
    ("beginner2", on_control.begin_in_stream),
    ("beginner3", on_control.begin_in_stream),
    ("beginner4", on_control.begin_in_stream),
    ("holder0", on_control.hold_transactions),
    ("holder1", on_control.hold_transactions),
    ("damage", on_control.damage_records),
    ("racer", on_control.race_in_table),
    ("subscriber", publish_cuts),
    ("decider", decide),
    ("groups", share_groups),
    ("copies", copy_events),
    ("flips", flip_bits),
    ("restorer", delete_and_restore),
)


@dataclass(slots=True, kw_only=True)
class ControlResult:
    """What one seed showed. ``done``: how often each thing was done and checked. ``trace`` is equal for equal runs."""

    seed: int
    anomalies: list[Anomaly]
    virtual_s: float
    crashes: int
    trace: str
    done: dict[str, int] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)


def run_control_seed(seed: int, *, seconds: float = 60.0) -> ControlResult:
    """Run one seed with ``seconds`` of faults. Never raises for what the product does."""
    loop = make_loop(seed)
    config = control_config(seed)
    history = History(loop.time, loop.note)
    cluster = ControlCluster(loop, config, history)
    seen = Seen()
    with recorded(loop, cluster, history):
        loop.run(_run(Env(loop, cluster, history, config), cluster, seen, seconds), max_seconds=seconds + 4 * DRAIN_S)
    return ControlResult(
        seed=seed,
        anomalies=list(history.violations),
        virtual_s=loop.time(),
        crashes=cluster.crashes,
        trace=loop.trace,
        done=seen.counts,
        last=list(history.last),
    )


async def _run(env: Env, cluster: ControlCluster, seen: Seen, seconds: float) -> None:
    supervisor = env.loop.create_task(cluster.supervise(), name="supervisor")
    try:
        async with env.stack:
            await on_control.prepare(env)
            cluster.picked = keys.transactions(on_control.AGAIN)
            actors = [env.loop.create_task(actor(env, seen, name), name=name) for name, actor in ACTORS]
            full = env.loop.create_task(_fill_disk(env, cluster), name="full disk")
            await _make_faults(env, cluster, seconds)
            await cancel([full])
            cluster.full_until_s = 0.0
            env.stopping.set()
            await until(env, actors, DRAIN_S)
            await asyncio.sleep(_LEASES_END_S)
            ends = {
                "leases": on_control.check_abandoned(env, seen),
                "audit": check_audit(env, seen, cluster),
                "deletions": check_freed(env),
            }
            await until(env, [env.loop.create_task(end, name=name) for name, end in ends.items()], DRAIN_S)
    finally:
        supervisor.cancel()
        await asyncio.wait({supervisor})
        await cluster.close()
    if not supervisor.cancelled() and (error := supervisor.exception()) is not None:
        raise error


async def _fill_disk(env: Env, cluster: ControlCluster) -> None:
    """Every table is full for some seconds, again and again."""
    rng = env.rng("disk")
    while True:
        await asyncio.sleep(rng.expovariate(1 / _FULL_S))
        full_s = 1.0 + _FULL_FOR_S * rng.random()
        cluster.full_until_s = env.loop.time() + full_s
        env.history.note(f"tables are full for {full_s:.3f} s")
        await asyncio.sleep(full_s)


async def _make_faults(env: Env, cluster: ControlCluster, seconds: float) -> None:
    """Crashes, and a wall clock that jumps by half an hour either way, until the time is over."""
    rng = env.rng("faults")
    ends_s = env.loop.time() + seconds
    calm = rng.random() < 0.3
    while not env.history.violations:
        await asyncio.sleep(rng.expovariate(1 / _CRASH_S + 1 / _JUMP_S))
        if env.loop.time() >= ends_s:
            break
        if rng.random() < _CRASH_S / (_CRASH_S + _JUMP_S):
            # Two readings of the clock never differ by more than an hour because of jumps.
            cluster.clock.jump_ms = rng.choice((-_HALF_HOUR_MS, 0, _HALF_HOUR_MS))
            env.history.note(f"clock jumps to {cluster.clock.jump_ms}")
        elif not calm:
            cluster.crash(power=rng.random() < 0.5)
    cluster.late = False
    env.history.note("healed")
