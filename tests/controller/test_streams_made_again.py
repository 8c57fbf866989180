"""A stream that is deleted and made again: nothing of the first one ever applies to the second."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
from controller_world import (
    STREAM,
    audit_entries,
    check_invariants,
    config,
    finish_all,
    opened,
    quota,
    scale_to,
    seg,
    table_keys,
    with_stream,
    write_transaction,
)
from memory_segments import MemorySegments
from raced_segments import RacedSegments

from penstock.codec.control.streams import BatchRecord, DecisionRecord, TransactionRecord, TransactionState
from penstock.controller import keys, retention_keys
from penstock.controller.controller import Controller
from penstock.controller.erasure.subjects import remains_of
from penstock.controller.metadata import overwrite
from penstock.controller.transactions.decisions import decide
from penstock.core.streams.transactions import Verb, make_transaction_id
from penstock.model.errors import CorruptDataError, InternalError, PenstockError, StreamNotFoundError, StreamSealedError
from penstock.model.names import segment_name
from penstock.model.policies import StreamConfig
from penstock.model.retention import OnExceed, PolicyDocument, Retain
from penstock.model.segments import even_ranges
from penstock.ports.control.transactions import TransactionStatus
from penstock.testing.fakes import FakeClock

ROUNDS = 3000
"""Passes of the loop in which a call that waits for no lock ends."""


async def make_again(controller: Controller) -> None:
    await controller.streams.seal(STREAM)
    await controller.streams.delete(STREAM)
    await controller.streams.create(STREAM, config(2))


async def all_goes_on(controller: Controller, segments: MemorySegments) -> None:
    """Run every kind of change on this stream, and a transaction."""
    await scale_to(controller, 3)
    await controller.streams.truncate(STREAM, await controller.cuts.tail(STREAM))
    await controller.retention.run(STREAM)
    await controller.policies.set(STREAM, PolicyDocument(retain=Retain(max_bytes=10)))
    txn = await write_transaction(controller, segments, b"new")
    await controller.transactions.commit(STREAM, txn)
    await finish_all(controller)
    assert await controller.transactions.status(STREAM, txn) is TransactionStatus.COMMITTED
    await check_invariants(controller, segments)
    await controller.streams.seal(STREAM)
    await controller.streams.delete(STREAM)
    assert [key for key in table_keys(segments) if "/s/t" in key] == ["number/s/t"]


async def _begin(controller: Controller) -> UUID:
    return (await controller.transactions.create(STREAM, lease_ms=10_000)).id


async def _join(controller: Controller) -> UUID:
    return (await controller.transactions.join(STREAM, UUID(int=9), lease_ms=10_000)).id


@pytest.mark.parametrize("begin", [_begin, _join], ids=["begin", "join"])
def test_a_stream_that_is_created_again_at_any_step_of_a_begin_works_normally(
    begin: Callable[[Controller], Awaitable[UUID]],
) -> None:
    async def raced(at: int) -> bool:
        segments = RacedSegments()
        async with with_stream(segments, 2) as controller:
            await scale_to(controller, 3)
            made: list[asyncio.Task[None]] = []

            async def again() -> None:
                made.append(asyncio.ensure_future(make_again(controller)))
                for _ in range(ROUNDS):
                    if made[0].done():
                        return
                    await asyncio.sleep(0)

            segments.arm_hook(at, again)
            try:
                txn = await begin(controller)
            except PenstockError:
                txn = None
            segments.hook = None
            if not made:
                return False
            await made[0]
            await finish_all(controller)
            transient = [name for name in segments.segments if "#transaction" in name]
            status = TransactionStatus.UNKNOWN
            if txn is not None:
                status = await controller.transactions.status(STREAM, txn)
            if status is TransactionStatus.OPEN:
                # Begun in the new stream, by an attempt that looked again.
                await controller.transactions.abort(STREAM, txn)
                await finish_all(controller)
            else:
                assert transient == []
                left = [key for key in table_keys(segments) if key.startswith(("txn/s/t/", "join/s/t/", "queue/"))]
                assert left == []
            await all_goes_on(controller, segments)
            return True

    async def work() -> int:
        at = 1
        while await raced(at):
            at += 1
        return at

    assert asyncio.run(work()) > 8


STRAYS = {
    "of a later epoch, by the first release": TransactionRecord(
        state=TransactionState.COMMITTING, epoch=7, expires_ms=1, deadline_ms=1
    ),
    "of another incarnation": TransactionRecord(
        state=TransactionState.COMMITTING, epoch=0, expires_ms=1, deadline_ms=1, incarnation=99
    ),
    "open and expired": TransactionRecord(
        state=TransactionState.OPEN, epoch=0, expires_ms=1, deadline_ms=1, incarnation=99
    ),
}


@pytest.mark.parametrize("stray", STRAYS)
def test_a_transaction_of_an_earlier_stream_is_skipped_and_blocks_nothing(stray: str) -> None:
    async def work() -> None:
        segments = MemorySegments()
        record = STRAYS[stray]
        txn = make_transaction_id(record.epoch, 1 << 40)
        async with with_stream(segments, 2) as controller:
            metadata = controller._ctx.metadata
            await metadata.put(overwrite(keys.transaction(STREAM, txn), record))
            if record.state is TransactionState.COMMITTING:
                decision = DecisionRecord(commit=True, transactions=(txn,))
                await metadata.put(overwrite(keys.queue_entry(STREAM, 0), decision))
        async with opened(segments) as controller:
            await finish_all(controller)
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.ABORTED
            await all_goes_on(controller, segments)

    asyncio.run(work())


async def _damage(controller: Controller, segments: MemorySegments, what: str) -> UUID:
    """Leave a decided transaction of a stream with epochs 0 and 1, and damage the records that would finish it."""
    txn = await write_transaction(controller, segments, b"data")
    await scale_to(controller, 3)
    await decide(controller._ctx, STREAM, txn, Verb.COMMIT)
    entries = segments.tables[keys.TABLE].entries
    (entry,) = [key for key in entries if key.startswith(keys.queue(STREAM))]
    key = {"decision": entry, "transaction": keys.transaction(STREAM, txn), "epoch": keys.epoch(STREAM, 0)}[what]
    if what == "epoch":
        del entries[key]
    else:
        entries[key] = (b"rot", entries[key][1])
    controller._ctx.histories.forget(STREAM)
    controller._ctx.transactions.queues.forget(STREAM)
    return txn


@pytest.mark.parametrize("what", ["decision", "transaction", "epoch"])
def test_a_repair_unblocks_a_stuck_stream_and_lists_the_removed_records(what: str) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            txn = await _damage(controller, segments, what)
            for change in (controller.streams.seal, controller.retention.run):
                with pytest.raises((CorruptDataError, InternalError)):
                    await change(STREAM)
            found = await controller.repair_stream(STREAM)
            assert len(found["removed"]) == 1
            assert all(item["why"] for item in found["removed"])
            # What was decided and can be read is performed: a lost entry of the queue loses no transaction.
            assert [item["txn"] for item in found["requeued"]] == ([str(txn)] if what == "decision" else [])
            again = await controller.repair_stream(STREAM)
            assert (again["removed"], again["requeued"]) == ([], [])
            # Without its epoch nobody knows the segments; in all other cases what was decided is performed.
            if what != "epoch":
                assert await controller.transactions.status(STREAM, txn) is TransactionStatus.COMMITTED
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)

    asyncio.run(work())


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_epoch_denies_no_segment_and_stops_neither_writing_nor_deletion(lost: int) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            await scale_to(controller, 3)
            middle = [item.segment for item in await controller.layout.of_epoch(STREAM, 1)]
            await scale_to(controller, 2)
            txn = await write_transaction(controller, segments, b"data")
            del segments.tables[keys.TABLE].entries[keys.epoch(STREAM, lost)]
            controller._ctx.histories.forget(STREAM)
            for call in (
                lambda: controller.layout.ranges(STREAM, middle),
                lambda: controller.layout.successors(STREAM, middle[0]),
                lambda: controller.layout.of_epoch(STREAM, lost),
                lambda: controller.layout.epochs(STREAM),
                lambda: controller.retention.run(STREAM),
            ):
                with pytest.raises(CorruptDataError, match=f"epoch={lost}"):
                    await call()
            assert len(await controller.layout.current(STREAM)) == 2
            await controller.transactions.commit(STREAM, txn)
            await finish_all(controller)
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.COMMITTED
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            (entry,) = await audit_entries(controller, segments, "delete")
            assert (entry["bytes"], entry["events"]) == (None, None)

    asyncio.run(work())


@pytest.mark.parametrize("what", ["decision", "transaction"])
def test_a_repair_keeps_the_order_of_decisions_and_leaves_no_segment(what: str) -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            first = await write_transaction(controller, segments, b"A" * 10)
            second = await write_transaction(controller, segments, b"B" * 10)
            unread = await write_transaction(controller, segments, b"C" * 10)
            for txn in (first, second):
                await decide(controller._ctx, STREAM, txn, Verb.COMMIT)
            entries = segments.tables[keys.TABLE].entries
            entry = min(key for key in entries if key.startswith(keys.queue(STREAM)))
            key = {"decision": entry, "transaction": keys.transaction(STREAM, first)}[what]
            for damaged in (key, keys.transaction(STREAM, unread)):
                entries[damaged] = (b"rot", entries[damaged][1])
            controller._ctx.transactions.queues.forget(STREAM)
            await controller.repair_stream(STREAM)
            (name,) = [item.segment for item in await controller.layout.current(STREAM)]
            assert bytes(segments.segments[segment_name(STREAM, name)].data) == b"A" * 10 + b"B" * 10
            # With a lost entry nobody knows whether the unreadable transaction was committed: its bytes stay.
            left = [name for name in segments.segments if "#transaction." in name]
            assert len(left) == (1 if what == "decision" else 0)
            again = await controller.repair_stream(STREAM)
            assert (again["removed"], again["requeued"]) == ([], [])

    asyncio.run(work())


def test_a_repair_changes_no_sound_stream_and_refuses_an_unknown_one() -> None:
    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            txn = await write_transaction(controller, segments, b"open")
            found = await controller.repair_stream(STREAM)
            assert (found["removed"], found["requeued"]) == ([], [])
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.OPEN
            await controller.transactions.abort(STREAM, txn)
            await finish_all(controller)
            await all_goes_on(controller, segments)
            with pytest.raises(StreamNotFoundError):
                await controller.repair_stream(STREAM)

    asyncio.run(work())


def test_points_and_marks_of_a_stream_do_not_outlive_it_at_any_step() -> None:
    """They are written beside the stream's lock, for many streams at once."""

    async def raced(at: int) -> bool:
        segments, clock = RacedSegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.streams.create(type(STREAM)("s", "other"), StreamConfig())
            await controller.policies.set(STREAM, quota(OnExceed.HOLD, max_bytes=100))
            await controller.policies.set(type(STREAM)("s", "other"), quota(OnExceed.HOLD, max_bytes=100))
            del segments.tables[keys.TABLE].entries[keys.quota(STREAM)]
            await controller.drain_audit()  # so that only the calls of ``look`` are counted
            made: list[bool] = []

            async def again() -> None:
                await controller.streams.seal(STREAM)
                await controller.streams.delete(STREAM)
                made.append(True)

            async def look() -> None:
                for name in (STREAM, type(STREAM)("s", "other")):
                    await controller._loop._points.note(name, time_ms=clock.ms, size_bytes=5)
                await controller._loop._points.flush()
                try:
                    await controller._limits.refresh(STREAM)
                except PenstockError:
                    # Deleted while it was looked at.
                    return

            segments.arm_hook(at, again)
            await look()
            segments.hook = None
            if made:
                assert [key for key in table_keys(segments) if "/s/t" in key] == ["number/s/t"]
            assert any(
                key.startswith(retention_keys.points(type(STREAM)("s", "other")).decode())
                for key in table_keys(segments)
            )
            return bool(made)

    async def work() -> int:
        at = 1
        while await raced(at):
            at += 1
        return at

    assert asyncio.run(work()) > 5


