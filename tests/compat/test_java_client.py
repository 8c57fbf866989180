"""The official Pravega Java client 0.13, unchanged, against a real server process. It judges compatibility.

Not part of the default run, because it and Maven's plugins (100 MB) come from Maven Central, into ``.cache``. Run by
``make test-java``.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.testing.server import ServerProcess

HERE = Path(__file__).parent
PROJECT = HERE / "java"
CACHE = HERE.parents[1] / ".cache"
BUILD = CACHE / "java-compat"
PATIENCE_S = 150

pytestmark = [pytest.mark.server, pytest.mark.java]

Steps = Callable[[Mapping[str, Any]], str]


@pytest.fixture(scope="session")
def classpath() -> str:
    """Where the client and the scenarios are; built anew when a source of theirs has changed."""
    for tool in ("java", "javac", "mvn"):
        if shutil.which(tool) is None:
            pytest.skip(f"the Java client needs a JDK and Maven: there is no {tool}")
    sources = sorted(path for path in PROJECT.rglob("*") if path.is_file())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    built = BUILD / "built"
    if not built.exists() or built.read_text() != digest:
        shutil.rmtree(BUILD, ignore_errors=True)
        project, repository = str(PROJECT / "pom.xml"), f"-Dmaven.repo.local={CACHE / 'm2'}"
        command = ["mvn", "-q", "-B", "-ntp", repository, f"-Dcompat.build={BUILD}", "-f", project]
        done = subprocess.run(
            [*command, "compile", "dependency:copy-dependencies"],
            capture_output=True,
            text=True,
            timeout=1200,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        built.write_text(digest)
    return f"{BUILD / 'classes'}:{BUILD / 'jars' / '*'}"


class JavaClient:
    """One Java process that runs scenarios after each other. A scenario that hangs ends it; the next one starts another."""

    def __init__(self, classpath: str, server: ServerProcess, log: Path) -> None:
        self.server = server
        self._log = log
        self._command = [
            *("java", "-Xmx2g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath),
            *("penstock.compat.Main", server.address),
        ]
        self._process: subprocess.Popen[str] | None = None

    def run(self, scenario: str, steps: Steps | None = None) -> dict[str, Any]:
        """What the scenario saw. ``steps`` answers its lines in between."""
        if self._process is None:
            with self._log.open("ab") as errors:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
                )
        deadline = time.monotonic() + PATIENCE_S
        line = self._ask(scenario, deadline)
        while "step" in line:
            assert steps is not None, line
            line = self._ask(steps(line), deadline)
        assert "error" not in line, f"{line['error']}\n--- before\n{line['before']}\n--- server\n{self.server.tail()}"
        seen: dict[str, Any] = line["seen"]
        return seen

    def _ask(self, words: str, deadline: float) -> Mapping[str, Any]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(words + "\n")
        process.stdin.flush()
        # One line answers one line: none is ever left over in a buffer that select does not see.
        ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
        text = process.stdout.readline() if ready else ""
        if not text:
            self.close()
            pytest.fail(f"no answer to {words!r}\n--- client\n{self._tail()}\n--- server\n{self.server.tail()}")
        answer: Mapping[str, Any] = json.loads(text)
        return answer

    def _tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])

    def close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@pytest.fixture(scope="module")
def client(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    path = tmp_path_factory.mktemp("java")
    with ServerProcess(path / "data", "--retention-cycle", "200ms") as server:
        running = JavaClient(classpath, server, path / "client.log")
        yield running
        running.close()


@pytest.fixture
def killed(classpath: str, tmp_path: Path) -> Iterator[tuple[JavaClient, Steps]]:
    """A client, and steps that kill its server with ``kill -9`` and start it again."""
    with ServerProcess(tmp_path / "data") as server:

        def restart(_: Mapping[str, Any]) -> str:
            server.kill()
            server.start()
            return "go on"

        running = JavaClient(classpath, server, tmp_path / "client.log")
        yield running, restart
        running.close()


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
    # How often a reader is told depends on what its buffer still held.
    assert seen.pop("told") <= 2
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


def test_times_are_taken_and_readers_have_no_time_window(client: JavaClient) -> None:
    assert client.run("times") == {"count": 20, "unique": 20, "lower": None, "upper": None}


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


def test_sealing_a_stream_aborts_what_is_open(client: JavaClient) -> None:
    assert client.run("sealed-transaction") == {
        "sealed": True,
        "status": "ABORTED",
        "commit": "TxnFailedException",
        "begin": "StatusRuntimeException",
        "count": 10,
        "unique": 10,
    }


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
        "told": True,
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
