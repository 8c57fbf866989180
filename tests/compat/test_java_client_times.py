"""The official Java client, as in ``test_java_client.py``: times that writers note, and the windows that readers get."""

from __future__ import annotations

import pytest
from java_client import JavaClient, Steps

pytestmark = [pytest.mark.server, pytest.mark.java]

# ``back``: the lower bound went back. ``late``: an event came whose time the lower bound had covered.
SOUND = {"back": 0, "late": 0}


@pytest.mark.parametrize("writers", ["one", "two", "transactions"])
def test_time_windows_of_readers_advance_and_follow_the_slower_writer(client: JavaClient, writers: str) -> None:
    assert client.run(f"watermarks-of-{writers}") == {
        "lower_advances": True,
        "upper_advances": True,
        "lower_ordered": True,
        "ahead_of_slowest": False,
    }


def test_a_writer_that_has_stopped_holds_the_bound_until_it_is_removed(client: JavaClient) -> None:
    assert client.run("watermarks-removed") == {
        "advances": True,
        "reaches_last": True,
        "held": True,
        "released": True,
        "goes_on": True,
        **SOUND,
    }


def test_a_writer_that_has_stopped_holds_the_bound_until_its_timeout_and_may_come_back(client: JavaClient) -> None:
    assert client.run("watermarks-silent") == {"advances": True, "released": True, "goes_on": True, **SOUND}


def test_notes_that_go_back_or_lie_nowhere_are_refused_and_change_nothing(client: JavaClient) -> None:
    seen = client.run("watermarks-refused")
    missing = "StatusRuntimeException stream=java-watermarks-refused/nothing"
    assert seen == {
        "first": "none",
        "again": "none",
        "time_back": "RuntimeException INVALID_TIME",
        "position_back": "RuntimeException INVALID_POSITION",
        "beyond_tail": "RuntimeException INVALID_POSITION",
        "negative_offset": "RuntimeException INVALID_POSITION",
        "other_segment": "RuntimeException INVALID_POSITION",
        "nowhere": "RuntimeException INVALID_POSITION",
        "no_stream": missing,
        "still": "none",
        "on": "none",
        "removed": "none",
        "removed_again": "none",
        "removed_stranger": "none",
        "removed_nowhere": "RuntimeException STREAM_DOES_NOT_EXIST",
    }


def test_bounds_go_on_over_splits_and_merges(client: JavaClient) -> None:
    scales = {f"to_{count}": True for count in (3, 2, 1, 4)}
    assert client.run("watermarks-scaled") == {**scales, "advances": True, "ahead": False, **SOUND}


def test_bounds_go_on_after_a_truncation_for_readers_on_both_sides_of_the_head(client: JavaClient) -> None:
    assert client.run("watermarks-truncated") == {
        "advances": True,
        "truncated": True,
        "goes_on": True,
        "fresh_advances": True,
        "behind_advances": True,
        "overtaken": [False, False, True],
        "fresh_late": 0,
        "behind_late": 0,
        **SOUND,
    }


def test_a_writer_notes_the_wall_clock_by_itself(client: JavaClient) -> None:
    assert client.run("watermarks-automatic") == {"advances": True, "wall_clock": True, **SOUND}


def test_kills_of_the_server_forget_no_writer_and_move_no_bound_back(killed: tuple[JavaClient, Steps]) -> None:
    client, restart = killed
    assert client.run("watermarks-restart", restart) == {
        "advances": True,
        "reaches_last": True,
        "held": True,
        "goes_on": True,
        "fresh_reads_all": True,
        "fresh_late": 0,
        **SOUND,
    }
