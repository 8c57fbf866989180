"""``kill -9`` at random points of an erasure: whoever opens next ends it, and it ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import penstock

SECRET = b"canary-7f3a"
COUNT = 6000
WAIT_S = 60.0


def is_secret(number: int) -> bool:
    return number % 9 == 4


def event(number: int) -> bytes:
    return (SECRET if is_secret(number) else b"plain") + b" %d " % number + b"x" * (number % 200)


def fill(data: Path) -> None:
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", segments=2, create_scope=True)
        with stream.writer() as writer:
            for number in range(COUNT):
                writer.write(event(number), key=str(number % 30))


def life(data: Path, seed: int) -> None:
    """What the process does that is killed: open, find and erase, whatever an earlier life has done of it, and write."""
    with penstock.open(data) as store:
        stream = store.stream("s/t")
        print("open", flush=True)
        with stream.reader(until_tail=True) as reader:
            hits = [item for item in reader if item.data.startswith(SECRET)]
        stream.erase(hits, who="ann", why="test", erasure="e")
        print("done", flush=True)
        with stream.writer() as writer:
            for number in range(COUNT, COUNT + 10):
                writer.write(b"later %d %d" % (seed, number), key="k")
        time.sleep(WAIT_S)


def erasing(store: penstock.Store) -> bool:
    """Whether the erasure was decided, by this life or an earlier one."""
    return any(item["erasure"] == "e" and item["state"] != "gathering" for item in store.erasures())


def killed_life(data: Path, seed: int, rng: random.Random, *, program: str = __file__) -> bool:
    """Kill a process some time after it has opened the store; whether it had the receipt by then."""
    command = [sys.executable, program, str(data), str(seed)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(rng.random() ** 2 * 1.2)
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read()
    return "done" in rest


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_erasure_ends_as_one_that_was_not(tmp_path, seed):
    check(tmp_path / "data", seed, lives=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 130))
def test_many_killed_erasures_end_as_those_that_were_not(tmp_path, seed):
    check(tmp_path / "data", seed, lives=4)


def check(data: Path, seed: int, *, lives: int) -> None:
    rng = random.Random(seed)
    fill(data)
    with penstock.open(data) as store, store.stream("s/t").reader(until_tail=True) as reader:
        before = sorted((item.segment, item.offset, item.data) for item in reader)
    assert len(before) == COUNT
    for number in range(lives):
        killed_life(data, number, rng)
    with penstock.open(data) as store:
        stream = store.stream("s/t")
        hits = [(segment, offset) for segment, offset, data_ in before if data_.startswith(SECRET)]
        # Asked for once more: decided or not, begun or done, this is what it comes to.
        receipt = stream.erase(hits, who="ann", why="test", erasure="e")
        assert receipt["where"]["events"] == len(hits)
        assert receipt["sequence"] == 1
        found = stream.erasures.verify("e")
        assert found.holds, found.problems
        with stream.reader(until_tail=True) as reader:
            after = sorted((item.segment, item.offset, item.data) for item in reader)
        kept = [item for item in before if not item[2].startswith(SECRET)]
        assert [item for item in after if not item[2].startswith(b"later")] == kept
    left = [str(path) for path in data.rglob("*") if path.is_file() and SECRET in path.read_bytes()]
    assert left == []


if __name__ == "__main__":
    life(Path(sys.argv[1]), int(sys.argv[2]))
