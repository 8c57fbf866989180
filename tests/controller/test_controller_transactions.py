"""Transactions and batches: one decision, performed in order, whatever scales or expires meanwhile."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest
from controller_world import (
    QUIET,
    STREAM,
    check_invariants,
    finish_all,
    name_of,
    opened,
    scale_to,
    seg,
    stream_bytes,
    table_keys,
    with_stream,
    write_transaction,
)
from memory_segments import MemorySegments

from penstock.controller.settings import ControllerSettings
from penstock.model.errors import (
    InvalidArgumentError,
    StreamNotFoundError,
    StreamSealedError,
    TransactionNotFoundError,
    TransactionStateError,
)
from penstock.model.names import StreamName, transaction_segment_name
from penstock.ports.control.transactions import EventBlock, PingStatus, TransactionStatus
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.testing.fakes import FakeClock

UNKNOWN = UUID(int=99)


def test_a_transaction_has_its_segments_and_a_positive_id_when_it_is_returned() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 3) as controller:
            await scale_to(controller, 2 + 1)
            txn = await controller.transactions.create(STREAM, lease_ms=10_000)
            for item in txn.segments:
                assert transaction_segment_name(name_of(item.segment), txn.id) in segments.segments
            assert [item.segment for item in txn.segments] == [
                item.segment for item in await controller.layout.current(STREAM)
            ]
            low, high = txn.id.int & (1 << 64) - 1, txn.id.int >> 64
            assert low < 1 << 63
            assert high < 1 << 63
            assert high >> 32 == 1
            other = await controller.transactions.create(STREAM, lease_ms=10_000)
            assert other.id != txn.id
        async with opened(segments) as controller:
            later = await controller.transactions.create(STREAM, lease_ms=10_000)
            assert later.id not in (txn.id, other.id)

    asyncio.run(run())


def test_many_transactions_begun_and_committed_at_once_get_through() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            begun = await asyncio.gather(*(controller.transactions.create(STREAM, lease_ms=10_000) for _ in range(200)))
            assert len({txn.id for txn in begun}) == 200
            for number, txn in enumerate(begun):
                segments.write(transaction_segment_name(name_of(seg(0, 0)), txn.id), b"%03d" % number)
            await asyncio.gather(*(controller.transactions.commit(STREAM, txn.id) for txn in begun))
            await finish_all(controller)
            data = (await stream_bytes(controller, segments))[seg(0, 0)]
            assert sorted(data[at : at + 3] for at in range(0, 600, 3)) == [b"%03d" % n for n in range(200)]
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_leases_outside_the_limits_are_refused() -> None:
    async def run() -> None:
        async with with_stream(
            MemorySegments(), settings=ControllerSettings(sweep_ms=None, retention_cycle_ms=None)
        ) as c:
            for lease_ms in (9_999, 600_001, 0, -1):
                with pytest.raises(InvalidArgumentError):
                    await c.transactions.create(STREAM, lease_ms=lease_ms)
            await c.transactions.create(STREAM, lease_ms=600_000)

    asyncio.run(run())


def test_commit_makes_the_bytes_readable_once_in_commit_order() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            first = await write_transaction(controller, segments, b"one")
            second = await write_transaction(controller, segments, b"two")
            assert await controller.transactions.status(STREAM, first) is TransactionStatus.OPEN
            await controller.transactions.commit(STREAM, second)
            await controller.transactions.commit(STREAM, first)
            await controller.transactions.commit(STREAM, first)
            await finish_all(controller)
            assert set((await stream_bytes(controller, segments)).values()) == {b"twoone"}
            assert await controller.transactions.status(STREAM, first) is TransactionStatus.COMMITTED
            with pytest.raises(TransactionStateError):
                await controller.transactions.abort(STREAM, first)
            await controller.transactions.commit(STREAM, first)
            assert sorted(await controller.transactions.list_completed(STREAM)) == sorted(
                [(first, TransactionStatus.COMMITTED), (second, TransactionStatus.COMMITTED)]
            )
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_three_durable_round_trips_until_a_commit_is_readable_and_remembered_and_two_to_begin() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 4) as controller:
            await controller.transactions.create(STREAM, lease_ms=10_000)
            before = segments.syncs
            txn = await controller.transactions.create(STREAM, lease_ms=10_000)
            assert segments.syncs - before == 2
            before = segments.syncs
            assert await controller.transactions.commit(STREAM, txn.id) is TransactionStatus.COMMITTED
            assert segments.syncs - before == 3

    asyncio.run(run())


def test_an_aborted_transaction_leaves_nothing() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            txn = await write_transaction(controller, segments, b"never")
            await controller.transactions.abort(STREAM, txn)
            await controller.transactions.abort(STREAM, txn)
            await finish_all(controller)
            await controller.transactions.abort(STREAM, txn)
            with pytest.raises(TransactionStateError):
                await controller.transactions.commit(STREAM, txn)
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.ABORTED
            assert set((await stream_bytes(controller, segments)).values()) == {b""}
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_unknown_transactions_are_named_as_such() -> None:
    async def run() -> None:
        async with with_stream(MemorySegments()) as controller:
            for call in (controller.transactions.commit, controller.transactions.abort):
                with pytest.raises(TransactionNotFoundError):
                    await call(STREAM, UNKNOWN)
                with pytest.raises(StreamNotFoundError):
                    await call(StreamName("s", "none"), UNKNOWN)
            assert await controller.transactions.status(STREAM, UNKNOWN) is TransactionStatus.UNKNOWN
            assert await controller.transactions.ping(STREAM, UNKNOWN, lease_ms=1000) is PingStatus.UNKNOWN
            assert await controller.transactions.list_completed(STREAM) == []

    asyncio.run(run())


def test_a_missed_lease_aborts_and_a_renewed_one_does_not() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            missed = await write_transaction(controller, segments, b"m")
            kept = await write_transaction(controller, segments, b"k")
            clock.ms += 9_999
            await controller.sweep()
            assert await controller.transactions.ping(STREAM, kept, lease_ms=10_000) is PingStatus.OK
            clock.ms += 1
            await controller.sweep()
            assert await controller.transactions.status(STREAM, missed) is TransactionStatus.ABORTED
            assert await controller.transactions.status(STREAM, kept) is TransactionStatus.OPEN
            assert await controller.transactions.ping(STREAM, missed, lease_ms=1000) is PingStatus.ABORTED
            assert await controller.transactions.ping(STREAM, kept, lease_ms=600_001) is PingStatus.LEASE_TOO_LARGE
            with pytest.raises(InvalidArgumentError):
                await controller.transactions.ping(STREAM, kept, lease_ms=0)
            await controller.transactions.commit(STREAM, kept)
            assert await controller.transactions.ping(STREAM, kept, lease_ms=1000) is PingStatus.COMMITTED
            await finish_all(controller)
            assert (await stream_bytes(controller, segments))[seg(0, 0)] == b"k"
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_no_renewal_outlives_the_lifetime() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        settings = ControllerSettings(sweep_ms=None, retention_cycle_ms=None, lifetime_leases=3)
        async with with_stream(segments, 1, clock, settings=settings) as controller:
            txn = (await controller.transactions.create(STREAM, lease_ms=10_000)).id
            for _ in range(3):
                clock.ms += 9_000
                assert await controller.transactions.ping(STREAM, txn, lease_ms=600_000) is PingStatus.OK
            clock.ms += 3_000
            assert await controller.transactions.ping(STREAM, txn, lease_ms=10_000) is PingStatus.MAX_LIFETIME
            await controller.sweep()
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.ABORTED

    asyncio.run(run())


def test_outcomes_are_remembered_for_a_day_and_then_forgotten() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            old = await write_transaction(controller, segments, b"o")
            await controller.transactions.commit(STREAM, old)
            await finish_all(controller)
            clock.ms += QUIET.completed_ms
            await controller.sweep()
            assert await controller.transactions.status(STREAM, old) is TransactionStatus.COMMITTED
            clock.ms += 1
            new = await write_transaction(controller, segments, b"n")
            await controller.transactions.commit(STREAM, new)
            await finish_all(controller)
            assert await controller.transactions.status(STREAM, old) is TransactionStatus.UNKNOWN
            assert await controller.transactions.list_completed(STREAM) == [(new, TransactionStatus.COMMITTED)]
            clock.ms += QUIET.completed_ms + 1
            await controller.sweep()
            assert not [key for key in table_keys(segments) if key.startswith(("done/", "done-at/", "txn/"))]

    asyncio.run(run())


def test_a_stream_scales_under_open_transactions_which_then_commit_in_their_own_ranges() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            early = await write_transaction(controller, segments, b"early")
            second = await write_transaction(controller, segments, b"+second")
            segments.write(name_of(seg(0, 0)), b"before")
            await scale_to(controller, 3)
            late = await write_transaction(controller, segments, b"late")
            assert await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[early, second])
            # Epoch 2 repeats epoch 0 with the merged bytes, epoch 3 repeats epoch 1 and is active.
            history = await stream_bytes(controller, segments)
            assert history[seg(0, 0)] == b"before"
            assert history[seg(2, 0)] == history[seg(2, 1)] == b"early+second"
            active = await controller.layout.current(STREAM)
            assert [item.segment for item in active] == [seg(3, 2), seg(3, 3), seg(3, 4)]
            # A segment of the scaled epoch is followed by the merged data, and that by the active epoch.
            assert {item.range.segment for item in await controller.layout.successors(STREAM, seg(1, 2))} <= {
                seg(2, 0),
                seg(2, 1),
            }
            # Its own epoch lives on in a duplicate with the same numbers and ranges: no rolling is needed.
            await controller.transactions.commit(STREAM, late)
            await finish_all(controller)
            assert (await controller.streams.describe(STREAM)).epoch == 3
            history = await stream_bytes(controller, segments)
            assert [history[item.segment] for item in active] == [b"late"] * 3
            description = await controller.streams.describe(STREAM)
            assert description.written_bytes == 6 + 2 * 12 + 3 * 4
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_sealing_aborts_what_is_open_and_finishes_what_was_decided() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            open_one = await write_transaction(controller, segments, b"open")
            decided = await write_transaction(controller, segments, b"decided")
            await controller.transactions.commit(STREAM, decided)
            await controller.streams.seal(STREAM)
            assert await controller.transactions.status(STREAM, open_one) is TransactionStatus.ABORTED
            assert await controller.transactions.status(STREAM, decided) is TransactionStatus.COMMITTED
            assert (await stream_bytes(controller, segments))[seg(0, 0)] == b"decided"
            assert (await controller.cuts.tail(STREAM)).positions == {seg(0, 0): 7}
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_transaction_begun_while_the_stream_is_sealed_is_either_aborted_or_refused() -> None:
    async def run() -> None:
        for delay in range(16):
            segments = MemorySegments()
            async with with_stream(segments, 1) as controller:

                async def later(controller=controller, delay=delay) -> None:
                    for _ in range(delay):
                        await asyncio.sleep(0)
                    await controller.streams.seal(STREAM)

                begun, _ = await asyncio.gather(
                    controller.transactions.create(STREAM, lease_ms=10_000), later(), return_exceptions=True
                )
                await finish_all(controller)
                if isinstance(begun, BaseException):
                    assert isinstance(begun, StreamSealedError), begun
                else:
                    assert await controller.transactions.status(STREAM, begun.id) is TransactionStatus.ABORTED
                await check_invariants(controller, segments)

    asyncio.run(run())


def test_only_one_of_commit_and_abort_is_ever_decided() -> None:
    async def run() -> None:
        for delay in range(10):
            segments = MemorySegments()
            async with with_stream(segments, 1) as controller:
                txn = await write_transaction(controller, segments, b"x")

                async def later(controller=controller, txn=txn, delay=delay) -> None:
                    for _ in range(delay):
                        await asyncio.sleep(0)
                    await controller.transactions.abort(STREAM, txn)

                committed, aborted = await asyncio.gather(
                    controller.transactions.commit(STREAM, txn), later(), return_exceptions=True
                )
                assert isinstance(committed, TransactionStatus) != (aborted is None)
                await finish_all(controller)
                status = await controller.transactions.status(STREAM, txn)
                expected = (
                    TransactionStatus.COMMITTED
                    if isinstance(committed, TransactionStatus)
                    else TransactionStatus.ABORTED
                )
                assert status is expected
                data = (await stream_bytes(controller, segments))[seg(0, 0)]
                assert data == (b"x" if isinstance(committed, TransactionStatus) else b"")

    asyncio.run(run())


def test_a_batch_commits_all_its_transactions_once() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            assert await controller.batches.last(STREAM, writer="query") is None
            txns = [await write_transaction(controller, segments, b"%d" % n) for n in range(3)]
            assert await controller.batches.commit(STREAM, writer="query", batch=7, transactions=txns)
            assert (await stream_bytes(controller, segments))[seg(0, 0)] == b"012"
            assert await controller.batches.last(STREAM, writer="query") == 7
            # The very same set again: it is known to be done.
            assert await controller.batches.commit(STREAM, writer="query", batch=7, transactions=txns)
            # Another attempt of the batch, or of an earlier one: its transactions are aborted.
            for batch in (7, 6):
                late = await write_transaction(controller, segments, b"late")
                assert not await controller.batches.commit(
                    STREAM, writer="query", batch=batch, transactions=[late, UNKNOWN]
                )
                await finish_all(controller)
                assert await controller.transactions.status(STREAM, late) is TransactionStatus.ABORTED
            assert not await controller.batches.commit(STREAM, writer="query", batch=6, transactions=txns)
            other = await write_transaction(controller, segments, b"o")
            assert await controller.batches.commit(STREAM, writer="another", batch=0, transactions=[other])
            assert await controller.batches.commit(STREAM, writer="query", batch=8, transactions=[])
            assert await controller.batches.last(STREAM, writer="query") == 8
            assert (await stream_bytes(controller, segments))[seg(0, 0)] == b"012o"
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_batch_with_a_dead_transaction_commits_nothing() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            dead = await write_transaction(controller, segments, b"dead")
            clock.ms += 10_000
            await controller.sweep()
            good = await write_transaction(controller, segments, b"good")
            for bad in (dead, UNKNOWN):
                with pytest.raises(TransactionNotFoundError):
                    await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[good, bad])
            assert await controller.batches.last(STREAM, writer="w") is None
            assert await controller.transactions.status(STREAM, good) is TransactionStatus.OPEN
            assert (await stream_bytes(controller, segments))[seg(0, 0)] == b""
            alone = await write_transaction(controller, segments, b"alone")
            await controller.transactions.commit(STREAM, alone)
            with pytest.raises(TransactionStateError):
                await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[alone])
            assert await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[good])
            for call in (
                controller.batches.commit(STREAM, writer="w", batch=-1, transactions=[]),
                controller.batches.commit(STREAM, writer="", batch=1, transactions=[]),
                controller.batches.commit(STREAM, writer="w", batch=1, transactions=[good, good]),
            ):
                with pytest.raises(InvalidArgumentError):
                    await call

    asyncio.run(run())


def test_a_batch_larger_than_one_table_batch_is_still_all_or_nothing() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            txns = [(await controller.transactions.create(STREAM, lease_ms=10_000)).id for _ in range(300)]
            for number, txn in enumerate(txns):
                segments.write(transaction_segment_name(name_of(seg(0, 0)), txn), b"%03d" % number)
            assert await controller.batches.commit(STREAM, writer="w", batch=0, transactions=txns)
            expected = b"".join(b"%03d" % number for number in range(300))
            assert (await stream_bytes(controller, segments))[seg(0, 0)] == expected
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_an_abort_that_races_a_batch_is_met_by_it() -> None:
    async def run() -> None:
        for delay in range(24):
            segments = MemorySegments()
            async with with_stream(segments, 1) as controller:
                txns = [await write_transaction(controller, segments, b"%d" % n) for n in range(2)]

                async def later(controller=controller, txns=txns, delay=delay) -> None:
                    for _ in range(delay):
                        await asyncio.sleep(0)
                    await controller.transactions.abort(STREAM, txns[1])

                committed, aborted = await asyncio.gather(
                    controller.batches.commit(STREAM, writer="w", batch=0, transactions=txns),
                    later(),
                    return_exceptions=True,
                )
                await finish_all(controller)
                data = (await stream_bytes(controller, segments))[seg(0, 0)]
                statuses = [await controller.transactions.status(STREAM, txn) for txn in txns]
                if committed is True:
                    assert isinstance(aborted, TransactionStateError)
                    assert data == b"01"
                    assert statuses == [TransactionStatus.COMMITTED] * 2
                else:
                    assert isinstance(committed, TransactionNotFoundError), committed
                    assert aborted is None
                    assert data == b""
                    assert statuses == [TransactionStatus.OPEN, TransactionStatus.ABORTED]
                await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_batch_whose_lease_ended_but_was_not_swept_commits() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            txn = await write_transaction(controller, segments, b"x")
            clock.ms += 20_000
            assert await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[txn])
            await controller.sweep()
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.COMMITTED

    asyncio.run(run())


def test_writers_that_know_the_key_share_a_transaction() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            found = await asyncio.gather(
                *(controller.transactions.join(STREAM, UNKNOWN, lease_ms=10_000) for _ in range(20))
            )
            assert len({item.id for item in found}) == 1
            shared = found[0]
            other = await controller.transactions.join(STREAM, UUID(int=1), lease_ms=10_000)
            assert other.id != shared.id
            # Whatever scales meanwhile, all of them write to the segments in which it was begun.
            await scale_to(controller, 3)
            late = await controller.transactions.join(STREAM, UNKNOWN, lease_ms=10_000)
            assert late == shared
            for item in shared.segments:
                segments.write(transaction_segment_name(name_of(item.segment), shared.id), b"x")
            assert await controller.batches.commit(STREAM, writer="w", batch=0, transactions=[shared.id])
            written = b"".join((await stream_bytes(controller, segments)).values())
            assert written == b"xx"
            assert not [key for key in table_keys(segments) if key == f"join/{STREAM}/{UNKNOWN.hex}"]
            # The key is free: a late caller gets a transaction that nobody will commit.
            assert (await controller.transactions.join(STREAM, UNKNOWN, lease_ms=10_000)).id != shared.id
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_shared_transaction_lives_as_long_as_one_of_its_writers_renews_it() -> None:
    async def run() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            shared = await controller.transactions.join(STREAM, UNKNOWN, lease_ms=10_000)
            for _ in range(5):
                clock.ms += 8_000
                assert await controller.transactions.join(STREAM, UNKNOWN, lease_ms=10_000) == shared
                await controller.sweep()
            clock.ms += 10_000
            await controller.sweep()
            assert await controller.transactions.status(STREAM, shared.id) is TransactionStatus.ABORTED
            assert not [key for key in table_keys(segments) if key.startswith("join/")]
            assert not [name for name in segments.segments if "#transaction" in name]
            for lease_ms in (1, 10_000_000):
                with pytest.raises(InvalidArgumentError):
                    await controller.transactions.join(STREAM, UNKNOWN, lease_ms=lease_ms)
            await controller.streams.seal(STREAM)
            with pytest.raises(StreamSealedError):
                await controller.transactions.join(STREAM, UNKNOWN, lease_ms=10_000)

    asyncio.run(run())


def filled(data: bytes, *, segments: int = 2, writer: int = 70) -> list[EventBlock]:
    """A block of one event for each segment, every one of a writer of its own."""
    return [
        EventBlock(segment=seg(0, number), writer=UUID(int=writer + number), event_count=1, data=data)
        for number in range(segments)
    ]


def test_events_that_come_with_a_commit_are_stored_once_however_often_it_is_repeated() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            txn = (await controller.transactions.create(STREAM, lease_ms=10_000)).id
            before = segments.syncs
            # What an attempt whose answer was lost has stored, of one segment.
            name = transaction_segment_name(name_of(seg(0, 1)), txn)
            block = filled(b"one")[1]
            await segments.append(
                Append(segment=name, writer=block.writer, data=b"one", event_number=1, previous=NO_EVENT)
            )
            commits = [controller.transactions.commit(STREAM, txn, blocks=filled(b"one")) for _ in range(3)]
            assert set(await asyncio.gather(*commits)) == {TransactionStatus.COMMITTED}
            assert segments.syncs > before
            await finish_all(controller)
            again = await controller.transactions.commit(STREAM, txn, blocks=filled(b"one"))
            assert again is TransactionStatus.COMMITTED
            assert set((await stream_bytes(controller, segments)).values()) == {b"one"}
            await check_invariants(controller, segments)

    asyncio.run(run())


def test_a_commit_with_events_that_the_transaction_cannot_take_decides_nothing() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            txn = (await controller.transactions.create(STREAM, lease_ms=10_000)).id
            foreign = EventBlock(segment=seg(0, 7), writer=UUID(int=7), event_count=1, data=b"x")
            with pytest.raises(InvalidArgumentError, match="no segment of the transaction"):
                await controller.transactions.commit(STREAM, txn, blocks=[foreign])
            await controller.transactions.commit(STREAM, txn, blocks=[])
            late = (await controller.transactions.create(STREAM, lease_ms=10_000)).id
            (first, _), (other, _) = filled(b"1"), filled(b"22")
            await controller.transactions.abort(STREAM, late)
            await finish_all(controller)
            with pytest.raises(TransactionStateError):
                await controller.transactions.commit(STREAM, late, blocks=[first])
            with pytest.raises(TransactionNotFoundError):
                await controller.transactions.commit(STREAM, UNKNOWN, blocks=[first])
            open_one = (await controller.transactions.create(STREAM, lease_ms=10_000)).id
            name = transaction_segment_name(name_of(seg(0, 0)), open_one)
            await segments.append(
                Append(segment=name, writer=other.writer, data=b"22", event_number=2, event_count=2, previous=NO_EVENT)
            )
            with pytest.raises(InvalidArgumentError, match="something else"):
                await controller.transactions.commit(STREAM, open_one, blocks=[first])
            assert await controller.transactions.status(STREAM, open_one) is TransactionStatus.OPEN
            assert set((await stream_bytes(controller, segments)).values()) == {b""}

    asyncio.run(run())
