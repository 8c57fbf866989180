"""A crash at every step of every workflow, before and after the step's effect, and again while the next controller opens.

Whatever the step, a controller that opens later finds either nothing begun or finishes it, and repeating the call ends in
the same state.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from controller_crash_world import (
    ID,
    Workflow,
    World,
    base,
    crash_everywhere,
    crash_once,
    fail_everywhere,
    group,
    reopen_with_crash,
    scale,
)
from controller_world import (
    STREAM,
    config,
    cut_at,
    name_of,
    scale_to,
    seg,
    stream_bytes,
    write_transaction,
)

from penstock.controller.controller import Controller
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    AlreadyExistsError,
    ReaderGroupNotFoundError,
    ScaleConflictError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName, transaction_segment_name
from penstock.model.policies import ReaderGroupRetention, RetentionPolicy, RetentionType
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.transactions import EventBlock, TransactionStatus

SECOND = StreamName("s", "u")


# --- the workflows -----------------------------------------------------------------------------------------------


async def create(controller: Controller, world: World) -> None:
    await controller.streams.create(SECOND, config(3, RetentionPolicy(type=RetentionType.SIZE)))


async def create_again(controller: Controller, world: World) -> None:
    try:
        await create(controller, world)
    except AlreadyExistsError:
        return


async def created(controller: Controller, world: World) -> None:
    assert len(await controller.layout.current(SECOND)) == 3
    assert await controller.streams.exists(StreamName("s", "_MARKu"))
    assert await controller.run_retention_cycles() == 1


async def prepare_deletion(controller: Controller, world: World) -> None:
    await base(controller, world, retention=RetentionPolicy(type=RetentionType.TIME, minimum=1))
    await controller.groups.create(group())
    await write_transaction(controller, world.segments, b"t")
    txn = await write_transaction(controller, world.segments, b"u")
    await controller.batches.commit(STREAM, writer="w", batch=1, transactions=[txn])
    await controller.retention.run(STREAM)
    await controller.streams.seal(STREAM)


async def delete(controller: Controller, world: World) -> None:
    await controller.streams.delete(STREAM)


async def delete_again(controller: Controller, world: World) -> None:
    try:
        await delete(controller, world)
    except StreamNotFoundError:
        return


async def delete_in_use(controller: Controller, world: World) -> None:
    try:
        await controller.streams.delete(STREAM, seal=True)
    except StreamNotFoundError:
        assert not await controller.streams.exists(STREAM)


async def deleted(controller: Controller, world: World) -> None:
    assert not await controller.streams.exists(STREAM)
    assert not [key for key in world.segments.segments if key.startswith("s/t/")]
    left = [key for table in world.segments.tables.values() for key in table.entries if b"/s/t/" in key]
    assert left == []
    await controller.streams.create(STREAM, config(1))
    assert [item.segment for item in await controller.layout.current(STREAM)] == [seg(0, 2)]


async def scale_again(controller: Controller, world: World) -> None:
    try:
        await scale(controller, world)
    except ScaleConflictError:
        return


async def scaled(controller: Controller, world: World) -> None:
    assert [item.segment for item in await controller.layout.current(STREAM)] == [seg(1, 2), seg(1, 3)]
    description = await controller.streams.describe(STREAM)
    assert (description.epoch, description.written_bytes) == (1, 30)
    await scale_to(controller, 3)
    assert [item.segment for item in await controller.layout.current(STREAM)] == [seg(2, 4), seg(2, 5), seg(2, 6)]


async def update(controller: Controller, world: World) -> None:
    await controller.streams.update(STREAM, config(3, RetentionPolicy(type=RetentionType.SIZE, minimum=1), ("tag",)))


async def updated(controller: Controller, world: World) -> None:
    assert (await controller.streams.config(STREAM)).tags == ("tag",)
    assert len(await controller.layout.current(STREAM)) == 3
    assert await controller.run_retention_cycles() == 1


async def prepare_truncation(controller: Controller, world: World) -> None:
    await base(controller, world)
    await scale(controller, world)
    world.segments.write(name_of(seg(1, 2)), b"c" * 5)


async def truncate(controller: Controller, world: World) -> None:
    await controller.streams.truncate(STREAM, cut_at({seg(1, 2): 2, seg(0, 1): 7}))


async def truncated(controller: Controller, world: World) -> None:
    assert (await controller.cuts.head(STREAM)).positions == {seg(1, 2): 2, seg(0, 1): 7}
    assert name_of(seg(0, 0)) not in world.segments.segments
    description = await controller.streams.describe(STREAM)
    assert (description.size_bytes, description.freed_bytes) == (3 + 13, 10 + 2 + 7)


async def prepare_sealing(controller: Controller, world: World) -> None:
    await base(controller, world)
    world.facts["open"] = await write_transaction(controller, world.segments, b"open")
    world.facts["old"] = await write_transaction(controller, world.segments, b"old")
    await scale(controller, world)


async def seal(controller: Controller, world: World) -> None:
    # The commit takes a rolling one, which sealing has to finish first.
    await controller.transactions.commit(STREAM, world.facts["old"])
    await controller.streams.seal(STREAM)


async def sealed(controller: Controller, world: World) -> None:
    assert await controller.layout.current(STREAM) == ()
    assert await controller.transactions.status(STREAM, world.facts["open"]) is TransactionStatus.ABORTED
    assert await controller.transactions.status(STREAM, world.facts["old"]) is TransactionStatus.COMMITTED
    data = await stream_bytes(controller, world.segments)
    assert sorted(data.values()) == sorted([b"a" * 10, b"b" * 20, b"", b"", b"old", b"old", b"", b""])
    assert set((await controller.cuts.tail(STREAM)).positions.values()) == {0}


async def prepare_commit(controller: Controller, world: World) -> None:
    await base(controller, world)
    for name in ("one", "two", "gone"):
        world.facts[name] = await write_transaction(controller, world.segments, b"<" + name.encode() + b">")


async def commit(controller: Controller, world: World) -> None:
    await controller.transactions.commit(STREAM, world.facts["two"])
    await controller.transactions.abort(STREAM, world.facts["gone"])
    await controller.transactions.commit(STREAM, world.facts["one"])
    await controller.sweep()


async def committed(controller: Controller, world: World) -> None:
    await controller.sweep()
    data = await stream_bytes(controller, world.segments)
    assert [data[seg(0, 0)], data[seg(0, 1)]] == [b"a" * 10 + b"<two><one>", b"b" * 20 + b"<two><one>"]
    await outcomes(controller, world)


async def outcomes(controller: Controller, world: World) -> None:
    expected = {
        world.facts["one"]: TransactionStatus.COMMITTED,
        world.facts["two"]: TransactionStatus.COMMITTED,
        world.facts["gone"]: TransactionStatus.ABORTED,
    }
    for txn, status in expected.items():
        assert await controller.transactions.status(STREAM, txn) is status
    assert dict(await controller.transactions.list_completed(STREAM)) == expected
    assert len(await controller.transactions.list_completed(STREAM)) == 3


def blocks_of(text: bytes, writer: int) -> list[EventBlock]:
    """The same event for each segment of the first epoch."""
    return [
        EventBlock(segment=seg(0, number), writer=UUID(int=writer + number), event_count=1, data=text)
        for number in range(2)
    ]


async def prepare_commit_with_events(controller: Controller, world: World) -> None:
    await base(controller, world)
    for name in ("one", "two", "gone"):
        world.facts[name] = (await controller.transactions.create(STREAM, lease_ms=10_000)).id


async def commit_with_events(controller: Controller, world: World) -> None:
    await controller.transactions.commit(STREAM, world.facts["two"], blocks=blocks_of(b"<two>", 20))
    await controller.transactions.abort(STREAM, world.facts["gone"])
    await controller.transactions.commit(STREAM, world.facts["one"], blocks=blocks_of(b"<one>", 10))
    await controller.sweep()


async def prepare_roll(controller: Controller, world: World) -> None:
    await prepare_commit(controller, world)
    await scale_to(controller, 3)


async def rolled(controller: Controller, world: World) -> None:
    await controller.sweep()
    await outcomes(controller, world)
    data = await stream_bytes(controller, world.segments)
    by_key = [b"", b""]
    for segment in sorted(data):
        if segment & 0xFFFFFFFF < 2:
            by_key[segment & 1] += data[segment]
        else:
            assert data[segment] == b""
    assert by_key == [b"a" * 10 + b"<two><one>", b"b" * 20 + b"<two><one>"]
    assert len(await controller.layout.current(STREAM)) == 3


async def batch(controller: Controller, world: World) -> None:
    txns = [world.facts["one"], world.facts["two"]]
    assert await controller.batches.commit(STREAM, writer="w", batch=4, transactions=txns)


async def batched(controller: Controller, world: World) -> None:
    assert await controller.batches.last(STREAM, writer="w") == 4
    data = await stream_bytes(controller, world.segments)
    assert [data[seg(0, 0)], data[seg(0, 1)]] == [b"a" * 10 + b"<one><two>", b"b" * 20 + b"<one><two>"]
    assert await controller.transactions.status(STREAM, world.facts["gone"]) is TransactionStatus.OPEN


KEY = UUID(int=77)


async def join(controller: Controller, world: World) -> None:
    """Two writers share a transaction, and it is committed."""
    joined, again = [await controller.transactions.join(STREAM, KEY, lease_ms=10_000) for _ in range(2)]
    assert joined == again
    for item in joined.segments:
        name = transaction_segment_name(name_of(item.segment), joined.id)
        if not world.segments.segments[name].data:
            world.segments.write(name, b"<joined>")
    assert await controller.batches.commit(STREAM, writer="w", batch=1, transactions=[joined.id])


async def join_again(controller: Controller, world: World) -> None:
    if await controller.batches.last(STREAM, writer="w") is None:
        await join(controller, world)


async def joined(controller: Controller, world: World) -> None:
    data = await stream_bytes(controller, world.segments)
    assert [data[seg(0, 0)], data[seg(0, 1)]] == [b"a" * 10 + b"<joined>", b"b" * 20 + b"<joined>"]
    await controller.sweep()
    left = [key for table in world.segments.tables.values() for key in table.entries if key.startswith(b"join/")]
    assert left == []
    assert not [name for name in world.segments.segments if "#transaction" in name]


async def prepare_retention(controller: Controller, world: World) -> None:
    await base(controller, world, retention=RetentionPolicy(type=RetentionType.SIZE, minimum=0, maximum=32))
    await controller.groups.create(group({seg(0, 0): 0, seg(0, 1): 0}))
    await controller.retention.run(STREAM)
    await scale(controller, world)
    world.segments.write(name_of(seg(1, 2)), b"c" * 5)
    world.clock.ms += 1000


async def retain(controller: Controller, world: World) -> None:
    await controller.retention.run(STREAM)


async def retained(controller: Controller, world: World) -> None:
    assert (await controller.cuts.head(STREAM)).positions == {seg(0, 0): 10, seg(0, 1): 20}
    assert [item.bytes for item in await controller.retention.list_evictions(STREAM)] == [30]


async def create_group(controller: Controller, world: World) -> None:
    await controller.groups.create(group({seg(0, 0): 0, seg(0, 1): 1}))


async def group_created(controller: Controller, world: World) -> None:
    assert await controller.groups.list("s") == ["g"]
    assert await controller.subscribers.list(STREAM) == ("s/g",)
    assert await controller.streams.exists(StreamName("s", "_RGg"))


async def prepare_group(controller: Controller, world: World) -> None:
    await base(controller, world)
    await controller.streams.create(SECOND, config())
    await controller.groups.create(group())


async def move_group(controller: Controller, world: World) -> None:
    current = await controller.groups.get("s", "g")
    wanted = ReaderGroupConfig(
        scope="s",
        name="g",
        id=ID,
        generation=current.generation,
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={SECOND: StreamCut(SECOND, {seg(0, 0): 0})},
    )
    await controller.groups.update(wanted)


async def group_moved(controller: Controller, world: World) -> None:
    assert await controller.subscribers.list(STREAM) == ()
    assert await controller.subscribers.list(SECOND) == ("s/g",)


async def delete_group(controller: Controller, world: World) -> None:
    await controller.groups.delete("s", "g")


async def delete_group_again(controller: Controller, world: World) -> None:
    try:
        await delete_group(controller, world)
    except ReaderGroupNotFoundError:
        return


async def group_deleted(controller: Controller, world: World) -> None:
    assert await controller.groups.list("s") == []
    assert await controller.subscribers.list(STREAM) == ()
    assert not await controller.streams.exists(StreamName("s", "_RGg"))


async def prepare_scope(controller: Controller, world: World) -> None:
    await controller.scopes.create("s")


async def delete_scope(controller: Controller, world: World) -> None:
    if await controller.scopes.exists("s"):
        await controller.scopes.delete("s")


async def scope_deleted(controller: Controller, world: World) -> None:
    assert await controller.scopes.list() == []
    await controller.scopes.create("s")


__all__ = ["Workflow", "World", "crash_once", "reopen_with_crash"]

WORKFLOWS = {
    "create": Workflow(base, create, created, create_again),
    "delete": Workflow(prepare_deletion, delete, deleted, delete_again),
    "delete in use": Workflow(base, delete_in_use, deleted),
    "scale": Workflow(base, scale, scaled, scale_again),
    "update": Workflow(base, update, updated),
    "truncate": Workflow(prepare_truncation, truncate, truncated),
    "seal": Workflow(prepare_sealing, seal, sealed),
    "commit and abort": Workflow(prepare_commit, commit, committed),
    "rolling commit": Workflow(prepare_roll, commit, rolled),
    "commit with its events": Workflow(prepare_commit_with_events, commit_with_events, committed),
    "batch": Workflow(prepare_commit, batch, batched),
    "join": Workflow(base, join, joined, join_again),
    "retention": Workflow(prepare_retention, retain, retained),
    "create group": Workflow(base, create_group, group_created),
    "update group": Workflow(prepare_group, move_group, group_moved),
    "delete group": Workflow(prepare_group, delete_group, group_deleted, delete_group_again),
    "delete scope": Workflow(prepare_scope, delete_scope, scope_deleted),
}


@pytest.mark.parametrize("effect_first", [pytest.param(False, marks=pytest.mark.slow), True], ids=["before", "after"])
@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_crash_at_any_step_is_finished_by_the_next_controller(name: str, effect_first: bool) -> None:
    crash_everywhere(WORKFLOWS[name], effect_first=effect_first)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_what_fails_for_a_while_is_finished_by_the_sweeper_without_reopening(name: str) -> None:
    fail_everywhere(WORKFLOWS[name])
