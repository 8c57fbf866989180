"""Laws of transactions: all or nothing, in order per key, whatever is lost, and across scaling."""

from __future__ import annotations

import asyncio

import pytest
from client_world import read_all, simulate

from penstock.model.errors import InvalidArgumentError, TransactionStateError
from penstock.ports.controller_service import TransactionStatus


@pytest.mark.parametrize("seed", range(6))
def test_a_transaction_is_read_once_whole_or_not_at_all_under_loss(seed):
    async def test(world):
        await world.safe.create_stream("a/s", create_scope=True)
        stream = world.store.stream("a/s")
        expected = []
        for number in range(8):
            try:
                async with stream.transaction(block_bytes=1024) as txn:
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
