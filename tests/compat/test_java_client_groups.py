"""The official Java client, as in ``test_java_client.py``: reader groups, state that many share, scales, retention, restarts."""

from __future__ import annotations

import pytest
from java_client import JavaClient, Steps

pytestmark = [pytest.mark.server, pytest.mark.java]


# --- reader groups ---


def test_reader_groups_are_made_shared_reset_and_deleted(client: JavaClient) -> None:
    assert client.run("groups") == {
        "created": True,
        "again": True,
        "other_config": "ConfigMismatchException",
        "missing": "ReaderGroupNotFoundException",
        "stream_missing": "InvalidStreamException",
        "streams": ["java-groups/first", "java-groups/second"],
        "unread_all": True,
        "taken_name": "IllegalStateException",
        "count": 150,
        "unique": 150,
        "online": ["r1", "r2"],
        "distribution": 3,
        "online_after": 0,
        "streams_after": ["java-groups/second"],
        "after_reset": 50,
        "dry": True,
        "deleted": "ReaderGroupNotFoundException",
        "created_anew": True,
        "read_anew": 150,
    }


def test_reader_groups_start_again_at_checkpoints(client: JavaClient) -> None:
    assert client.run("checkpoints") == {
        "names": ["cp"],
        "count": 100,
        "same_again": True,
        "dry": True,
        "cancelled": True,
        "last_checkpoint": True,
    }


def test_reader_groups_read_between_cuts(client: JavaClient) -> None:
    assert client.run("cuts") == {
        "first": 90,
        "at_tail": True,
        "count": 30,
        "unique": 30,
        "inside": True,
        "dry": True,
        "completed": True,
        "positions": True,
        "turned": "IllegalArgumentException",
    }


def test_readers_that_leave_are_replaced_where_they_were(client: JavaClient) -> None:
    assert client.run("readers-leave") == {
        "count": 100,
        "unique": 100,
        "dry": True,
        "online": ["next"],
        "gone": "ReinitializationRequiredException",
        "online_after": [],
    }


def test_many_readers_share_many_segments(client: JavaClient) -> None:
    assert client.run("many-readers") == {"count": 2000, "unique": 2000}


# --- batches, bytes, synchronizers, tables ---


def test_batch_clients_read_segments_between_cuts_over_scales_and_truncations(client: JavaClient) -> None:
    assert client.run("batch") == {
        "ends": True,
        "count": 250,
        "unique": 250,
        "ordered": True,
        "between": 100,
        "inside": True,
        "nothing": 0,
        "truncated": True,
        "from_head": 150,
        "truncated_read": "TruncatedDataException",
    }


def test_byte_streams_are_written_sought_truncated_and_sealed(client: JavaClient) -> None:
    assert client.run("bytes") == {
        "text": "hello, bytes",
        "nothing_yet": False,
        "woken": True,
        "same": True,
        "head": 0,
        "tail": 3_000_012,
        "sought": "bytes",
        "offset": 12,
        "head_after": 100,
        "truncated": "SegmentTruncatedException",
        "tail_of_second": 3_000_018,
        "rest": "[1, 2, 3]",
        "end": -1,
        "write_sealed": "SegmentSealedException",
        "stream_sealed": True,
    }


def test_revisioned_streams_append_on_conditions(client: JavaClient) -> None:
    assert client.run("revisions") == {
        "written": True,
        "late": True,
        "second": True,
        "stale": True,
        "read": ["first", "second", "third"],
        "range": ["second"],
        "mark_before": None,
        "marked": True,
        "marked_again": False,
        "mark_moved": True,
        "mark": True,
        "oldest": True,
        "rest": ["third"],
        "truncated": "TruncatedDataException",
        "large": 1 << 20,
    }


def test_synchronized_state_is_changed_by_many_at_once(client: JavaClient) -> None:
    assert client.run("synchronizer") == {"failures": "[]", "sums": [50, 50]}


