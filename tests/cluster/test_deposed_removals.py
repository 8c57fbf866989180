"""A hold covers what it covers once it is placed, whatever an earlier controller has allowed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from penstock.app.cluster.lines import LinePatience, open_lines
from penstock.app.telemetry import Counters
from penstock.controller.controller import Controller, open_controller
from penstock.controller.keys import TABLE
from penstock.core.segments.placement import container_of
from penstock.model.errors import QuotaHeldError, RetentionHoldError, RetentionLockError, UnavailableError
from penstock.model.names import StreamName
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.model.retention import PolicyDocument, Retain
from penstock.net.workers.link import Handler, WorkerLink
from penstock.net.workers.tcp_link import Greeting, dial_container
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.limits import AppendLimit
from penstock.storage.machine.clock import RealClock
from tests.cluster.store_node_kit import SECRET, MemoryCluster, run, until_serving, write

QUICK = LinePatience(pause_s=0.01, pause_max_s=0.02, earlier_s=0.2)
OWN = container_of(TABLE, 2)
LOCKED = PolicyDocument(retain=Retain(min_age_s=86_400, lock_until="2999-01-01T00:00:00Z"))


async def elected(
    cluster: MemoryCluster, stack: AsyncExitStack, *, term: int, patience: LinePatience = QUICK
) -> Controller:
    """A controller that was elected for the term, once it reaches its own table."""

    async def dial(container: int, address: str, handlers: Mapping[str, Handler]) -> WorkerLink:
        greeting = Greeting("c1", container, term, f"controller-{term}")
        return await dial_container(address, greeting, secret=SECRET, rng=cluster.rng, handlers=handlers)

    session = cluster.coordinator.open()
    lines = await stack.enter_async_context(open_lines(session, dial, containers=2, patience=patience))
    await lines.until_served(OWN, patience_s=0.1, reach_s=20)
    found = await stack.enter_async_context(
        open_controller(
            lines.segments,
            RealClock(),
            cluster.rng,
            lambda _: Endpoint(host="h", port=1),
            Counters(),
            earlier_removals_passed=lines.earlier_removals_passed,
        )
    )
    lines.serve(found.client_removal, found.record_refusals)
    await lines.segments.lift_unknown_limits()
    # Its calls must not wait for stores when the test ends.
    stack.callback(cluster.coordinator.expire, session.session().id)
    return found


def stream_in(container: int) -> StreamName:
    """A stream whose first segment is in the container."""
    names = (StreamName("shop", f"s{count}") for count in range(99))
    return next(one for one in names if container_of(f"{one}/0.#epoch.0", 2) == container)


@pytest.mark.parametrize("promise", ["hold", "lock"])
def test_a_promise_about_a_stream_does_not_wait_for_containers_that_hold_nothing_of_it(
    tmp_path: Path, promise: str
) -> None:
    cluster, near, far = MemoryCluster(tmp_path, containers=2), stream_in(OWN), stream_in(1 - OWN)

    async def keep(controller: Controller, target: StreamName | str) -> None:
        if promise == "lock":
            await controller.policies.set(target, LOCKED)
        else:
            await controller.holds.add(target, owner="o", reason="r")

    async def main() -> None:
        async with cluster.store("a"), cluster.store("b"), AsyncExitStack() as stack:
            cluster.assign({OWN: "a", 1 - OWN: "b"})
            await until_serving(cluster, dict(sorted({OWN: "a", 1 - OWN: "b"}.items())))
            first = await elected(cluster, stack, term=1)
            await first.scopes.create("shop")
            for name in (near, far):
                await first.streams.create(name, StreamConfig(scaling=ScalingPolicy(min_segments=1)))
            cluster.assign({OWN: "a"})
            await until_serving(cluster, {OWN: "a"})
            second = await elected(cluster, stack, term=2)
            await keep(second, near)
            for target in (far, "shop"):
                with pytest.raises(UnavailableError, match=f"container {1 - OWN}"):
                    await keep(second, target)

    run(main())


@pytest.mark.parametrize("on", ["stream", "scope"])
@pytest.mark.parametrize("promise", ["hold", "lock"])
def test_a_promise_waits_for_removals_that_an_earlier_controller_has_allowed(
    tmp_path: Path, promise: str, on: str
) -> None:
    cluster, name = MemoryCluster(tmp_path, containers=2), stream_in(1 - OWN)
    segment = f"{name}/0.#epoch.0"
    target = name if on == "stream" else name.scope

    async def keep(controller: Controller) -> None:
        if promise == "lock":
            await controller.policies.set(target, LOCKED)
        else:
            await controller.holds.add(target, owner="o", reason="r", hold_id="h")

    async def main() -> None:
        async with cluster.store("a"), cluster.store("b") as b, AsyncExitStack() as stack:
            cluster.assign({OWN: "a", 1 - OWN: "b"})
            await until_serving(cluster, dict(sorted({OWN: "a", 1 - OWN: "b"}.items())))
            first = await elected(cluster, stack, term=1)
            await first.scopes.create(name.scope)
            await first.streams.create(name, StreamConfig(scaling=ScalingPolicy(min_segments=1)))
            await write(b.unit(1 - OWN), segment, range(3))
            async with b.host.links.guard(segment, 8):
                second = await elected(cluster, stack, term=2)
                with pytest.raises(UnavailableError, match="earlier controller"):
                    await keep(second)
                await b.unit(1 - OWN).truncate(segment, 8)
            while True:
                try:
                    await keep(second)
                    break
                except UnavailableError:
                    await asyncio.sleep(0.01)
            with pytest.raises((RetentionHoldError, RetentionLockError)):
                async with b.host.links.guard(segment, 16):
                    pass

    run(main())


def test_writers_that_a_controller_had_stopped_when_it_died_continue(tmp_path: Path) -> None:
    """As while it decided about an idle stream. The containers do not die with it."""
    cluster, name = MemoryCluster(tmp_path, containers=2), stream_in(1 - OWN)
    segment = f"{name}/0.#epoch.0"

    async def main() -> None:
        async with cluster.store("a") as a, AsyncExitStack() as stack:
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            async with AsyncExitStack() as life:
                first = await elected(cluster, life, term=1)
                await first.scopes.create(name.scope)
                await first.streams.create(name, StreamConfig(scaling=ScalingPolicy(min_segments=1)))
                while first._ctx.segments._lines[1 - OWN].link is None:
                    await asyncio.sleep(0.01)
                await first._ctx.segments.limit_appends(
                    [AppendLimit(stream=str(name), segments=[segment], total_bytes=0)]
                )
                with pytest.raises(QuotaHeldError):
                    await write(a.unit(1 - OWN), segment, range(3))
            await elected(cluster, stack, term=2)
            while True:
                try:
                    await write(a.unit(1 - OWN), segment, range(3))
                    break
                except QuotaHeldError:
                    await asyncio.sleep(0.01)

    run(main())