def test_beginning_in_a_stream_that_is_deleted_meanwhile_says_that_it_is_gone() -> None:
    """Between any two calls of the store: the stream's epochs are gone then, which is no damage."""

    async def raced(at: int) -> bool:
        segments, clock = RacedSegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            await controller.layout.scale(STREAM, sealed=[seg(0, 0)], new_ranges=even_ranges(2))
            controller._ctx.histories.forget(STREAM)
            deleted: list[bool] = []

            async def delete() -> None:
                await controller.streams.seal(STREAM)
                await controller.streams.delete(STREAM)
                deleted.append(True)

            segments.arm_hook(at, delete)
            try:
                await controller.transactions.create(STREAM, lease_ms=10_000)
            except (StreamNotFoundError, StreamSealedError):
                assert deleted
            segments.hook = None
            return bool(deleted)

    async def work() -> int:
        at = 1
        while await raced(at):
            at += 1
        return at

    assert asyncio.run(work()) > 4


@pytest.mark.parametrize("batch", ["sound", "unreadable"])
def test_a_repair_keeps_what_a_batch_has_committed_although_its_queue_entry_is_missing(batch: str) -> None:
    """A lost row reads as absent. The writer's record is a second witness of the decision."""

    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            txn = await write_transaction(controller, segments, b"A" * 10)
            record = BatchRecord(batch=0, transactions=(txn,))
            await controller._ctx.metadata.put(overwrite(keys.batch(STREAM, "w"), record))
            entries = segments.tables[keys.TABLE].entries
            rotten = [keys.transaction(STREAM, txn), *([keys.batch(STREAM, "w")] if batch == "unreadable" else [])]
            for key in rotten:
                entries[key] = (b"rot", entries[key][1])
            await controller.repair_stream(STREAM)
            kept = b"".join(bytes(item.data) for item in segments.segments.values())
            assert kept.count(b"A" * 10) == 1
            if batch == "sound":
                assert await controller.transactions.status(STREAM, txn) is TransactionStatus.COMMITTED

    asyncio.run(work())


