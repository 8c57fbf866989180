"""Pravega internals: what the overview of controller and segment store promises to users, by its place there."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from documents_world import FIRST, STREAM, WRITER, World, by_size, by_time, play, play_lives

from penstock.app.telemetry import Counters
from penstock.controller.controller import open_controller
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    SegmentNotFoundError,
    SegmentSealedError,
    StreamNotFoundError,
    TransactionStateError,
)
from penstock.model.names import StreamName, segment_name, transaction_segment_name
from penstock.model.policies import RetentionPolicy, ScaleType, ScalingPolicy
from penstock.ports.control.layout import Endpoint
from penstock.ports.control.transactions import PingStatus, TransactionStatus
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.testing.fakes import SeededRng

NAME = segment_name(STREAM, FIRST)
SCOPES = "/v1/scopes"


async def write(w: World, count: int, *, start: int = 0, keys: int = 9) -> None:
    async with w.store.stream(STREAM).writer() as writer:
        for number in range(start, start + count):
            await writer.write(f"k{number % keys}:{number}", f"k{number % keys}")


def in_order(events: list[bytes]) -> bool:
    """Whether the numbers of each key rise."""
    last: dict[bytes, int] = {}
    for event in events:
        key, _, number = event.partition(b":")
        if int(number) <= last.get(key, -1):
            return False
        last[key] = int(number)
    return True


# --- segments -----------------------------------------------------------------------------------------------------


def test_segments_are_append_only_and_make_up_a_stream_in_parallel_and_in_sequence() -> None:
    """Introduction: a stream is made of append-only segments, several at a time and one after the other; so it scales."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        await write(w, 100)
        before = {item.segment: await w.segments.info(segment_name(STREAM, item.segment)) for item in await segments(w)}
        await stream.scale(3)
        await write(w, 100, start=100)
        for segment, info in before.items():
            now = await w.segments.info(segment_name(STREAM, segment))
            assert (now.sealed, now.length) == (True, info.length)
        events = await w.read()
        assert len(events) == 200
        assert in_order(events)

    play(story)


async def segments(w: World):
    return await w.controller.layout.current(STREAM)


# --- controller ---------------------------------------------------------------------------------------------------


def test_the_controller_manages_the_life_of_streams() -> None:
    """Controller: streams are created, updated, scaled and deleted, and it answers for them."""

    async def story(w: World) -> None:
        stream = await w.stream()
        assert [item.segment for item in await segments(w)] == [FIRST]
        await stream.update(tags=["a"])
        await stream.scale(2)
        assert len(await segments(w)) == 2
        await stream.seal()
        await stream.delete()
        with pytest.raises(StreamNotFoundError):
            await stream.config()

    play(story)


def test_policies_are_part_of_the_configuration() -> None:
    """Controller Service, snippet: scaling and retention policies are part of the stream's configuration.
    Differs: scaling by rate"""
    scaling = ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=100, factor=2, min_segments=3)

    async def story(w: World) -> None:
        await w.store.create_scope("s")
        stream = await w.store.create_stream(STREAM, scaling=scaling, retention=by_time(3600))
        config = await stream.config()
        assert (config.scaling, config.retention) == (scaling, by_time(3600))
        # The policy is kept and given back; who scales is the user.
        await write(w, 2000)
        await asyncio.sleep(600)
        assert len(await segments(w)) == 3
        await stream.scale(5)
        assert len(await segments(w)) == 5

    play(story, cycle_s=60)


@pytest.mark.parametrize("policy", [by_size(5), by_time(5)])
def test_truncation_is_triggered_from_within(policy: RetentionPolicy) -> None:
    """Controller Service: retention is a mechanism of the controller's own, not a request of a user."""

    async def story(w: World) -> None:
        await w.stream(policy)
        await w.append(10)
        await asyncio.sleep(100)
        await w.append(10)
        await asyncio.sleep(100)
        assert await w.head() != {FIRST: 0}

    play(story, cycle_s=20)


