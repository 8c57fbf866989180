"""Blocking calls in threads: bounded, in order, to their end, and holding nothing afterwards."""

from __future__ import annotations

import asyncio
import threading
import weakref

import pytest

from penstock.model.errors import InternalError
from penstock.storage.machine.offload import ThreadOffload

PATIENCE_S = 20.0


def run(test) -> None:
    async def main() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(main())


def test_no_more_calls_run_at_once_than_there_are_threads() -> None:
    lock, most, now = threading.Lock(), [0], [0]
    both = threading.Barrier(3)

    def work(number: int) -> int:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        both.wait(PATIENCE_S)
        with lock:
            now[0] -= 1
        return number

    async def body() -> None:
        async with ThreadOffload(threads=3, queue=2) as offload:
            found = await asyncio.gather(*(offload.run(lambda number=number: work(number)) for number in range(30)))
        assert found == list(range(30))
        assert most == [3]

    run(body)


def test_calls_of_one_thread_run_in_the_order_of_the_calls() -> None:
    async def body() -> None:
        seen: list[int] = []
        async with ThreadOffload(threads=1, queue=3) as offload:
            await asyncio.gather(*(offload.run(lambda number=number: seen.append(number)) for number in range(50)))
        assert seen == list(range(50))

    run(body)


def test_a_call_whose_caller_is_gone_runs_to_its_end_and_closing_waits_for_it() -> None:
    async def body() -> None:
        begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            go_on.wait(PATIENCE_S)
            ended.set()

        offload = ThreadOffload(threads=1, queue=1)
        task = asyncio.ensure_future(offload.run(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        closing = asyncio.ensure_future(offload.close())
        await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        await closing
        assert ended.is_set()
        with pytest.raises(InternalError):
            await offload.run(work)

    run(body)


def test_errors_reach_the_caller_and_the_thread_goes_on() -> None:
    def broken() -> None:
        raise OSError("disk error")

    async def body() -> None:
        async with ThreadOffload(threads=1) as offload:
            for _ in range(3):
                with pytest.raises(OSError, match="disk error"):
                    await offload.run(broken)
            assert await offload.run(lambda: 7) == 7

    run(body)


def test_an_idle_thread_holds_nothing_of_its_last_call() -> None:
    class Big:
        pass

    async def body() -> None:
        async with ThreadOffload(threads=1) as offload:
            big = Big()
            gone = weakref.ref(big)
            await offload.run(lambda big=big: None)
            del big
            while gone() is not None:
                await asyncio.sleep(0)

    run(body)


def test_a_call_that_outlives_its_loop_is_forgotten() -> None:
    begun, go_on = threading.Event(), threading.Event()
    offload = ThreadOffload(threads=1)

    def work() -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    async def leave() -> None:
        task = asyncio.ensure_future(offload.run(work))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    go_on.set()
    (thread,) = offload._threads
    offload._calls.put(None)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_a_close_with_a_limit_leaves_work_that_hangs_behind() -> None:
    async def body() -> None:
        offload, hangs = ThreadOffload(threads=2), threading.Event()
        working = asyncio.ensure_future(offload.run(hangs.wait))
        await offload.run(lambda: None)
        try:
            async with asyncio.timeout(10):
                await offload.close(wait_s=0.05)
            assert not working.done()
        finally:
            hangs.set()
        assert await working, "its result still arrives"

    asyncio.run(body())


def test_a_part_is_idle_once_its_calls_have_ended_even_those_that_were_cancelled() -> None:
    begun, end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        end.wait(PATIENCE_S)

    async def body() -> None:
        async with ThreadOffload(threads=1, queue=1) as offload:
            part, other = offload.part(), offload.part()
            calls = [asyncio.ensure_future(part.run(work)) for _ in range(3)]
            await asyncio.to_thread(begun.wait, PATIENCE_S)
            assert part.running == 2, "the third has no place yet"
            assert other.running == 0
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
            idle = asyncio.Event()
            part.when_idle(idle.set)
            assert not idle.is_set()
            end.set()
            await idle.wait()
            assert part.running == 0
            idle.clear()
            part.when_idle(idle.set)
            assert idle.is_set()
            assert await other.run(lambda: 7) == 7

    run(body)
