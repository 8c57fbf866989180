"""Laws of transactions: all or nothing, in order per key, whatever is lost, and across scaling."""

from __future__ import annotations

import asyncio

import pytest
from client_world import read_all, simulate

from penstock.client.store import AsyncStore
from penstock.model.errors import (
    InvalidArgumentError,
    NotConnectedError,
    QuotaExceededError,
    QuotaHeldError,
    StorageFullError,
    ThrottledError,
    TransactionStateError,
    UnsupportedError,
)
from penstock.model.names import segment_name, transaction_segment_name
from penstock.ports.control.transactions import TransactionStatus
from penstock.ports.data.segments import NO_EVENT, Append
from tests.flat_control import FlatControl


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_bytes", [1024, 1 << 20], ids=["by the writer", "with the commit"])
def test_a_transaction_is_read_once_whole_or_not_at_all_under_loss(seed, block_bytes):
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        stream = world.store.stream("a/s")
        expected = []
        for number in range(8):
            try:
                async with stream.transaction(block_bytes=block_bytes) as txn:
                    for event in range(100):
                        await txn.write(f"{number}:{event}", "k")
                    assert await read_all(world.safe.stream("a/s")) == expected
                    if number % 3 == 1:
                        raise RuntimeError("while writing")
            except RuntimeError:
                assert number % 3 == 1
                assert await txn.status() is TransactionStatus.ABORTED
            else:
                expected += [b"%d:%d" % (number, event) for event in range(100)]
                assert await txn.status() is TransactionStatus.COMMITTED
            assert await read_all(world.safe.stream("a/s")) == expected

    simulate(test, seed=seed, loss=0.1)


class Refusing(FlatControl):
    """A controller that takes a commit with events only after it has refused some, having stored the first block of each."""

    def __init__(self, inner, segments, errors):
        self._inner, self._segments, self._errors = inner, segments, errors
        self.asked = 0

    async def transactions_commit(self, stream, txn, *, blocks=(), noted=None):
        if not blocks:
            return await self._inner.transactions.commit(stream, txn, noted=noted)
        self.asked += 1
        block = blocks[0]
        await self._segments.append(
            Append(
                segment=transaction_segment_name(segment_name(stream, block.segment), txn),
                writer=block.writer,
                data=block.data,
                event_number=block.event_count,
                event_count=block.event_count,
                previous=NO_EVENT,
            )
        )
        raise self._errors.pop()


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedError("an older server"),
        ThrottledError("busy", resource="bytes", limit=1),
        StorageFullError("disk is full"),
        QuotaHeldError("backlog quota is reached"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_events_that_a_commit_cannot_take_go_by_the_writer_each_once(error):
    async def test(world):
        await world.safe.create_stream("a/s", segments=3, create_scope=True)
        refusing = Refusing(world.controller, world.real_segments, [error])
        stream = AsyncStore(world.segments, refusing, world.clock, world.rng).stream("a/s")
        async with stream.transaction() as txn:
            await txn.write_many([b"%d" % number for number in range(30)], [f"k{number}" for number in range(30)])
        assert refusing.asked == 1
        assert sorted(await read_all(world.safe.stream("a/s"))) == sorted(b"%d" % number for number in range(30))
        assert await txn.status() is TransactionStatus.COMMITTED

    simulate(test)


def test_a_quota_that_refuses_a_commit_with_events_leaves_the_transaction_undecided():
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        refusing = Refusing(world.controller, world.real_segments, [QuotaExceededError("quota", stream="a/s")])
        stream = AsyncStore(world.segments, refusing, world.clock, world.rng).stream("a/s")
        txn = stream.transaction()
        await txn.open()
        await txn.write(b"x", "k")
        with pytest.raises(QuotaExceededError):
            await txn.commit()
        assert await txn.status() is TransactionStatus.OPEN
        await txn.abort()
        assert await read_all(world.safe.stream("a/s")) == []

    simulate(test)


class Silent(FlatControl):
    """A controller whose answers to commits get lost: ``times`` of them, of which some were heard."""

    def __init__(self, inner, times, *, heard):
        self._inner, self._times, self._heard = inner, times, heard

    async def transactions_commit(self, stream, txn, **blocks):
        if self._times <= 0:
            return await self._inner.transactions.commit(stream, txn, **blocks)
        self._times -= 1
        if self._heard:
            await self._inner.transactions.commit(stream, txn, **blocks)
        raise NotConnectedError("answer lost")


@pytest.mark.parametrize("heard", [False, True], ids=["unheard", "heard"])
def test_a_commit_that_failed_is_asked_for_again_with_all_events(heard):
    async def test(world):
        await world.safe.create_stream("a/s", segments=3, create_scope=True)
        silent = Silent(world.controller, 1, heard=heard)
        txn = AsyncStore(world.segments, silent, world.clock, world.rng).stream("a/s").transaction()
        await txn.open()
        await txn.write_many([b"%d" % number for number in range(30)], [f"k{number}" for number in range(30)])
        with pytest.raises(NotConnectedError):
            await txn.commit(deadline_s=0)
        for write in (txn.write(b"x", "k"), txn.write_many([b"x"]), txn.flush()):
            with pytest.raises(TransactionStateError, match="takes no more events"):
                await write
        await txn.commit()
        assert sorted(await read_all(world.safe.stream("a/s"))) == sorted(b"%d" % number for number in range(30))

    simulate(test)


def test_a_commit_that_a_quota_refused_is_asked_for_again_with_all_events():
    async def test(world):
        await world.safe.create_stream("a/s", segments=3, create_scope=True)
        refusing = Refusing(world.controller, world.real_segments, [QuotaExceededError("quota", stream="a/s")])
        txn = AsyncStore(world.segments, refusing, world.clock, world.rng).stream("a/s").transaction()
        await txn.open()
        await txn.write_many([b"%d" % number for number in range(30)], [f"k{number}" for number in range(30)])
        with pytest.raises(QuotaExceededError):
            await txn.commit()
        refusing.transactions_commit = world.controller.transactions.commit
        await txn.commit()
        assert sorted(await read_all(world.safe.stream("a/s"))) == sorted(b"%d" % number for number in range(30))

    simulate(test)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [10, 300], ids=["with the commit", "by the writer"])
