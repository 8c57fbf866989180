"""``kill -9`` at random points of an erasure: the next process that opens the store ends it, and it ends as if nothing had happened."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

import penstock
from tests.crash.erasure_lives import COUNT, SECRET, WAIT_S, fill, killed_life


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


@pytest.mark.parametrize("seed", range(1))
def test_a_killed_erasure_ends_as_one_that_was_not(tmp_path, seed):
    check(tmp_path / "data", seed, lives=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(1, 3), *range(100, 130)])
def test_many_killed_erasures_end_as_those_that_were_not(tmp_path, seed):
    check(tmp_path / "data", seed, lives=4)


def check(data: Path, seed: int, *, lives: int) -> None:
    rng = random.Random(seed)
    fill(data)
    with penstock.open(data) as store, store.stream("s/t").reader(until_tail=True) as reader:
        before = sorted((item.segment, item.offset, item.data) for item in reader)
    assert len(before) == COUNT
    for number in range(lives):
        killed_life("tests.crash.test_erasure_kills", data, number, rng)
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
