"""Another thread does the loop's work between its turns: one at a time, nobody kept out, and no signal in between."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from penstock.client import visited_loop
from penstock.client.visited_loop import VisitedLoop
from penstock.model.errors import NotConnectedError

WAIT_S = 20.0


@pytest.fixture
def loop():
    made = VisitedLoop()

    def run():
        asyncio.set_event_loop(made)
        made.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(WAIT_S)
    made.close()


def in_loop(loop, call=lambda: None):
    """Call it in the loop's thread, and return once that is done."""
    done = threading.Event()

    def run():
        call()
        done.set()

    loop.call_soon_threadsafe(run)
    assert done.wait(WAIT_S)


def test_a_visitor_is_in_the_loop_and_what_it_asks_for_is_done_in_its_thread_once(loop):
    here, seen = threading.get_ident(), []

    def first():
        assert asyncio.get_running_loop() is loop
        seen.append(("first", threading.get_ident()))
        loop.call_soon(second)
        loop.call_soon(seen.append, "cancelled").cancel()

    def second():
        seen.append(("second", threading.get_ident()))
        loop.call_soon(third)

    def third():
        seen.append(("third", threading.get_ident()))

    assert loop.visit(first, WAIT_S)
    assert seen[:2] == [("first", here), ("second", here)]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    in_loop(loop)
    assert [name for name, _ in seen] == ["first", "second", "third"]
    assert seen[2][1] != here


def test_a_visitor_may_be_in_a_loop_of_its_own(loop, monkeypatch):
    monkeypatch.setattr(visited_loop, "_TASKS_ARE_OF_THREADS", False)

    async def main():
        own, seen = asyncio.get_running_loop(), []
        assert loop.visit(lambda: seen.append(asyncio.get_running_loop()), WAIT_S)
        await asyncio.sleep(0)
        return seen == [loop] and asyncio.get_running_loop() is own

    assert asyncio.run(main())


def test_a_visitor_with_a_task_of_its_own_is_refused_where_a_thread_has_one_task(loop, monkeypatch):
    monkeypatch.setattr(visited_loop, "_TASKS_ARE_OF_THREADS", True)
    seen = []

    async def main():
        return loop.visit(lambda: seen.append("in a task"), WAIT_S)

    assert asyncio.run(main()) is False
    assert loop.visit(lambda: seen.append("in none"), WAIT_S)
    assert seen == ["in none"]


def test_tasks_and_timers_of_a_visitor_are_the_loops(loop):
    done, where = threading.Event(), []

    async def work():
        where.append(threading.get_ident())
        await asyncio.sleep(0.001)
        done.set()

    tasks = []
    assert loop.visit(lambda: tasks.append(loop.create_task(work())), WAIT_S)
    assert done.wait(WAIT_S)
    rung = threading.Event()
    # Nothing else is there to wake the loop, which rests without end.
    assert loop.visit(lambda: loop.call_later(0.001, rung.set), WAIT_S)
    assert rung.wait(WAIT_S)


def test_the_loop_and_its_visitors_take_turns(loop):
    inside, most, done = [0], [0], []

    def work():
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.0005)
        inside[0] -= 1

    def visit():
        for _ in range(50):
            assert loop.visit(work, WAIT_S)
        done.append(1)

    threads = [threading.Thread(target=visit) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        loop.call_soon_threadsafe(work)
    for thread in threads:
        thread.join(WAIT_S)
    in_loop(loop)
    assert len(done) == 3
    assert most[0] == 1


def test_a_loop_that_never_rests_lets_visitors_in(loop):
    going = [True]

    def again():
        if going[0]:
            loop.call_soon(again)

    loop.call_soon_threadsafe(again)
    try:
        for _ in range(20):
            assert loop.visit(lambda: None, WAIT_S)
    finally:
        going[0] = False


def test_a_visitor_that_never_rests_lets_the_loop_go_on(loop):
    rung = threading.Event()
    loop.call_soon_threadsafe(loop.call_later, 0.001, rung.set)
    visits = 0
    while not rung.is_set():
        assert loop.visit(lambda: None, WAIT_S)
        visits += 1
        assert visits < 10_000_000


def test_no_turn_in_time_means_that_nothing_was_done(loop):
    held, entered, seen = threading.Event(), threading.Event(), []

    def block():
        entered.set()
        held.wait(WAIT_S)

    loop.call_soon_threadsafe(block)
    assert entered.wait(WAIT_S)
    assert not loop.visit(lambda: seen.append(1), 0.01)
    held.set()
    in_loop(loop)
    assert loop.visit(lambda: seen.append(2), WAIT_S)
    assert seen == [2]


class Late(BaseException):
    """What a handler raises."""


def test_signals_are_handled_when_the_work_is_done(loop):
    seen = []

    def handler(number, frame):
        seen.append(number)
        raise Late

    def work():
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGINT)
        seen.append("work")
        loop.call_soon(seen.append, "soon")

    before = signal.signal(signal.SIGUSR1, handler)
    # Another test of this process may have left one of its own, as Spark does.
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            seen.clear()
            with pytest.raises((Late, KeyboardInterrupt)):
                loop.visit(work, WAIT_S)
            assert seen[:3] == ["work", "soon", signal.SIGUSR1]
            assert signal.getsignal(signal.SIGUSR1) is handler
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, interrupted)
        signal.signal(signal.SIGUSR1, before)


def test_no_signal_is_lost_to_another_whose_handler_raises(loop):
    seen = []

    def handler(number, frame):
        seen.append(number)
        raise Late

    def work():
        for number in numbers:
            signal.raise_signal(number)
        seen.append("work")

    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
    before = [(number, signal.signal(number, handler)) for number in numbers]
    try:
        with pytest.raises(Late):
            loop.visit(work, WAIT_S)
        assert seen == ["work", *numbers]
        assert all(signal.getsignal(number) is handler for number in numbers)
    finally:
        for number, one in before:
            signal.signal(number, one)


def test_interruptions_at_any_moment_leave_whole_visits_and_the_handlers_in_place(loop):
    begun = ended = caught = 0
    stop = threading.Event()

    def work():
        nonlocal begun, ended
        begun += 1
        sum(range(200))
        ended += 1

    def handler(number, frame):
        raise Late

    def disturb():
        while not stop.wait(0.0007):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=disturb)
    try:
        thread.start()
        for _ in range(3000):
            try:
                loop.visit(work, WAIT_S)
                assert begun == ended
            except Late:
                caught += 1
    except Late:
        pass  # the next one came while the last was being counted
    finally:
        while thread.is_alive():
            try:
                stop.set()
                thread.join(WAIT_S)
            except Late:
                continue
        assert signal.getsignal(signal.SIGUSR1) is handler
        signal.signal(signal.SIGUSR1, before)
    assert begun == ended
    in_loop(loop)
    assert loop.visit(work, WAIT_S)


def test_a_closed_loop_is_told_of():
    loop = VisitedLoop()
    loop.close()
    with pytest.raises(NotConnectedError):
        loop.visit(lambda: None, WAIT_S)
