"""Sources of one query wait for events together, with the waits that they have in production."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from spark_driver import SCHEMA, logged
from spark_world import World

from penstock.model.names import StreamName
from penstock.spark.connect import close_links, dial, link
from penstock.spark.options import parse_read
from penstock.spark.reading.peers import Peers, Report, State, Watch, shared_directory
from penstock.spark.reading.stream import LONG_POLL_S, StreamReader

STREAMS = 10
FIELDS = ["source", "pid", "turn", "state", "address", "seen", "woken_by"]


def report(source: str, turn: int, state: State) -> Report:
    return Report(source=source, pid=os.getpid(), turn=turn, state=state, address="here", seen={})


class Query:
    """Sources asked as Spark asks those of one query: one after another, over and over."""

    def __init__(self, address: str, streams: Sequence[StreamName], directory: Path) -> None:
        options = [
            parse_read({"controller": address, "path": str(stream), "start_stream_cut": "earliest"})
            for stream in streams
        ]
        self.readers = [StreamReader(dial, item, SCHEMA, Peers(directory, address)) for item in options]
        self.at = [logged(reader.initialOffset()) for reader in self.readers]

    def cycle(self) -> list[int]:
        """Which sources had something new."""
        ends = [
            logged(reader.latestOffset(start, ReadAllAvailable()))
            for reader, start in zip(self.readers, self.at, strict=True)
        ]
        moved = [number for number, (start, end) in enumerate(zip(self.at, ends, strict=True)) if start != end]
        self.at = ends
        return moved


def test_one_idle_source_waits_for_all_of_them(address: str, world: World, tmp_path: Path) -> None:
    query = Query(address, [world.create(f"idle-{n}") for n in range(STREAMS)], tmp_path)
    assert query.cycle() == []
    for _ in range(2):
        began = time.monotonic()
        assert query.cycle() == []
        took = time.monotonic() - began
        assert LONG_POLL_S / 2 < took < 2 * LONG_POLL_S


@pytest.mark.parametrize("number", [0, 4, STREAMS - 1])
def test_an_event_of_any_stream_ends_the_wait(address: str, world: World, tmp_path: Path, number: int) -> None:
    streams = [world.create(f"woken-{number}-{n}") for n in range(STREAMS)]
    query = Query(address, streams, tmp_path)
    query.cycle()
    written: list[float] = []

    def write() -> None:
        try:
            World(link(dial, address)).write(streams[number], [b"k:0"])
            written.append(time.monotonic())
        finally:
            close_links()

    later = threading.Timer(0.2, write)
    later.start()
    while query.cycle() != [number]:
        pass
    found_at = time.monotonic()
    later.join()
    # A source that waited for its own stream alone would wait for all of the second.
    assert found_at - written[0] < LONG_POLL_S / 2


def test_a_source_of_another_query_does_not_end_the_wait_again_and_again(
    address: str, world: World, tmp_path: Path
) -> None:
    query = Query(address, [world.create("alone")], tmp_path)
    query.cycle()
    stranger = Peers(tmp_path, address)
    stranger.report(State.ASKED, {})
    query.cycle()
    stranger.report(State.NEWS, {})
    began = time.monotonic()
    query.cycle()
    assert time.monotonic() - began > LONG_POLL_S / 2


REPORTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(1, 3), st.sampled_from(list(State))), max_size=6
)


@given(st.lists(REPORTS, max_size=8))
def test_a_report_is_answered_once_and_a_stranger_never(rounds: list[list[tuple[str, int, State]]]) -> None:
    watch = Watch()
    answered: set[tuple[str, int]] = set()
    strangers: set[str] = set()
    last: dict[str, int] = {}
    for found in rounds:
        newest = {source: report(source, turn, state) for source, turn, state in found if turn >= last.get(source, 0)}
        last |= {source: item.turn for source, item in newest.items()}
        strangers |= {source for source, item in newest.items() if item.state is State.ASKED}
        pending = watch.pending(newest.values())
        expected = {(source, item.turn) for source, item in newest.items() if source not in strangers} - answered
        assert {(item.source, item.turn) for item in pending} == expected
        watch.answer(pending)
        answered |= expected


def test_reports_of_processes_that_ended_are_dropped(tmp_path: Path) -> None:
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from pathlib import Path; from penstock.spark.reading.peers import *;"
            "Peers(Path(sys.argv[1]), 'here').report(State.NEWS, {'s': (0, 5, False)})",
            str(tmp_path),
        ],
        check=True,
    )
    assert child.returncode == 0
    here, other = Peers(tmp_path, "here"), Peers(tmp_path, "here")
    other.report(State.WOKEN, {"s": (0, 5, False)}, ("x",))
    (found,) = here.others()
    assert (found.state, found.seen, found.woken_by) == (State.WOKEN, {"s": (0, 5, False)}, ("x",))


def test_a_drivers_directory_is_its_users_alone_and_goes_after_it(tmp_path: Path) -> None:
    over = subprocess.Popen([sys.executable, "-c", ""])
    old = shared_directory(tmp_path, over.pid)
    (old / "report").write_text("{}")
    over.wait()
    found = shared_directory(tmp_path, os.getpid())
    assert list(tmp_path.iterdir()) == [found]
    found.chmod(0o777)
    with pytest.raises(PermissionError):
        shared_directory(tmp_path, os.getpid())


def test_a_directory_that_cannot_be_used_ends_reporting_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peers = Peers(tmp_path / "none", "here")
    peers.report(State.NEWS, {})
    peers.report(State.NEWS, {})
    assert list(peers.others()) == []
    assert len([item for item in caplog.records if "cannot write files for each other" in item.getMessage()]) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=8),
    max_leaves=20,
)
changes = st.dictionaries(st.sampled_from([*FIELDS, "more"]), json_values, max_size=3)


@given(text=st.binary(max_size=40) | json_values.map(lambda value: json.dumps(value).encode()), changed=changes)
def test_a_report_that_cannot_be_read_is_none(text, changed):
    """They are left by other versions, and by a crash of the machine, before a process id comes again."""
    with tempfile.TemporaryDirectory() as directory:
        own, place = Peers(Path(directory), "here"), Path(directory)
        (place / "a").write_bytes(text)
        (place / "b").write_text(json.dumps(asdict(report("b", 1, State.NEWS)) | changed))
        (place / "c").write_text(json.dumps(asdict(report("c", 1, State.NEWS))))
        assert report("c", 1, State.NEWS) in own.others()


def test_what_others_left_in_the_parent_keeps_no_source_from_its_directory(tmp_path: Path) -> None:
    for number in ("4194301", "99999999999", "9" * 30, "9" * 5000, "x", ""):
        with suppress(OSError):  # longer than a file system takes
            (tmp_path / f"penstock-sources-{os.getuid()}-{number}").write_text("")
    assert shared_directory(tmp_path, os.getpid()).is_dir()


def test_many_sources_may_delete_the_directories_of_drivers_that_ended(tmp_path: Path) -> None:
    def begin(_: int) -> Path:
        together.wait()
        return shared_directory(tmp_path, os.getpid())

    together = threading.Barrier(4)
    with ThreadPoolExecutor(4) as threads:
        for _ in range(50):
            for number in range(4_194_301, 4_194_304):
                old = tmp_path / f"penstock-sources-{os.getuid()}-{number}"
                old.mkdir()
                for name in "abc":
                    (old / name).touch()
            assert len(set(threads.map(begin, range(4)))) == 1


def latency_s(spark: Any, world: World, address: str, streams: Sequence[StreamName], checkpoint: Path) -> float:
    """The least time from an event of any stream to a batch of a query over all of them."""
    source = spark.readStream.format("penstock").option("controller", address).option("columns", "event")
    frames = [source.option("start_stream_cut", "earliest").load(str(stream)) for stream in streams]
    seen = threading.Semaphore(0)

    def note(rows: Any, batch: int) -> None:
        for _ in rows.collect():
            seen.release()

    union = functools.reduce(lambda one, other: one.union(other), frames)
    query = union.writeStream.foreachBatch(note).option("checkpointLocation", str(checkpoint)).start()
    took = []
    try:
        for number in range(4):
            began = time.monotonic()
            world.write(streams[number % len(streams)], [b"k:%d" % number])
            assert seen.acquire(timeout=300)
            took.append(time.monotonic() - began)
    finally:
        query.stop()
    return min(took)


@pytest.mark.slow
def test_spark_reads_several_idle_streams_without_waiting_for_each(
    address: str, world: World, spark: Any, tmp_path: Path
) -> None:
    streams = [world.create(f"spark-{n}") for n in range(4)]
    alone = latency_s(spark, world, address, streams[:1], tmp_path / "one")
    # Three idle sources, each waiting for its own stream, take three seconds more.
    assert latency_s(spark, world, address, streams, tmp_path / "all") < alone + LONG_POLL_S
