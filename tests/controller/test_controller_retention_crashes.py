"""A crash at every step of what is done about retention: policies, holds, subscribers, evictions, idle streams.

A decision is reported exactly once, whatever crashes.
"""

from __future__ import annotations

import pytest
from controller_crash_world import (
    Workflow,
    World,
    base,
    crash_everywhere,
    fail_everywhere,
    group,
    scale,
)
from controller_world import (
    STREAM,
    audit_entries,
    config,
    cut_at,
    seg,
)

from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.model.errors import (
    NotFoundError,
    RetentionHoldError,
    StreamNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.retention import Backlog, Idle, OnExceed, PolicyDocument, Retain, Unsubscribed

EVICTING = PolicyDocument(
    retain=Retain(min_bytes=0),
    backlog=Backlog(ttl_s=3600, max_bytes=20, on_exceed=OnExceed.EVICT, evict_to=0.5),
    idle=Idle(subscriber_s=7200),
)


async def set_policies(controller: Controller, world: World) -> None:
    await controller.policies.set(STREAM, EVICTING)
    await controller.policies.set("s", PolicyDocument(grace_s=1))
    await controller.policies.set(None, PolicyDocument(unsubscribed=Unsubscribed.KEEP))


async def policies_set(controller: Controller, world: World) -> None:
    policy = await controller.policies.effective(STREAM)
    assert (policy.backlog_bytes, policy.grace_ms, policy.unsubscribed) == (20, 1000, Unsubscribed.KEEP)
    assert await controller.run_retention_cycles() == 1


async def add_hold(controller: Controller, world: World) -> None:
    await controller.holds.add(STREAM, owner="o", reason="r", hold_id="h")


async def hold_added(controller: Controller, world: World) -> None:
    assert [item.id for item in await controller.holds.list()] == ["h"]
    with pytest.raises(RetentionHoldError):
        await controller.streams.truncate(STREAM, cut_at({seg(0, 0): 1, seg(0, 1): 1}))
    assert len(await audit_entries(controller, world.segments, "hold")) == 1


async def prepare_release(controller: Controller, world: World) -> None:
    await base(controller, world)
    await add_hold(controller, world)
    await controller.drain_audit()


async def release_hold(controller: Controller, world: World) -> None:
    await controller.holds.release("h", owner="p")


async def release_hold_again(controller: Controller, world: World) -> None:
    try:
        await release_hold(controller, world)
    except NotFoundError:
        return


async def hold_released(controller: Controller, world: World) -> None:
    await controller.sweep()
    assert await controller.holds.list() == ()
    left = [key for table in world.segments.tables.values() for key in table.entries if key.startswith(b"hold")]
    assert left == []
    assert [item["by"] for item in await audit_entries(controller, world.segments, "unhold")] == ["p"]
    await controller.holds.add(STREAM, owner="o", reason="another", hold_id="h")


async def prepare_subscriber(controller: Controller, world: World) -> None:
    await base(controller, world)
    await controller.groups.create(group({seg(0, 0): 2, seg(0, 1): 2}))
    await controller.drain_audit()


async def move_subscriber(controller: Controller, world: World) -> None:
    await controller.subscribers.move(STREAM, "s/g", cut_at({seg(0, 0): 5, seg(0, 1): 0}))


async def subscriber_moved(controller: Controller, world: World) -> None:
    (found,) = await controller.subscribers.describe(STREAM)
    assert (found.cut, found.lag_events) == (cut_at({seg(0, 0): 5, seg(0, 1): 0}), 25)
    moves = [entry["events"] for entry in await audit_entries(controller, world.segments, "move")]
    # A repeat of a move that was done moves nothing, and says so.
    assert moves in ([1], [1, 0])


async def remove_subscriber(controller: Controller, world: World) -> None:
    await controller.subscribers.remove(STREAM, "s/g")


async def remove_subscriber_again(controller: Controller, world: World) -> None:
    try:
        await remove_subscriber(controller, world)
    except SubscriberNotFoundError:
        return


async def subscriber_removed(controller: Controller, world: World) -> None:
    assert await controller.subscribers.list(STREAM) == ()
    assert len(await audit_entries(controller, world.segments, "drop")) == 1
    await controller.retention.run(STREAM)
    left = [key for table in world.segments.tables.values() for key in table.entries if key.startswith(b"subscriber/")]
    assert left == []


async def prepare_eviction(controller: Controller, world: World) -> None:
    await base(controller, world)
    await controller.policies.set(STREAM, EVICTING)
    await controller.groups.create(group({seg(0, 0): 0, seg(0, 1): 0}))
    await controller.drain_audit()
    world.clock.ms += 1000


async def evicted(controller: Controller, world: World) -> None:
    (lost,) = await controller.retention.list_evictions(STREAM)
    (found,) = await controller.subscribers.describe(STREAM)
    assert found.lag_events == 30 - lost.events == 10
    assert [entry["events"] for entry in await audit_entries(controller, world.segments, "evict")] == [20]
    assert [entry["events"] for entry in await audit_entries(controller, world.segments, "truncate")] == [20]
    assert (await controller.streams.describe(STREAM)).size_bytes == 10


async def prepare_expiry(controller: Controller, world: World) -> None:
    await base(controller, world)
    await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), backlog=Backlog(ttl_s=1)))
    await controller.groups.create(group({seg(0, 0): 0, seg(0, 1): 0}))
    await controller.retention.run(STREAM)
    await controller.drain_audit()
    world.clock.ms += 1000


