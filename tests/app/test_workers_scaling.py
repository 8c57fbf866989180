"""A stream that scales by rate and by hand while workers and servers are killed: nothing lost, doubled or out of order.

    pytest -m slow -s tests/app/test_workers_scaling.py

``PENSTOCK_ROUNDS`` sets the number of kills, 20 by default.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from workers_server import PATIENCE_S, alive, pids, wait_until

import penstock
from penstock.model.errors import PenstockError
from penstock.model.policies import ScaleType, ScalingPolicy
from penstock.testing.server import ServerProcess

pytestmark = [pytest.mark.server, pytest.mark.slow]

ROUNDS = int(os.environ.get("PENSTOCK_ROUNDS", "20"))
KEYS = 40
BY_RATE = ScalingPolicy(type=ScaleType.EVENTS_PER_S, target_rate=60, factor=3, min_segments=2)


class Crowd:
    """A writer that notes times, a writer of transactions, two readers of a group, and a reader that asks for windows."""

    def __init__(self, store: penstock.Store) -> None:
        self._stream = store.create_stream("s/t", scaling=BY_RATE, create_scope=True)
        self._group = store.reader_group("g", ["s/t"])
        self.stopping, self.over, self.busy = Event(), Event(), Event()
        self.written = self.committed = self.bounds = 0
        self.unknown: set[str] = set()
        self.in_group: list[str] = []
        self.alone: list[str] = []
        self.failures: list[BaseException] = []
        works = (self._write, self._transact, self._follow, lambda: self._read("one"), lambda: self._read("two"))
        self.writers = [Thread(target=self._run, args=(work,)) for work in works[:2]]
        self.readers = [Thread(target=self._run, args=(work,)) for work in works[2:]]

    def _run(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - reported to the test
            self.failures.append(error)

    def _write(self) -> None:
        with self._stream.writer(deadline_s=PATIENCE_S) as writer:
            writer.note_time(0)
            while not self.stopping.is_set():
                for _ in range(20 if self.busy.is_set() else 1):
                    self.written += 1
                    writer.write(f"w{self.written % KEYS}:{self.written}", key=f"w{self.written % KEYS}")
                writer.note_time(self.written)
                time.sleep(0.02 if self.busy.is_set() else 0.2)

    def _transact(self) -> None:
        number = 0
        while not self.stopping.is_set():
            events = [f"t{number % 3}:{number + place}" for place in range(5)]
            number += 5
            try:
                with self._stream.transaction(lease_s=20) as transaction:
                    for event in events:
                        transaction.write(event, key=event.partition(":")[0])
                self.committed += 5
            except PenstockError:
                # It may have been committed, or not, but as a whole.
                self.unknown.update(events)
            time.sleep(0.05)

    def _follow(self) -> None:
        lower: int | None = None
        with self._stream.reader() as reader:
            while not self.over.is_set():
                event = reader.read(timeout_s=0.5)
                if event is None:
                    continue
                text = event.data.decode()
                self.alone.append(text)
                assert not (text[0] == "w" and lower is not None and int(text.partition(":")[2]) <= lower), text
                if len(self.alone) % 20 == 0:
                    now = reader.time_window().lower_ms
                    assert lower is None or (now is not None and now >= lower)
                    self.bounds += now != lower
                    lower = now

    def _read(self, name: str) -> None:
        with self._group.reader(name) as reader:
            while not self.over.is_set():
                event = reader.read(timeout_s=0.5)
                if event is not None:
                    self.in_group.append(event.data.decode())


def faults(server: ServerProcess, stream: penstock.Stream, rng: random.Random) -> Iterator[str]:
    """One fault at a time; each says what it was."""
    while True:
        kind = rng.random()
        if kind < 0.5:
            before = pids(server)
            victim = rng.choice(sorted(before))
            os.kill(before[victim], signal.SIGKILL)
            wait_until(lambda v=victim, old=before: pids(server).get(v) not in (None, old[v]), "no worker came back")  # type: ignore[misc]
            yield "worker"
        elif kind < 0.75:
            orphans = pids(server).values()
            server.kill()
            wait_until(lambda left=orphans: not any(map(alive, left)), "a worker outlived its server")  # type: ignore[misc]
            server.start()
            yield "server"
        else:
            try:
                stream.scale(segments=rng.randrange(2, 7))
            except PenstockError:
                continue
            yield "scale by hand"


def check(events: list[str], crowd: Crowd) -> None:
    last: dict[str, int] = defaultdict(lambda: -1)
    assert len(set(events)) == len(events), "twice"
    for event in events:
        if event in crowd.unknown:
            # Its commit may come behind that of the next one.
            continue
        key, _, number = event.partition(":")
        assert int(number) > last[key], f"out of order: {event} behind {last[key]}"
        last[key] = int(number)
    assert sum(event[0] == "w" for event in events) == crowd.written
    certain = [event for event in events if event[0] == "t" and event not in crowd.unknown]
    assert len(certain) == crowd.committed
    torn = sum(event in crowd.unknown for event in events) % 5
    assert torn == 0, "a transaction was read in part"


def test_kills_while_a_stream_scales_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", "1"))
    rng, done = random.Random(seed), defaultdict(int)
    with (
        ServerProcess(tmp_path / "data", "--workers", "2", "--scaling-minute", "40ms") as server,
        penstock.connect(server.address) as store,
    ):
        crowd = Crowd(store)
        stream = store.stream("s/t")
        for thread in (*crowd.readers, *crowd.writers):
            thread.start()
        try:
            fault = faults(server, stream, rng)
            while done["worker"] + done["server"] < ROUNDS:
                (crowd.busy.set if rng.random() < 0.5 else crowd.busy.clear)()
                time.sleep(rng.uniform(0.2, 3.0))
                done[next(fault)] += 1
                assert not crowd.failures, crowd.failures
            crowd.stopping.set()
            for thread in crowd.writers:
                thread.join(PATIENCE_S)
            total = crowd.written + crowd.committed
            wait_until(
                lambda: bool(crowd.failures) or min(len(crowd.alone), len(crowd.in_group)) >= total,
                "events are missing",
            )
            wait_until(lambda: len(stream.describe().segments) == 2, "an idle stream does not merge")
            # Nothing more may come.
            time.sleep(1)
            epoch = stream.describe().epoch
        finally:
            crowd.stopping.set()
            crowd.over.set()
            for thread in (*crowd.readers, *crowd.writers):
                thread.join(PATIENCE_S)
    assert not crowd.failures, crowd.failures
    check(crowd.alone, crowd)
    assert sorted(crowd.in_group) == sorted(crowd.alone)
    assert crowd.bounds > ROUNDS / 2
    assert epoch > ROUNDS
    print(
        f"\nseed {seed}: {len(crowd.alone)} events, {len(crowd.unknown)} of unknown transactions, {epoch} changes of "
        f"segments, {dict(done)}, {crowd.bounds} bounds"
    )