def test_key_value_tables_change_on_conditions_all_or_nothing(client: JavaClient) -> None:
    assert client.run("tables") == {
        "created": True,
        "again": False,
        "scope_missing": "IllegalArgumentException",
        "insert_again": "BadKeyVersionException",
        "put": True,
        "old_version": "BadKeyVersionException",
        "versions_grow": True,
        "absent_version": "BadKeyVersionException",
        "value": "four",
        "missing": None,
        "exists": True,
        "exists_not": False,
        "several": 38,
        "refused": "BadKeyVersionException",
        "not_half": None,
        "removed": "none",
        "remove_old": "BadKeyVersionException",
        "remove_missing": "none",
        "all": [None, "v4", None, "v5"],
        "many": 250,
        "many_there": 250,
        "too_many": "IllegalArgumentException",
        "none_of_them": None,
        "too_large": "IllegalArgumentException",
        "short_key": "IllegalArgumentException",
        "large": 1_000_000,
        "empty_value": "",
        "names": ["kvt"],
        "deleted": True,
        "deleted_again": False,
        "made_again": True,
        "empty_again": None,
    }


def test_key_value_tables_are_iterated_in_order_of_keys(client: JavaClient) -> None:
    assert client.run("table-iterators") == {
        "all": 1200,
        "all_unique": 1200,
        "one": 120,
        "sorted": True,
        "range": ["p003010", "p003019", 10],
        "prefix_secondary": 10,
        "prefix": 1200,
        "between": 360,
        "values": ["5/0", "5/119", 120],
        "none": 0,
        "plain": 30,
        "plain_value": "v7",
    }


# --- scaling, retention, restarts ---


def test_writers_and_readers_follow_scales(client: JavaClient) -> None:
    assert client.run("scaling") == {
        "scaled": [True] * 5,
        "all": True,
        "count": 6000,
        "unique": 6000,
        "alone": 6000,
        "alone_ordered": True,
        "segments": 2,
    }


def test_scales_that_do_not_fit_are_refused(client: JavaClient) -> None:
    assert client.run("scaling-calls") == {
        "open": True,
        "gap": False,
        "split": True,
        "open_after": False,
        "done": True,
        "sealed_again": False,
        "under_minimum": False,
        "successors": 2,
        "epoch_0": 2,
        "current": 3,
        "missing": "StatusRuntimeException",
    }


def test_groups_subscribe_as_their_configuration_says(client: JavaClient) -> None:
    both = ["java-subscribers/automatic", "java-subscribers/manual"]
    assert client.run("subscribers") == {
        "first": both,
        "first_after_move": both[:1],
        "second_after_move": both[1:],
        "second_after_none": [],
        "first_after_delete": [],
        "none_releases": "UnsupportedOperationException",
    }


def test_the_head_follows_the_checkpoints_of_a_group_that_releases_by_itself(client: JavaClient) -> None:
    assert client.run("automatic-release") == {"held": True, "count": 100, "all_released": True}


def test_the_head_follows_the_cuts_that_a_user_releases(client: JavaClient) -> None:
    assert client.run("manual-release") == {
        "read": 60,
        "kept": 0,
        "moved": True,
        "not_beyond": True,
        "backwards": "IllegalArgumentException",
        "moved_again": True,
    }


def test_policies_by_size_and_time_move_the_head(client: JavaClient) -> None:
    assert client.run("policies") == {"size": True, "time": True, "kept": True}


def test_a_writer_and_a_reader_outlive_kills_of_the_server(killed: tuple[JavaClient, Steps]) -> None:
    client, restart = killed
    seen = client.run("restart", restart)
    assert seen.pop("written") > 1200
    assert seen == {
        "failures": "[]",
        "failed": 0,
        "all_acknowledged": True,
        "missing": 0,
        "twice": 0,
        "ordered": True,
        "alone_missing": 0,
        "alone_ordered": True,
    }


def test_what_is_open_or_stored_outlives_a_kill_of_the_server(killed: tuple[JavaClient, Steps]) -> None:
    client, restart = killed
    assert client.run("restart-state", restart) == {
        "open": "OPEN",
        "committed": True,
        "table": 7,
        "mark": True,
        "conditional": True,
        "online": ["r"],
        "count": 71,
        "unique": 71,
        "dry": True,
    }
