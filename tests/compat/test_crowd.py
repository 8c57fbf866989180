"""Clients of every kind on one stream while it scales by rate: Java, official Python, our own, and a Spark query.

    pytest -m java tests/compat/test_crowd.py

The load of each of three writers doubles each second, stays, and ends; after the last merge each writes once more.
``PENSTOCK_PLOT=FILE.png`` draws the segments and their rates.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from java_client import JavaClient

import penstock
from bench.scaling import Sample, draw
from penstock.model.scaling import ScalingAction
from penstock.testing.server import ServerProcess

HERE = Path(__file__).parent
SCOPE = "java-crowd"
NAME = f"{SCOPE}/st"
DOUBLINGS, HOLDING_S, LAST = 9, 25, 100
COUNT = int((2**DOUBLINGS - 1) / math.log(2) + HOLDING_S * 2**DOUBLINGS)
WRITERS = ("java", "official", "own")
EXPECTED = len(WRITERS) * (COUNT + LAST)
ORIGIN_MS = 1_800_000_000_000  # the time of an event is this and its number
NOTED_EACH, KEYS = 100, 50
PATIENCE_S = 400

pytestmark = [pytest.mark.server, pytest.mark.java, pytest.mark.slow]


def check(events: Sequence[str]) -> None:
    """Each event of each writer once, and those of a key in order."""
    last: dict[str, int] = defaultdict(lambda: -1)
    for event in events:
        key, number = event.split(":")
        assert int(number) > last[key], (event, last[key])
        last[key] = int(number)
    assert len(set(events)) == len(events) == EXPECTED


def late(event: str, lower_ms: int | None) -> bool:
    """Whether the bound had covered the event before it came. The official Python client notes no times."""
    return (
        lower_ms is not None and not event.startswith("official") and ORIGIN_MS + int(event.split(":")[1]) <= lower_ms
    )


def due(seconds: float) -> int:
    grown = min(seconds, DOUBLINGS)
    return min(COUNT, int((2**grown - 1) / math.log(2) + (seconds - grown) * 2**DOUBLINGS))


def write(stream: penstock.Stream, noted: threading.Event, go: threading.Event, idle: threading.Event) -> None:
    """Our own writer: notes its times as Java's does."""

    def put(begin: int, end: int) -> int:
        for number in range(begin, end):
            key = f"own.k{number % KEYS}"
            writer.write(f"{key}:{number}", key=key)
            if number % NOTED_EACH == NOTED_EACH - 1:
                writer.note_time(ORIGIN_MS + number)
        return max(begin, end)

    with stream.writer() as writer:
        # A writer that has noted nothing holds no bound back: all note once before the others go on.
        put(0, 1)
        writer.note_time(ORIGIN_MS)
        noted.set()
        assert go.wait(PATIENCE_S)
        written, began_s = 1, time.monotonic()
        while written < COUNT:
            written = put(written, due(time.monotonic() - began_s))
            time.sleep(0.02)
        writer.note_time(ORIGIN_MS + COUNT - 1)
        assert idle.wait(PATIENCE_S)
        put(COUNT, COUNT + LAST)
        writer.note_time(ORIGIN_MS + COUNT + LAST - 1)


def follow(stream: penstock.Stream) -> list[str]:
    """Our own reader, with its time windows."""
    found: list[str] = []
    lower: int | None = None
    with stream.reader() as reader:
        for event in reader:
            text = event.data.decode()
            assert not late(text, lower)
            found.append(text)
            if len(found) == EXPECTED:
                return found
            if len(found) % 50 == 0:
                now = reader.time_window().lower_ms
                assert lower is None or (now is not None and now >= lower)
                lower = now
    return found


def read_in_group(group: penstock.ReaderGroup, name: str, found: list[str], enough: threading.Event) -> None:
    with group.reader(name) as reader:
        while not enough.is_set():
            event = reader.read(timeout_s=0.5)
            if event is not None:
                found.append(event.data.decode())
            if len(found) >= EXPECTED:
                enough.set()