def test_a_commit_that_is_interrupted_again_and_again_commits_all_or_nothing(seed, count):
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        txn = world.store.stream("a/s").transaction()
        await txn.open()
        expected = [b"%d:" % number + bytes(1000) for number in range(count)]
        await txn.write_many(expected, ["k"] * count)
        for wait_s in (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 1.0, 60.0):
            try:
                async with asyncio.timeout(wait_s):
                    await txn.commit()
            except TimeoutError:
                continue
            except TransactionStateError:
                break  # Decided, by a call that was interrupted.
        status = await txn.status()
        assert await read_all(world.safe.stream("a/s")) == (expected if status is TransactionStatus.COMMITTED else [])

    simulate(test, seed=seed, loss=0.1)


def test_more_than_waits_for_the_commit_is_sent_before_it_in_order():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        event = bytes(1000)
        async with stream.transaction() as txn:
            for number in range(150):
                await txn.write(b"%03d" % number + event, "k")
            await txn.flush()
            await txn.write(b"last", "k")
        assert [data[:4].rstrip(b"\0") for data in await read_all(stream)] == [
            *(b"%03d" % number for number in range(150)),
            b"last",
        ]

    simulate(test)


def test_a_transaction_outlives_a_scale_of_its_stream():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.writer() as writer, stream.transaction() as txn:
            await txn.write(b"2", "k")
            await writer.write(b"1", "k")
            await writer.flush()
            await stream.scale(3)
            await txn.commit()
            await writer.write(b"3", "k")
        assert await read_all(stream) == [b"1", b"2", b"3"]

    simulate(test)


def test_an_open_transaction_keeps_its_lease_and_a_lost_one_says_so():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        async with stream.transaction(lease_s=10) as txn:
            await asyncio.sleep(120)
            assert await txn.status() is TransactionStatus.OPEN
            await txn.write(b"x")
        assert await read_all(stream) == [b"x"]
        async with stream.transaction(lease_s=10) as lost:
            await stream.seal()  # aborts what is open
            await asyncio.sleep(15)
            with pytest.raises(TransactionStateError):
                await lost.write(b"y")
            await lost.abort()
        with pytest.raises(TransactionStateError):
            await lost.commit()
        with pytest.raises(InvalidArgumentError):
            stream.transaction(lease_s=1)
        assert await read_all(stream) == [b"x"]

    simulate(test)


@pytest.mark.parametrize("size_bytes", [10, 100_000], ids=["sent with the commit", "sent before it"])
def test_the_writer_of_a_transaction_that_another_call_aborted_learns_why_it_cannot_commit(size_bytes):
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        txn = stream.transaction()
        await txn.open()
        await txn.write(bytes(size_bytes))
        await stream.abort_transaction(txn.id)
        with pytest.raises(TransactionStateError, match=r"abort(ed|ing)"):
            await txn.commit()
        assert await read_all(stream) == []

    simulate(test)


def test_a_transaction_takes_events_only_between_its_beginning_and_its_end():
    async def test(world):
        stream = await world.store.create_stream("a/s", create_scope=True)
        never = stream.transaction()
        committed, aborted = stream.transaction(), stream.transaction()
        async with committed:
            await committed.write(b"1")
            assert committed.id.int != 0
        await aborted.open()
        await aborted.open()
        await aborted.write(b"2")
        await aborted.abort()
        assert await aborted.status() is TransactionStatus.ABORTED
        for txn, error in (
            (never, InvalidArgumentError),
            (committed, TransactionStateError),
            (aborted, TransactionStateError),
        ):
            for use in (txn.write(b"late"), txn.write_many([b"late"]), txn.write_many([]), txn.flush(), txn.commit()):
                with pytest.raises(error):
                    await use
        for txn in (committed, aborted):
            with pytest.raises(TransactionStateError, match="begin another"):
                await txn.__aenter__()
        assert await read_all(stream) == [b"1"]

    simulate(test)


def test_an_async_writer_opens_itself_once_for_all_who_write():
    async def test(world):
        stream = await world.store.create_stream("a/s", segments=3, create_scope=True)
        writer = stream.writer()
        await asyncio.gather(*(writer.write(b"%d" % number, "k") for number in range(20)))
        with pytest.raises(InvalidArgumentError, match="routing key"):
            await stream.writer().write(b"x", [])
        await writer.close()
        with pytest.raises(InvalidArgumentError, match="closed"):
            await writer.write(b"late", "k")
        assert sorted(await read_all(stream)) == sorted(b"%d" % number for number in range(20))

    simulate(test)