async def expired(controller: Controller, world: World) -> None:
    assert [item.events for item in await controller.retention.list_evictions(STREAM)] == [30]
    assert [entry["events"] for entry in await audit_entries(controller, world.segments, "expire")] == [30]
    assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 10, seg(0, 1): 20}


async def prepare_drop(controller: Controller, world: World) -> None:
    await base(controller, world)
    await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(subscriber_s=1)))
    await controller.groups.create(group({seg(0, 0): 0, seg(0, 1): 0}))
    await controller.drain_audit()
    world.clock.ms += 1000


async def dropped(controller: Controller, world: World) -> None:
    await subscriber_removed(controller, world)
    assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 10, seg(0, 1): 20}


async def prepare_idle(controller: Controller, world: World) -> None:
    await base(controller, world)
    await controller.policies.set(STREAM, PolicyDocument(retain=Retain(min_bytes=0), idle=Idle(stream_s=1)))
    await scale(controller, world)
    await controller.drain_audit()
    world.clock.ms += 5000


async def retain_again(controller: Controller, world: World) -> None:
    try:
        await retain(controller, world)
    except StreamNotFoundError:
        return


async def idle_deleted(controller: Controller, world: World) -> None:
    await deleted_whole(controller, world)
    assert len(await audit_entries(controller, world.segments, "delete")) == 1


async def deleted_whole(controller: Controller, world: World) -> None:
    assert not await controller.streams.exists(STREAM)
    assert not [key for key in world.segments.segments if key.startswith("s/t/")]
    left = [key for table in world.segments.tables.values() for key in table.entries if b"/s/t" in key]
    assert left == [b"number/s/t"]
    await controller.streams.create(STREAM, config(1))


async def prepare_limit(controller: Controller, world: World) -> None:
    await base(controller, world)
    await controller.groups.create(group({seg(0, 0): 0, seg(0, 1): 0}))
    document = PolicyDocument(backlog=Backlog(max_bytes=40, on_exceed=OnExceed.REJECT))
    await controller.policies.set("s", document)


async def limited(controller: Controller, world: World) -> None:
    assert world.segments.limits["s/t"].total_bytes == 40
    assert b"quota/s/t" in world.segments.tables[keys.TABLE].entries


async def retain(controller: Controller, world: World) -> None:
    await controller.retention.run(STREAM)


WORKFLOWS = {
    "set policies": Workflow(base, set_policies, policies_set),
    "add hold": Workflow(base, add_hold, hold_added),
    "release hold": Workflow(prepare_release, release_hold, hold_released, release_hold_again),
    "move subscriber": Workflow(prepare_subscriber, move_subscriber, subscriber_moved),
    "remove subscriber": Workflow(prepare_subscriber, remove_subscriber, subscriber_removed, remove_subscriber_again),
    "evict": Workflow(prepare_eviction, retain, evicted),
    "expire": Workflow(prepare_expiry, retain, expired),
    "drop": Workflow(prepare_drop, retain, dropped),
    "delete idle": Workflow(prepare_idle, retain, idle_deleted, retain_again),
    "limit": Workflow(prepare_limit, retain, limited),
}


@pytest.mark.parametrize("effect_first", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_at_any_step_of_retention_is_finished_by_the_next_controller(name: str, effect_first: bool) -> None:
    crash_everywhere(WORKFLOWS[name], effect_first=effect_first)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_fails_for_a_while_of_retention_is_finished_by_the_sweeper_without_reopening(name: str) -> None:
    fail_everywhere(WORKFLOWS[name])