@pytest.mark.parametrize("lost", ["batch", "decision"])
def test_segments_that_a_repair_keeps_are_found_by_erasures_and_deleted_with_the_stream(lost: str) -> None:
    """A lost entry or batch may have committed the unreadable transaction, so a repair removes its record alone."""

    async def work() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            txn = await write_transaction(controller, segments, b"A" * 10)
            other = await write_transaction(controller, segments, b"B" * 10)
            await controller._ctx.metadata.put(
                overwrite(keys.batch(STREAM, "w"), BatchRecord(batch=0, transactions=())),
                overwrite(keys.queue_entry(STREAM, 0), DecisionRecord(commit=False, transactions=(other,))),
            )
            entries = segments.tables[keys.TABLE].entries
            rotten = keys.batch(STREAM, "w") if lost == "batch" else keys.queue_entry(STREAM, 0)
            for key in (keys.transaction(STREAM, txn), rotten):
                entries[key] = (b"rot", entries[key][1])
            found = await controller.repair_stream(STREAM)
            assert any("its segments stay" in item["why"] for item in found["removed"])
            again = await controller.repair_stream(STREAM)
            assert (again["removed"], again["requeued"]) == ([], [])
            assert any(b"A" * 10 in bytes(item.data) for item in segments.segments.values())
            remains = await remains_of(controller._ctx, await controller._ctx.streams.find(STREAM), STREAM, 0, ())
            assert [item["transactions"] for item in remains if "a repair removed" in item["what"]] == [1]
            if lost == "decision":
                await controller.transactions.abort(STREAM, other)
            await controller.streams.seal(STREAM)
            await controller.streams.delete(STREAM)
            assert not [name for name in segments.segments if "#transaction." in name]
            assert [key for key in table_keys(segments) if "/s/t" in key] == ["number/s/t"]

    asyncio.run(work())


@pytest.mark.parametrize("deleted", ["before the backup", "after the restore"])
def test_in_a_restored_store_no_stream_of_any_name_begins_below_the_jump(deleted: str) -> None:
    """The original may have used the same name again, and with it the numbers that follow those in the backup."""

    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            await controller.streams.seal(STREAM)
            if deleted == "before the backup":
                await controller.streams.delete(STREAM)
            await controller.begin_restored(1000)
            if deleted == "after the restore":
                await controller.streams.delete(STREAM)
            await controller.streams.create(STREAM, config(1))
            (active,) = await controller.layout.current(STREAM)
            assert active.segment >= seg(0, 1000)

    asyncio.run(run())
