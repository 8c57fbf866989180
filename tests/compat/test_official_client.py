"""The official Pravega Python client, unchanged, against a real server process. It is the judge of compatibility."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.model.scaling import ScalingAction
from penstock.testing.server import ServerProcess

SCENARIOS = Path(__file__).with_name("official_scenarios.py")
pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("official") / "data") as running:
        yield running


@contextmanager
def started(server: ServerProcess, scenario: str) -> Iterator[subprocess.Popen[str]]:
    """A scenario that is under way. It is killed at the end, and its pipes are closed: left open, they would fail the
    test that happens to run when they are collected."""
    argv = [sys.executable, str(SCENARIOS), server.address, scenario]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        try:
            yield client
        finally:
            client.kill()


def run(server: ServerProcess, scenario: str, timeout_s: float = 100):
    """What the scenario saw. The client retries silently for a long time, so a hang must fail here."""
    done = subprocess.run(
        [sys.executable, str(SCENARIOS), server.address, scenario],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[-3000:]}\n--- server\n{server.tail()}"
    return json.loads(done.stdout.splitlines()[-1])


def test_scopes_and_streams_are_created_listed_updated_sealed_and_deleted(server):
    seen = run(server, "scopes_and_streams")
    assert seen["made"] is True
    assert seen["again"] is False
    assert seen["created"] is True
    assert seen["duplicate"] is False
    assert sorted(seen["tags"]) == ["t1", "t2"]
    assert seen["dot"] == {"created": True, "read": "in a dot", "listed": True, "sealed": True, "deleted": True}
    assert seen["repeated"] is True
    assert sorted(seen["tags_repeated"]) == ["t1", "t2"]
    assert seen["tags_none"] == []
    assert seen["tags_updated"] == ["t4"]
    assert seen["updated"] is True
    assert seen["tags_after"] == ["t3"]
    names = [name for name in seen["streams"] if not name.startswith("_")]
    assert names == ["s0", "s1", "s2", "s3", "s4", "tagged"]
    assert seen["sealed"] is True
    assert seen["deleted"] is True
    assert seen["gone"] is True
    assert "admin" in seen["scopes"]
    assert "empty" not in seen["scopes"]
    assert "s0" not in seen["after"]


def test_events_of_all_sizes_are_read_once_and_in_order_per_key(server):
    seen = run(server, "events")
    assert seen == {"count": 301, "unique": 301, "big": 1, "ordered": True}


def test_transactions_commit_whole_or_not_at_all(server):
    seen = run(server, "transactions")
    assert seen["opened"] is True
    assert seen["open_after"] is False
    assert seen["same"] is True
    assert seen["found"] == sorted([f"c{number}" for number in range(20)] + ["last"])


def test_transactions_are_committed_with_a_timestamp(server):
    assert run(server, "transactions_with_timestamps") == {"open": [False] * 3, "found": ["t0", "t1", "t2"]}


def test_asynchronous_writes_are_stored_once_and_in_order_per_key(server):
    assert run(server, "asynchronous_writes") == {"count": 220, "unique": 220, "ordered": True}


def test_streams_that_scale_by_rate_are_created_used_and_updated(server):
    seen = run(server, "scaling_policies")
    assert seen == {"made": [True, True], "counts": {"events": 50, "data": 50}, "changed": True}
    with penstock.connect(server.address) as store:
        events, data = (store.stream(f"au/{name}").describe() for name in ("events", "data"))
    assert (len(events.head.positions), len(data.head.positions)) == (2, 1)
    assert events.config.scaling == data.config.scaling
    scaling = data.config.scaling
    assert (scaling.type, scaling.target_rate, scaling.factor, scaling.min_segments) == (
        ScaleType.KILOBYTES_PER_S,
        1000,
        3,
        1,
    )


def test_byte_streams_read_what_was_written_at_its_place(server):
    seen = run(server, "byte_stream")
    assert seen["written"] == 12_000
    assert (seen["head"], seen["tail"]) == (0, 12_000)
    assert seen["got"] == 12
    assert seen["bytes"] == "hello, bytes"
    assert "truncation error" in seen["backwards"]
    assert seen["head_after"] == 24


def test_reader_groups_read_several_streams_and_start_over_after_deletion(server):
    seen = run(server, "reader_groups")
    assert seen["both"] == 200
    assert seen["first"] == 100
    assert seen["again"] == 100


def test_a_writer_and_a_reader_group_follow_manual_scales(server):
    with penstock.connect(server.address) as store:
        stream = store.create_stream("scaled/st", segments=2, create_scope=True)
        with started(server, "scaling") as client:
            for segments in (3, 2, 5, 4):
                assert "written" in json.loads(client.stdout.readline())
                stream.scale(segments=segments)
                client.stdin.write("go\n")
                client.stdin.flush()
            out, _ = client.communicate(timeout=100)
        assert json.loads(out) == {"count": 2000, "unique": 2000, "ordered": True}
        assert stream.describe().epoch == 4


def test_transactions_stay_open_over_manual_scales_and_commit_in_their_order(server):
    with penstock.connect(server.address) as store:
        stream = store.create_stream("rolled/st", create_scope=True)
        with started(server, "rolling_transactions") as client:
            for segments in (3, 2, 4):
                assert "scale" in json.loads(client.stdout.readline())
                stream.scale(segments=segments)
                client.stdin.write("go\n")
                client.stdin.flush()
            out, _ = client.communicate(timeout=100)
        assert json.loads(out) == {"open": [True] * 3, "complete": True, "ordered": True}


@pytest.mark.slow
def test_a_writer_and_readers_follow_a_stream_that_scales_by_rate(tmp_path):
    policy = ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=200, factor=3, min_segments=1)
    with (
        ServerProcess(tmp_path / "data", "--scaling-minute", "60ms", "--workers", "2") as server,
        penstock.connect(server.address) as store,
    ):
        stream = store.create_stream("rated/st", scaling=policy, create_scope=True)
        until = time.monotonic() + 180
        with started(server, "scaling_by_rate") as client:
            written = 0
            for least in (4, 3):
                # The client writes until it gets a signal, and then waits until the stream is one segment again.
                while len(stream.describe().segments) < least:
                    client.stdin.write("go\n")
                    client.stdin.flush()
                    written = json.loads(client.stdout.readline())["written"]
                    assert time.monotonic() < until
                while least == 4 and len(stream.describe().segments) > 1:
                    time.sleep(0.05)
                    assert time.monotonic() < until
            out, _ = client.communicate("stop\n", timeout=60)
        assert json.loads(out.splitlines()[-1]) == {"count": written, "unique": written, "ordered": True}
        actions = {change.action for change in stream.explain_scaling().changes}
        assert actions == {ScalingAction.SPLIT, ScalingAction.MERGE}


def test_a_group_that_begins_inside_a_merge_reads_all_of_it_once(server):
    """``getSegments`` tells the merged segment as one at 0, so it is begun beside the older one, and not a second time."""
    with penstock.connect(server.address) as store:
        stream = store.create_stream("merge/st", segments=1, create_scope=True)
        stream.scale(segments=2)
        keys = [f"k{number}" for number in range(8)]
        with stream.writer() as writer:
            for number in range(80):
                writer.write(b"old %d" % number, key=keys[number % 8])
        left = min(stream.tail().positions)
        stream.scale(segments=1)
        with stream.writer() as writer:
            for number in range(20):
                writer.write(b"new %d" % number, key=keys[number % 8])
        (merged,) = stream.tail().positions
        with stream.reader(until_tail=True) as reader:
            kept = [event.data.decode() for event in reader if event.segment in (left, merged)]
        stream.truncate(StreamCut(stream.name, {left: 0, merged: NOT_STARTED}))
        seen = run(server, "inside_a_merge")["found"]
    assert sorted(seen) == sorted(kept)
    assert [item for item in seen if item.startswith("new")] == [f"new {number}" for number in range(20)]
    assert 20 < len(kept) < 100


def test_the_audit_stream_is_read_like_any_other(server):
    assert run(server, "audit") == {"kind": "delete", "bytes": 108, "events": 1}
