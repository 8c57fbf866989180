"""``kill -9`` of processes that read, process and write, and of their server: each event is written exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock.testing.server import ServerProcess
from tests.crash.processing import OUT

pytestmark = pytest.mark.server
ROOT = Path(__file__).parents[2]
PATIENCE_S = 90
KEYS = 7


class Processor:
    """One process that copies events, killed and started again under the same name."""

    def __init__(self, address: str, name: str) -> None:
        self._command = [sys.executable, "-m", "tests.crash.processing", address, name]
        self.process = subprocess.Popen(self._command, cwd=ROOT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        self.kill()
        self.process = subprocess.Popen(self._command, cwd=ROOT)


@contextmanager
def processors(address: str, count: int) -> Iterator[list[Processor]]:
    running = [Processor(address, f"p{number}") for number in range(count)]
    try:
        yield running
    finally:
        for item in running:
            item.kill()


def numbers(store: penstock.Store) -> list[int]:
    """What was written, after checking the order of each key."""
    found: list[int] = []
    for name in OUT:
        texts = [event.data.decode() for event in store.stream(name).reader(until_tail=True)]
        for key in range(KEYS):
            mine = [int(text.split(":")[1]) for text in texts if text.startswith(f"k{key}:")]
            assert mine == sorted(mine)
        found += [int(text.split(":")[1]) for text in texts]
    return found


def check(path: Path, *, kills: int, server_kills: int, events: int, seed: int) -> None:
    rng = random.Random(seed)
    with ServerProcess(path / "data") as server:
        with penstock.connect(server.address) as store:
            source = store.create_stream("s/in", segments=2, create_scope=True)
            for name in OUT:
                store.create_stream(name, segments=2)
            group = store.reader_group("s/g", ["s/in"], lease_s=2.0, refresh_s=0.3)
        written = 0
        with processors(server.address, 2) as running:
            for step in range(kills):
                with penstock.connect(server.address) as store, store.stream("s/in").writer() as writer:
                    upto = events * (step + 1) // kills
                    for number in range(written, upto):
                        writer.write(f"k{number % KEYS}:{number}", key=f"k{number % KEYS}")
                    written = upto
                time.sleep(rng.random())
                rng.choice(running).restart()
                if step % kills < server_kills:
                    server.kill()
                    server.start()
            with penstock.connect(server.address) as store:
                deadline = time.monotonic() + PATIENCE_S
                source, group = store.stream("s/in"), store.open_reader_group("s/g")
                while group.positions()[source.name] != source.tail():
                    assert time.monotonic() < deadline, (server.tail(), Counter(numbers(store)).total())
                    time.sleep(0.1)
                assert Counter(numbers(store)) == Counter(range(events))
            # Nothing is written a second time later on.
            time.sleep(0.5)
        with penstock.connect(server.address) as store:
            assert Counter(numbers(store)) == Counter(range(events))


@pytest.mark.slow
def test_each_event_is_written_once_over_kills(tmp_path: Path) -> None:
    check(tmp_path, kills=4, server_kills=1, events=2000, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_each_event_is_written_once_over_many_kills(tmp_path: Path, seed: int) -> None:
    check(tmp_path, kills=40, server_kills=8, events=20_000, seed=seed)
