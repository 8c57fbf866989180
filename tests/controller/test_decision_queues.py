"""The commit queue as one process knows it: no search for its own decisions, and none of another's left behind."""

from __future__ import annotations

import asyncio

import pytest
from controller_world import (
    QUIET,
    STREAM,
    finish_all,
    opened,
    scale_to,
    seg,
    stream_bytes,
    with_stream,
    write_transaction,
)
from memory_segments import MemorySegments

from penstock.controller.transactions.decision_queues import DecisionQueues
from penstock.controller.transactions.decisions import decide
from penstock.core.streams.transactions import Verb
from penstock.model.names import StreamName
from penstock.ports.control.transactions import TransactionStatus

OTHER = StreamName("s", "other")


def test_a_queue_is_known_once_the_table_was_looked_at_and_until_it_is_forgotten() -> None:
    queues = DecisionQueues()
    queues.added(STREAM, 7)
    assert queues.waiting(STREAM, limit=9) is None
    queues.found(STREAM, [5, 6], all_there_are=True)
    assert queues.waiting(STREAM, limit=9) == [5, 6, 7]
    assert queues.waiting(STREAM, limit=2) == [5, 6]
    queues.gone(STREAM, [6])
    queues.gone(OTHER, [6])
    assert queues.waiting(STREAM, limit=9) == [5, 7]
    assert queues.waiting(OTHER, limit=9) is None
    queues.forget(STREAM)
    assert queues.waiting(STREAM, limit=9) is None


def test_a_page_that_was_full_leaves_the_rest_to_the_table() -> None:
    queues = DecisionQueues()
    queues.found(STREAM, [1, 2], all_there_are=False)
    assert queues.waiting(STREAM, limit=9) is None


def test_a_commit_answers_when_the_events_are_readable() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 2) as controller:
            txns = [await write_transaction(controller, segments, b"%d" % n) for n in range(5)]
            answers = await asyncio.gather(*(controller.transactions.commit(STREAM, txn) for txn in txns))
            assert answers == [TransactionStatus.COMMITTED] * 5
            assert set((await stream_bytes(controller, segments)).values()) == {b"01234"}
            assert [await controller.transactions.status(STREAM, txn) for txn in txns] == answers
            assert await controller.transactions.commit(STREAM, txns[0]) is TransactionStatus.COMMITTED
            assert not controller._ctx.transactions.outcomes._waiting

    asyncio.run(run())


def test_a_commit_that_takes_long_answers_that_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.controller.transactions.calls.COMMIT_S", 0.01)

    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            txn = await write_transaction(controller, segments, b"x")
            async with controller._ctx.locks.hold(f"stream/{STREAM}"):
                assert await controller.transactions.commit(STREAM, txn) is TransactionStatus.COMMITTING
            await finish_all(controller)
            assert await controller.transactions.status(STREAM, txn) is TransactionStatus.COMMITTED
            assert not controller._ctx.transactions.outcomes._waiting

    asyncio.run(run())


def test_commits_of_one_process_search_no_queue_and_share_their_merges() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments, 1) as controller:
            warm = await write_transaction(controller, segments, b"-")
            await controller.transactions.commit(STREAM, warm)
            txns = [await write_transaction(controller, segments, b"%02d" % n) for n in range(20)]
            scans = 0
            scan = segments.table_scan

            async def counted(*arguments, **named):
                nonlocal scans
                scans += 1
                return await scan(*arguments, **named)

            segments.table_scan = counted  # type: ignore[method-assign]
            before = segments.syncs
            await asyncio.gather(*(controller.transactions.commit(STREAM, txn) for txn in txns))
            assert scans == 0
            # Decisions, merges and completions of all: not one of each for each of them.
            assert segments.syncs - before < 20
            merged = (await stream_bytes(controller, segments))[seg(0, 0)]
            assert merged == b"-" + b"".join(b"%02d" % n for n in range(20))

    asyncio.run(run())


@pytest.mark.parametrize("way", ["sweep", "seal"])
def test_what_a_process_decided_that_died_is_performed_by_another_that_knows_the_queue(way: str) -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as mine, opened(segments, settings=QUIET) as other:
            first = await write_transaction(mine, segments, b"1")
            await mine.transactions.commit(STREAM, first)
            assert mine._ctx.transactions.queues.waiting(STREAM, limit=9) == []
            foreign = await write_transaction(other, segments, b"2")
            await decide(other._ctx, STREAM, foreign, Verb.COMMIT)
            if way == "sweep":
                await mine.sweep()
            else:
                await mine.streams.seal(STREAM)
            assert await mine.transactions.status(STREAM, foreign) is TransactionStatus.COMMITTED
            assert (await stream_bytes(mine, segments))[seg(0, 0)] == b"12"

    asyncio.run(run())


def test_two_processes_that_decide_at_once_take_different_places() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as mine, opened(segments, settings=QUIET) as other:
            pairs = [(one, await write_transaction(one, segments, b"x")) for _ in range(6) for one in (mine, other)]
            await asyncio.gather(*(one.transactions.commit(STREAM, txn) for one, txn in pairs))
            await finish_all(mine)
            await finish_all(other)
            assert (await stream_bytes(mine, segments))[seg(0, 0)] == b"x" * 12
            assert {await mine.transactions.status(STREAM, txn) for _, txn in pairs} == {TransactionStatus.COMMITTED}

    asyncio.run(run())


def test_a_merge_that_is_not_plain_ends_the_run_and_the_rest_follows_in_order() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            txns = [await write_transaction(controller, segments, b"%d" % n) for n in range(4)]
            async with controller._ctx.locks.hold(f"stream/{STREAM}"):
                for txn in txns:
                    await decide(controller._ctx, STREAM, txn, Verb.COMMIT)
                # The first was merged by a run that died before it could say so.
                (target,) = [name for name in segments.segments if name.endswith("/0.#epoch.0")][:1]
                source = next(name for name in segments.segments if txns[0].hex[16:] in name)
                await segments.merge(target, source)
            await finish_all(controller)
            assert (await stream_bytes(controller, segments))[seg(0, 0)] == b"0123"

    asyncio.run(run())


def test_a_roll_in_the_middle_of_the_queue_keeps_the_order() -> None:
    async def run() -> None:
        segments = MemorySegments()
        async with with_stream(segments) as controller:
            old = await write_transaction(controller, segments, b"old")
            await scale_to(controller, 2)
            new = await write_transaction(controller, segments, b"new")
            async with controller._ctx.locks.hold(f"stream/{STREAM}"):
                for txn in (new, old):
                    await decide(controller._ctx, STREAM, txn, Verb.COMMIT)
            await finish_all(controller)
            states = {await controller.transactions.status(STREAM, txn) for txn in (old, new)}
            assert states == {TransactionStatus.COMMITTED}
            assert sorted(value for value in (await stream_bytes(controller, segments)).values() if value) == sorted(
                [b"new", b"new", b"old"]
            )
            assert not await controller._ctx.metadata.scan(b"queue/")

    asyncio.run(run())
