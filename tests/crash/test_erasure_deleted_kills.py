"""``kill -9`` while a stream is leased, erased and deleted at once: a receipt means that no file holds what was asked for."""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from uuid import UUID

import pytest

import penstock
from penstock.model.errors import PenstockError
from tests.crash.erasure_lives import SECRET, WAIT_S, erasing, fill, killed_life

SEGMENTS = ("s/t/0.#epoch.0", "s/t/1.#epoch.0")


def life(data: Path, seed: int) -> None:
    """What the process does that is killed: lease the chunks, erase, and delete the stream once the erasure is decided."""
    with penstock.open(data) as store:
        print("open", flush=True)
        threads = [threading.Thread(target=work, args=(store, seed)) for work in (erase, delete)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.erasures().wait("e")
        print("done", flush=True)
        time.sleep(WAIT_S)


def erase(store: penstock.Store, seed: int) -> None:
    if erasing(store):
        return
    until_ms = int(time.time() * 1000) + 600_000
    for segment in SEGMENTS:
        store._thread.call(
            store._inner.segments.lease_chunks([segment], UUID(int=7), until_ms=until_ms, holder="spark")
        )
    stream = store.stream("s/t")
    with stream.reader(until_tail=True) as reader:
        hits = [item for item in reader if item.data.startswith(SECRET)]
    stream.erase(hits, who="ann", why="test", erasure="e")


def delete(store: penstock.Store, seed: int) -> None:
    while not erasing(store):
        time.sleep(0.001)
    time.sleep(random.Random(seed).random() ** 3 * 0.1)
    try:
        store.stream("s/t").seal()
        store.stream("s/t").delete()
    except PenstockError as error:
        print("not deleted", type(error).__name__, file=sys.stderr)  # An earlier life has, or will be seen in the end.


@pytest.mark.parametrize("seed", range(2))
def test_a_receipt_of_a_deleted_stream_is_true(tmp_path, seed):
    check(tmp_path / "data", seed, lives=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_receipts_of_deleted_streams_are_true(tmp_path, seed):
    check(tmp_path / "data", seed, lives=3)


def check(data: Path, seed: int, *, lives: int) -> None:
    rng = random.Random(seed)
    fill(data)
    for number in range(lives):
        killed_life("tests.crash.test_erasure_deleted_kills", data, 10 * seed + number, rng)
    with penstock.open(data) as store:
        erase(store, seed)
        receipt = store.erasures().wait("e")
        assert receipt["where"]["events"] == receipt["request"]["events"]
        found = store.erasures().verify("e")
        assert found.holds, found.problems
    left = [str(path) for path in data.rglob("*") if path.is_file() and SECRET in path.read_bytes()]
    assert left == []


if __name__ == "__main__":
    life(Path(sys.argv[1]), int(sys.argv[2]))
