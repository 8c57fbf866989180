"""An answer is settled once, wakes all that wait, and its work ends when nobody wants it."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from penstock.client.blocking.answer import Answer

WAIT_S = 20.0


def test_it_waits_and_gives_the_result_as_often_as_it_is_asked():
    answer: Answer[str] = Answer()
    with pytest.raises(TimeoutError):
        answer.result(0.001)
    assert not answer.done
    teller = threading.Timer(0.01, answer.set_result, ("said",))
    teller.start()
    assert [answer.result(WAIT_S), answer.result(0), answer.done] == ["said", "said", True]
    teller.join()


def test_an_error_is_raised_as_often_as_it_is_asked_for():
    answer: Answer[None] = Answer()
    answer.set_error(TimeoutError("of the work"))
    for _ in range(2):
        with pytest.raises(TimeoutError, match="of the work"):
            answer.result(WAIT_S)
    assert answer.done


@pytest.mark.parametrize("first", ["result", "error", "cancel"])
def test_what_comes_first_counts(first):
    answer: Answer[int] = Answer()
    ended = []
    answer.on_cancel(lambda: ended.append(1))
    acts = {
        "result": lambda: answer.set_result(1),
        "error": lambda: answer.set_error(KeyError("2")),
        "cancel": answer.cancel,
    }
    acts.pop(first)()
    for act in acts.values():
        act()
    if first == "result":
        assert answer.result(0) == 1
    else:
        with pytest.raises(KeyError if first == "error" else CancelledError):
            answer.result(0)
    assert answer.cancelled == (first == "cancel")
    assert ended == [1] * (first == "cancel")


def test_work_that_begins_after_it_was_given_up_is_ended_at_once_and_once():
    answer: Answer[int] = Answer()
    answer.cancel()
    ended = []
    answer.on_cancel(lambda: ended.append(1))
    answer.cancel()
    assert ended == [1]
    assert answer.done