def test_scopes_and_streams_are_made_over_rest() -> None:
    """Client interactions: scopes and streams are created and deleted by the API or by REST."""

    async def story(w: World) -> None:
        await w.ok("POST", SCOPES, {"scopeName": "s"})
        body = {"streamName": "t", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": 2}}
        await w.ok("POST", f"{SCOPES}/s/streams", body)
        assert len(await segments(w)) == 2
        await w.ok("PUT", f"{SCOPES}/s/streams/t/state", {"streamState": "SEALED"})
        await w.ok("DELETE", f"{SCOPES}/s/streams/t")
        await w.ok("DELETE", f"{SCOPES}/s")
        assert not await w.controller.scopes.exists("s")

    play(story)


def test_clients_learn_segments_and_who_serves_them() -> None:
    """Client interactions: clients learn from the controller the current segments of a stream, and which store to contact."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        await stream.scale(3)
        for item in await segments(w):
            assert await w.controller.layout.endpoint(segment_name(STREAM, item.segment)) == Endpoint(
                host="127.0.0.1", port=12345
            )

    play(story)


def test_the_end_of_a_segment_leads_to_its_successors() -> None:
    """Client interactions: a client that meets a sealed segment asks the controller for its successors."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        await write(w, 10)
        await stream.scale(3)
        with pytest.raises(SegmentSealedError):
            await w.append(10, segment=FIRST)
        found = await w.controller.layout.successors(STREAM, FIRST)
        assert {FIRST in item.predecessors for item in found} == {True}
        assert len(found) == 2

    play(story)


def test_scaling_disturbs_neither_writers_nor_readers() -> None:
    """Client interactions: scaling is seamless to the application."""

    async def story(w: World) -> None:
        stream = await w.stream()
        seen: list[bytes] = []

        async def read() -> None:
            async with stream.reader() as reader:
                seen.extend([event.data async for event in reader])

        async def scale() -> None:
            for count in (3, 2, 5):
                await asyncio.sleep(0.2)
                await stream.scale(count)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(read())
            tasks.create_task(scale())
            async with stream.writer() as writer:
                for number in range(500):
                    await writer.write(f"k{number % 9}:{number}", f"k{number % 9}")
                    await asyncio.sleep(0.002)
            await stream.seal()
        assert len(seen) == len(set(seen)) == 500
        assert in_order(seen)

    play(story)


def test_controllers_keep_no_state_of_their_own() -> None:
    """Controller Instances: metadata lies outside, and instances are stateless processes; another one knows all of it.
    Differs: where metadata lies"""

    async def before(w: World) -> None:
        stream = await w.stream(by_size(7), segments=2)
        await w.subscribe("g", {FIRST: 0, FIRST + 1: 0})
        await w.append(10)
        await stream.scale(3)

    async def after(w: World) -> None:
        description = await w.controller.streams.describe(STREAM)
        assert (description.epoch, len(description.segments), description.size_bytes) == (1, 3, 10)
        assert description.config.retention == by_size(7)
        assert list(await w.acknowledged()) == ["s/g"]

    play_lives(before, after)


def test_others_take_over_the_work_of_a_controller_that_is_gone() -> None:
    """Controller Instances: when an instance is gone, the remaining ones notice and take over its work.
    Differs: where metadata lies"""
    settings = ControllerSettings(sweep_ms=1000, retention_cycle_ms=5000, bucket_lease_ms=10_000, clock_slack_ms=0)

    async def story(w: World) -> None:
        def open_one(number: int):
            rng = SeededRng(w.loop.fork(f"controller {number}"))
            return open_controller(
                w.segments, w.clock, rng, lambda _: Endpoint(host="here", port=1), Counters(), settings
            )

        names = [StreamName("s", f"t{number}") for number in range(20)]
        async with open_one(1):
            leaving = open_one(2)
            await leaving.__aenter__()
            for name in names:
                await w.stream(by_size(0), name=name)
            await asyncio.sleep(30)
            await leaving.__aexit__(None, None, None)
            for name in names:
                await w.append(10, stream=name)
            await asyncio.sleep(60)
            assert [await w.size(name) for name in names] == [0] * 20

    play(story)


# --- transactions -------------------------------------------------------------------------------------------------


def test_a_transaction_has_a_segment_for_each_open_segment() -> None:
    """Transaction Management: for a stream with open segments s1, s2, s3 a transaction has ts1, ts2, ts3; an event whose key
    belongs to si goes to tsi, and all become readable when the transaction commits."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=3)
        async with stream.transaction() as transaction:
            for number in range(60):
                await transaction.write(f"k{number % 9}:{number}", f"k{number % 9}")
            await transaction.flush()
            lengths = {}
            for item in await segments(w):
                own = transaction_segment_name(segment_name(STREAM, item.segment), transaction.id)
                lengths[item.segment] = (await w.segments.info(own)).length
            assert await w.read() == []
        for segment, length in lengths.items():
            assert (await w.segments.info(segment_name(STREAM, segment))).length == length > 0
        events = await w.read()
        assert len(events) == 60
        assert in_order(events)

    play(story)


def test_a_transaction_is_on_one_stream() -> None:
    """Transaction Management: a transaction is on a single stream."""

    async def story(w: World) -> None:
        await w.stream()
        other = await w.stream(name=StreamName("s", "u"))
        async with w.store.stream(STREAM).transaction() as transaction:
            await transaction.write("x")
            status = await w.controller.transactions.status(other.name, transaction.id)
            assert status is TransactionStatus.UNKNOWN

    play(story)


def test_a_transaction_times_out() -> None:
    """Transaction Management: a transaction that takes longer than its time is ended by the controller."""

    async def story(w: World) -> None:
        await w.stream()
        transaction = await w.controller.transactions.create(STREAM, lease_ms=10_000)
        own = transaction_segment_name(NAME, transaction.id)
        await asyncio.sleep(9)
        assert await w.controller.transactions.ping(STREAM, transaction.id, lease_ms=10_000) is PingStatus.OK
        await asyncio.sleep(9)
        await w.segments.info(own)
        await asyncio.sleep(20)
        assert await w.controller.transactions.status(STREAM, transaction.id) is TransactionStatus.ABORTED
        with pytest.raises(SegmentNotFoundError):
            await w.segments.info(own)

    play(story, cycle_s=60)


async def transaction_of(w: World, data: bytes) -> UUID:
    """Begun, with one event in its first segment, not decided."""
    transaction = await w.controller.transactions.create(STREAM, lease_ms=60_000)
    name = transaction_segment_name(segment_name(STREAM, transaction.segments[0].segment), transaction.id)
    await w.segments.setup_append(name, WRITER)
    framed = b"\0\0\0\0" + len(data).to_bytes(4, "big") + data
    await w.segments.append(Append(segment=name, writer=WRITER, data=framed, event_number=1, previous=NO_EVENT))
    return transaction.id


@pytest.mark.parametrize("commit_first", [True, False])
def test_the_outcome_of_a_transaction_never_changes(commit_first: bool) -> None:
    """Transaction Management: once it is acknowledged, the outcome does not change; commit and then abort, or the other way
    round, is not accepted, and the same once more does nothing."""

    async def story(w: World) -> None:
        await w.stream()
        txn = await transaction_of(w, b"x")
        calls = [w.controller.transactions.commit, w.controller.transactions.abort]
        first, second = calls if commit_first else calls[::-1]
        for _ in range(2):
            await first(STREAM, txn)
        with pytest.raises(TransactionStateError):
            await second(STREAM, txn)
        await w.controller.sweep()
        assert await w.read() == ([b"x"] if commit_first else [])

    play(story)


def test_a_commit_that_was_interrupted_is_completed_by_another_controller() -> None:
    """Transaction Management: a commit that a crash interrupts is picked up and executed by another instance; merging twice
    does no harm."""

    async def before(w: World) -> None:
        await w.stream(segments=2)
        txn = await transaction_of(w, b"x")
        real, merges = w.segments.merge, []

        async def merge_and_stop(target: str, source: str) -> int:
            merges.append(await real(target, source))
            await asyncio.Event().wait()
            return 0

        w.segments.merge = merge_and_stop  # type: ignore[method-assign]
        committing = asyncio.ensure_future(w.controller.transactions.commit(STREAM, txn))
        while not merges:
            await asyncio.sleep(0.1)
        committing.cancel()

    async def after(w: World) -> None:
        await w.controller.sweep()
        assert await w.read() == [b"x"]
        ((_, status),) = await w.controller.transactions.list_completed(STREAM)
        assert status is TransactionStatus.COMMITTED

    play_lives(before, after)


def test_aborting_deletes_the_segments() -> None:
    """Transaction Management: aborting deletes the segments of the transaction."""

    async def story(w: World) -> None:
        await w.stream()
        txn = await transaction_of(w, b"x")
        await w.controller.transactions.abort(STREAM, txn)
        await w.controller.sweep()
        with pytest.raises(SegmentNotFoundError):
            await w.segments.info(transaction_segment_name(NAME, txn))
        assert await w.read() == []

    play(story)


@pytest.mark.parametrize("seed", range(4))
def test_concurrent_transactions_have_the_same_order_in_every_segment(seed: int) -> None:
    """Transaction Management: transactions on one stream commit one after the other, so that no segment has the events of two
    of them in another order than the next."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=4)

        async def one(name: str) -> None:
            async with stream.transaction() as transaction:
                for number in range(20):
                    await transaction.write(f"{name}:{number}", f"k{number}")

        async with asyncio.TaskGroup() as tasks:
            for name in "abcdef":
                tasks.create_task(one(name))
        orders = []
        async with stream.reader(until_tail=True) as reader:
            found: dict[int, list[str]] = {}
            async for event in reader:
                found.setdefault(event.segment, []).append(chr(event.data[0]))
        for names in found.values():
            orders.append(list(dict.fromkeys(names)))
            assert names == sorted(names, key=orders[-1].index)
        assert len(orders) == 4
        assert all(order == orders[0] for order in orders)

    play(story, seed=seed)


def test_a_transaction_rolls_over_a_scale() -> None:
    """Transaction Management: where the stream was scaled meanwhile, the current segments are sealed, the transaction's become
    their successors, and new ones follow that divide the keys as before."""

    async def story(w: World) -> None:
        stream = await w.stream(segments=2)
        async with stream.transaction() as transaction:
            for number in range(20):
                await transaction.write(f"k{number % 5}:{number}", f"k{number % 5}")
            await stream.scale(3)
            before = [item.keys for item in await segments(w)]
            sealed = [item.segment for item in await segments(w)]
            await write(w, 10, start=100)
        assert [item.keys for item in await segments(w)] == before
        assert not set(sealed) & {item.segment for item in await segments(w)}
        epochs = await w.controller.layout.epochs(STREAM)
        assert [len(item.segments) for item in epochs] == [2, 3, 2, 3]
        await write(w, 10, start=200)
        assert len(await w.read()) == 40

    play(story)