@contextmanager
def process(*command: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("wb") as errors:
        started = subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait()
            for pipe in (started.stdin, started.stdout):
                if pipe is not None:
                    pipe.close()


def tell(client: subprocess.Popen[str], words: str) -> None:
    assert client.stdin is not None
    client.stdin.write(words + "\n")
    client.stdin.flush()


def hear(client: subprocess.Popen[str]) -> Any:
    assert client.stdout is not None
    return json.loads(client.stdout.readline())


def watch(stream: penstock.Stream, samples: list[Sample], idle: threading.Event, began_s: float) -> None:
    """Note the segments and their rates until the load has ended and the stream is one segment again."""
    while not idle.is_set():
        seconds = time.monotonic() - began_s
        load = 0.0 if due(seconds) >= COUNT else 3 * 2 ** min(seconds, DOUBLINGS)
        samples.append(Sample(minute=seconds, load=load, scaling=stream.explain_scaling()))
        if due(seconds) >= COUNT and len(samples[-1].scaling.segments) == 1:
            idle.set()
        time.sleep(0.2)


def test_clients_of_every_kind_follow_a_load_that_doubles_each_minute_and_ends(classpath: str, tmp_path: Path) -> None:
    samples: list[Sample] = []
    created, ready, noted, own_noted, go, idle, enough = (threading.Event() for _ in range(7))

    def step(asked: Mapping[str, Any]) -> str:
        reached, awaited = {"created": (created, ready), "noted": (noted, go), "written": (None, idle)}[asked["step"]]
        if reached is not None:
            reached.set()
        assert awaited.wait(PATIENCE_S)
        return f"{DOUBLINGS} {COUNT} {LAST} {EXPECTED} {ORIGIN_MS}"

    with ExitStack() as stack:
        # Left last: what runs in it ends when the store and the clients have been closed.
        pool = stack.enter_context(ThreadPoolExecutor(10))
        server = stack.enter_context(ServerProcess(tmp_path / "data", "--scaling-minute", "1s", "--workers", "2"))
        store = stack.enter_context(penstock.connect(server.address))
        java = JavaClient(classpath, server, tmp_path / "java.log")
        stack.callback(java.close)
        for event in (ready, go, idle, enough):
            stack.callback(event.set)
        of_java = pool.submit(java.run, "crowd", step, patience_s=PATIENCE_S)
        while not created.wait(1):
            assert not of_java.done(), of_java.result()
        stream = store.stream(NAME)
        script, spark_script = str(HERE / "official_scenarios.py"), str(HERE / "spark_crowd.py")
        spark = stack.enter_context(
            process(spark_script, server.address, NAME, str(EXPECTED), str(tmp_path), log=tmp_path / "spark.log")
        )
        assert spark.stdout is not None
        assert spark.stdout.readline() == "ready\n", (tmp_path / "spark.log").read_text()[-3000:]
        reader = stack.enter_context(process(script, server.address, "crowd_reader", log=tmp_path / "reader.log"))
        writer = stack.enter_context(process(script, server.address, "crowd_writer", log=tmp_path / "writer.log"))
        group = store.reader_group("own", [NAME])
        in_group: list[str] = []
        running: list[Future[Any]] = [
            pool.submit(read_in_group, group, name, in_group, enough) for name in ("one", "two")
        ]
        followed = pool.submit(follow, stream)
        running += [of_java, followed]
        running.append(pool.submit(write, stream, own_noted, go, idle))
        ready.set()
        for event in (noted, own_noted):
            assert event.wait(PATIENCE_S)
        # The Java client does not wait for the answer to a note.
        time.sleep(2)
        tell(reader, f"{SCOPE} {EXPECTED}")
        tell(writer, f"{SCOPE} {DOUBLINGS} {COUNT} {LAST}")
        go.set()
        watch(stream, samples, idle, time.monotonic())
        assert hear(writer) == {"written": COUNT}
        tell(writer, "go on")
        assert hear(writer) == {"written": COUNT + LAST}
        for future in running:
            future.result(PATIENCE_S)
        of_reader, of_spark = hear(reader), hear(spark)
        changes = stream.explain_scaling().changes

    if plot := os.environ.get("PENSTOCK_PLOT"):
        draw(samples, Path(plot))
    print(f"\n{EXPECTED} events; {[(change.action.value, len(change.opened)) for change in changes]}")
    print(
        f"most segments {max(len(item.scaling.segments) for item in samples)}; spark watermark {of_spark['watermark']}"
    )
    assert of_java.result() == {
        "all": True,
        "covered": True,
        "failures": "[]",
        "count": EXPECTED,
        "unique": EXPECTED,
        "followed": EXPECTED,
        "ordered": True,
        "back": 0,
        "late": 0,
    }
    check(of_reader["found"])
    check(followed.result())
    assert len(set(in_group)) == len(in_group) == EXPECTED
    check([event for _, events in of_spark["batches"] for event in events])
    bounds = [bound for bound, _ in of_spark["batches"]]
    known = [bound for bound in bounds if bound is not None]
    assert all(before <= after for before, after in pairwise(known))
    assert len(set(known)) >= 5
    assert not any(late(event, bound) for bound, events in of_spark["batches"] for event in events)
    actions = [change.action for change in changes]
    assert set(actions) == {ScalingAction.SPLIT, ScalingAction.MERGE}
    assert sum(before is not after for before, after in pairwise(actions)) == 1
