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
                assert await txn.status() in (TransactionStatus.ABORTING, TransactionStatus.ABORTED)
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
