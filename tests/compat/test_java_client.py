"""The official Pravega Java client 0.13, unchanged, against a real server process. It judges compatibility.

Not part of the default run, because it and Maven's plugins (100 MB) come from Maven Central, into ``.cache``. Run by
``make test-java``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from java_client import JavaClient

import penstock
from penstock.testing.server import ServerProcess

HERE = Path(__file__).parent

pytestmark = [pytest.mark.server, pytest.mark.java]


# --- scopes and streams ---


def test_scopes_are_made_listed_and_deleted_with_all_that_they_hold(client: JavaClient) -> None:
    assert client.run("scopes") == {
        "made": True,
        "again": False,
        "exists": True,
        "missing": False,
        "listed": True,
        "deleted": True,
        "deleted_again": False,
        "exists_after": False,
        "refused": "IllegalStateException",
        "forced": True,
        "recursive": True,
        "left": False,
    }


def test_streams_keep_their_configuration_from_creation_to_deletion(client: JavaClient) -> None:
    assert client.run("streams") == {
        "created": True,
        "duplicate": False,
        "scope_missing": "IllegalArgumentException",
        "exists": True,
        "missing": False,
        "tags": ["t1", "t2"],
        "same_config": True,
        "head_is_tail": True,
        "sealed_before": False,
        "updated": True,
        "tags_after": ["t3"],
        "same_config_after": True,
        "update_missing": "IllegalArgumentException",
        "delete_open": "IllegalArgumentException",
        "sealed": True,
        "sealed_again": True,
        "update_sealed": "UnsupportedOperationException",
        "is_sealed": True,
        "deleted": True,
        "deleted_again": False,
        "seal_missing": "InvalidStreamException",
        "made_again": True,
        "automatic": [True, True],
    }


def test_streams_are_listed_by_tag(client: JavaClient) -> None:
    assert client.run("lists") == {
        "user_streams": 30,
        "third": 10,
        "all": 30,
        "none": 0,
        "third_after": 9,
        "moved": ["s0"],
        "scope_missing": "NoSuchScopeException",
    }


def test_a_controller_names_itself_to_clients_that_ask_for_all(client: JavaClient) -> None:
    assert client.run("discovery") == {"exists": True}


def test_truncation_moves_the_head_for_readers_pointers_and_cuts(client: JavaClient) -> None:
    seen = client.run("truncation")
    # How often a reader reports it depends on what its buffer still held.
    assert seen.pop("reported") <= 2
    assert seen == {
        "truncated": True,
        "truncated_again": True,
        "head_is_cut": True,
        "backwards": "ControllerFailureException",
        "head_stays": True,
        "count": 50,
        "unique": 50,
        "gone": "NoSuchEventException",
        "gone_for_manager": "NoSuchEventException",
        "unread_after": True,
        "rest": 50,
    }


def test_a_sealed_stream_is_read_to_its_end_and_takes_no_more(client: JavaClient) -> None:
    seen = client.run("sealing")
    # The group has no segments left, and so no streams.
    assert seen.pop("names") == []
    assert seen == {
        "sealed": True,
        "write": "IllegalStateException",
        "completed": True,
        "count": 61,
        "unique": 61,
        "new_writer": "IllegalStateException",
        "deleted": True,
        "writer_of_none": "StatusRuntimeException",
    }


def test_a_stream_that_is_made_again_starts_with_new_segments(client: JavaClient) -> None:
    assert client.run("remade") == {"count": 40, "unique": 40, "deleted": True, "again": 30, "first_segment": 2}


def test_a_stream_may_be_truncated_to_its_tail_over_scales_by_its_policy(client: JavaClient) -> None:
    assert client.run("truncated-to-tail") == {
        "merged": 1,
        "count": 100,
        "unique": 100,
        "truncated": True,
        "rest": 10,
        "sealed": True,
        "rest_sealed": 10,
        "batch": True,
    }


# --- events ---


def test_events_are_read_once_in_order_per_key_and_by_pointer(client: JavaClient) -> None:
    assert client.run("events") == {
        "empty": True,
        "count": 1106,
        "unique": 1106,
        "ordered": True,
        "fetched": 20,
        "dry": True,
    }


def test_large_events_come_whole_and_in_their_place(client: JavaClient) -> None:
    mib = 1 << 20
    assert client.run("large-events") == {
        "not_enabled": "IllegalArgumentException",
        "sizes": [10, 9 * mib, 10, 40 * mib, 8 * mib],
        "whole": True,
    }


def test_events_of_all_blocks_are_put_together(client: JavaClient) -> None:
    seen = client.run("throughput")
    assert (seen["count"], seen["unique"], seen["ordered"]) == (50_000, 50_000, True)


def test_a_reader_waits_idle_at_the_tail_and_goes_on(client: JavaClient) -> None:
    assert client.run("idle") == {"while_idle": 0, "count": 2, "unique": 2}


def test_python_and_java_clients_read_each_other(client: JavaClient) -> None:
    address = client.server.address
    subprocess.run(
        [sys.executable, str(HERE / "official_scenarios.py"), address, "events"],
        check=True,
        timeout=100,
        stdout=subprocess.DEVNULL,
    )
    seen = client.run("foreign", lambda _: "ev/st 301")
    assert (seen["count"], seen["unique"], seen["ordered"]) == (301, 301, True)
    assert seen["longest"] > 1_000_000
    code = (
        "import json, os, sys, pravega_client, official_scenarios as o\n"
        "manager = pravega_client.StreamManager('tcp://' + sys.argv[1], False, False)\n"
        "found = o.read_all(manager.create_reader_group('again', 'ev', 'st'), 401)\n"
        "print(json.dumps(len(set(found))), flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, address],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=os.environ | {"PYTHONPATH": str(HERE)},
    )
    assert done.stdout.strip() == "401", done.stderr[-2000:]


def test_our_own_client_and_javas_read_each_other_in_order_per_key(client: JavaClient) -> None:
    with penstock.connect(client.server.address) as store:
        stream = store.create_stream("own/st", segments=3, create_scope=True)
        with stream.writer() as writer:
            for number in range(500):
                writer.write(f"k{number % 5}:{number}", key=f"k{number % 5}")
        seen = client.run("foreign", lambda _: "own/st 500")
        assert (seen["count"], seen["unique"], seen["ordered"]) == (500, 500, True)
        texts = [event.data.decode() for event in stream.reader(until_tail=True)]
    assert len(set(texts)) == len(texts) == 600
    for key in range(5):
        numbers = [int(text.split(":")[1]) for text in texts if text.startswith(f"k{key}:")]
        assert numbers == sorted(numbers)


def test_batches_of_events_are_stored_whole(client: JavaClient) -> None:
    assert client.run("event-batches") == {
        "seven": "none",
        "twelve": "none",
        "small": "none",
        "count": 5019,
        "dry": True,
    }


def test_many_writers_follow_each_other(client: JavaClient) -> None:
    assert client.run("many-writers") == {"count": 300, "unique": 300, "ordered": True}


# --- transactions ---


def test_transactions_commit_whole_or_not_at_all(client: JavaClient) -> None:
    assert client.run("transactions") == {
        "open": "OPEN",
        "unseen": True,
        "committed": True,
        "write_after": "TxnFailedException",
        "commit_again": "TxnFailedException",
        "aborted": True,
        "resumed": True,
        "unknown": "StatusRuntimeException",
        "count": 70,
        "unique": 70,
        "ordered": True,
        "dry": True,
        "completed": {"ABORTED": 1, "COMMITTED": 3},
    }


def test_transactions_live_as_long_as_they_are_pinged(client: JavaClient) -> None:
    assert client.run("transaction-leases") == {
        "ping": "OPEN",
        "ping_too_long": "PingFailedException",
        "lease_too_short": "StatusRuntimeException",
        "timed_out": True,
        "ping_aborted": "ABORTED",
        "kept": "OPEN",
        "committed": True,
        "count": 5,
        "unique": 5,
    }


def test_many_transactions_commit_on_many_streams_and_in_a_row(client: JavaClient) -> None:
    assert client.run("many-transactions") == {
        "committed": True,
        "count": 120,
        "unique": 120,
        "row": 110,
        "row_ordered": True,
    }


def test_transactions_outlive_scales(client: JavaClient) -> None:
    assert client.run("rolling-transactions") == {
        "scaled": True,
        "committed": True,
        "count": 100,
        "unique": 100,
        "ordered": True,
        "segments": 4,
    }


def test_transactions_stay_open_over_many_scales_and_commit_in_their_order(client: JavaClient) -> None:
    assert client.run("rolling-by-hand") == {
        "scaled": True,
        "still_open": True,
        "committed": True,
        "segments": 2,
        "complete": True,
        "plain_ordered": True,
        "transactions_ordered": True,
    }


def test_transactions_stay_open_while_the_rate_splits_and_merges_their_stream(classpath: str, tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", "--scaling-minute", "60ms") as server:
        running = JavaClient(classpath, server, tmp_path / "client.log")
        try:
            assert running.run("rolling-by-rate") == {
                "split": True,
                "merged": True,
                "still_open": True,
                "committed": True,
                "complete": True,
                "plain_ordered": True,
                "transactions_ordered": True,
            }
        finally:
            running.close()


def test_sealing_a_stream_aborts_what_is_open(client: JavaClient) -> None:
    assert client.run("sealed-transaction") == {
        "sealed": True,
        "status": "ABORTED",
        "commit": "TxnFailedException",
        "begin": "StatusRuntimeException",
        "count": 10,
        "unique": 10,
    }
