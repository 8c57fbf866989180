"""What other threads post to the loop: in order, each once, and the loop woken once for all that waits."""

from __future__ import annotations

import threading
from contextlib import asynccontextmanager

import pytest

from penstock.client.blocking.loop_thread import LoopThread
from penstock.model.errors import NotConnectedError


@asynccontextmanager
async def nothing():
    yield (None, None)


@pytest.fixture
def thread():
    thread = LoopThread(nothing)
    yield thread
    thread.close()


def settle(thread):
    thread.call_back(lambda answer: answer())


def test_posts_run_in_order_and_wake_the_loop_once_while_it_is_busy(thread, monkeypatch):
    woken, real = [], thread.loop.call_soon_threadsafe

    class Counted:
        def __getattr__(self, name):
            return getattr(loop, name)

        def call_soon_threadsafe(self, call, *arguments):
            woken.append(call)
            return real(call, *arguments)

    loop = thread.loop
    monkeypatch.setattr(thread, "loop", Counted())
    gate, entered, seen = threading.Event(), threading.Event(), []

    def block():
        entered.set()
        gate.wait(10)

    thread.post(block)
    assert entered.wait(10)
    for number in range(1000):
        thread.post(seen.append, number)
    assert len(woken) == 2
    gate.set()
    settle(thread)
    assert seen == list(range(1000))
    for number in range(50):
        thread.post(seen.append, number)
        settle(thread)
    assert seen[1000:] == list(range(50))
    monkeypatch.undo()


def test_many_threads_lose_no_post(thread):
    seen = []

    def post(name):
        for number in range(2000):
            thread.post(seen.append, (name, number))

    posters = [threading.Thread(target=post, args=(name,)) for name in range(4)]
    for poster in posters:
        poster.start()
    for poster in posters:
        poster.join()
    settle(thread)
    assert len(seen) == 8000
    assert all([number for name, number in seen if name == one] == list(range(2000)) for one in range(4))


def test_a_call_that_fails_is_told_of_and_takes_nothing_along(thread):
    reported, seen = [], []
    thread.loop.set_exception_handler(lambda _, context: reported.append(repr(context["exception"])))

    def fail():
        raise ValueError("a bug")

    thread.post(fail)
    thread.post(seen.append, 1)
    settle(thread)
    assert (seen, reported) == ([1], ["ValueError('a bug')"])


def test_an_interrupted_post_does_not_silence_those_behind_it(thread, monkeypatch):
    class Interrupted:
        def call_soon_threadsafe(self, call, *arguments):
            raise KeyboardInterrupt

    seen, loop = [], thread.loop
    monkeypatch.setattr(thread, "loop", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        thread.post(seen.append, 1)
    monkeypatch.setattr(thread, "loop", loop)
    thread.post(seen.append, 2)
    settle(thread)
    assert seen == [1, 2]


def test_posting_to_a_loop_that_has_ended_is_an_error():
    thread = LoopThread(nothing)
    thread.close()
    for _ in range(2):
        with pytest.raises(NotConnectedError):
            thread.post(print)
