"""Counts that worker processes share: together they never pass a bound, and a process that dies holds nothing."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import pytest

from penstock.model.errors import InternalError
from penstock.storage.machine.shared_counts import CountsMemory, WorkerCounts

TAKER = """
import sys
from penstock.storage.machine.shared_counts import WorkerCounts
descriptor, worker, bound = map(int, sys.argv[1:])
counts = WorkerCounts(descriptor, worker=worker, workers=3)
counts.assign("s/t", 0)
row, taken = counts.of("s/t"), 0
while True:
    if not row.lock():
        continue
    try:
        if sum(row.others()) + taken >= bound:
            break
        taken += 1
        row.publish(taken, 0)
    finally:
        row.unlock()
print(taken)
"""
HOLDER = """
import sys
from penstock.storage.machine.shared_counts import WorkerCounts
counts = WorkerCounts(int(sys.argv[1]), worker=0, workers=3)
counts.assign("s/t", 0)
print(counts.of("s/t").lock(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def memory():
    made = CountsMemory(3)
    yield made
    made.close()


def test_each_sees_what_the_others_say(memory: CountsMemory) -> None:
    stores = [WorkerCounts(memory.fileno(), worker=number, workers=3) for number in range(3)]
    assert stores[0].of("s/t") is None
    rows = []
    for store in stores:
        store.assign("s/t", memory.row("s/t"))
        rows.append(store.of("s/t"))
    for number, row in enumerate(rows):
        row.publish(10**number, number)
    assert [row.others() for row in rows] == [(110, 3), (101, 2), (11, 1)]
    stores[0].assign("s/t", None)
    assert stores[0].of("s/t") is None


def test_rows_are_given_anew_empty_and_grow(memory: CountsMemory) -> None:
    store = WorkerCounts(memory.fileno(), worker=1, workers=3)
    first = memory.row("s/0")
    assert memory.row("s/0") == first
    store.assign("s/0", first)
    kept = store.of("s/0")
    kept.publish(7, 7)
    rows = {memory.row(f"s/{number}") for number in range(5000)}
    assert len(rows) == 5000
    last = memory.row("s/4999")
    store.assign("s/4999", last)
    store.of("s/4999").publish(1, 1)
    kept.publish(8, 8)
    other = WorkerCounts(memory.fileno(), worker=0, workers=3)
    for stream, expected in (("s/0", (8, 8)), ("s/4999", (1, 1))):
        other.assign(stream, memory.row(stream))
        assert other.of(stream).others() == expected
    memory.release("s/0")
    assert memory.row("again") == first
    other.assign("again", first)
    assert other.of("again").others() == (0, 0)


def test_there_is_no_worker_beyond_their_number(memory: CountsMemory) -> None:
    with pytest.raises(InternalError):
        WorkerCounts(memory.fileno(), worker=3, workers=3)


def start(script: str, memory: CountsMemory, *arguments: int) -> subprocess.Popen:
    number = memory.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", script, str(number), *map(str, arguments)],
        pass_fds=(number,),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


def test_processes_that_take_at_once_never_pass_the_bound_together(memory: CountsMemory) -> None:
    assert memory.row("s/t") == 0
    takers = [start(TAKER, memory, worker, 3000) for worker in range(3)]
    taken = [int(taker.communicate(timeout=60)[0]) for taker in takers]
    assert sum(taken) == 3000


def test_a_process_that_dies_lets_go_of_its_lock(memory: CountsMemory) -> None:
    memory.row("s/t")
    own = WorkerCounts(memory.fileno(), worker=1, workers=3)
    own.assign("s/t", 0)
    row = own.of("s/t")
    holder = start(HOLDER, memory)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    assert not row.lock()
    holder.kill()
    holder.communicate(timeout=30)
    assert row.lock()
    row.unlock()


def test_a_lock_is_kept_when_a_smaller_map_is_collected(memory: CountsMemory) -> None:
    own = WorkerCounts(memory.fileno(), worker=1, workers=3)
    own.assign("s/first", memory.row("s/first"))
    first = own.of("s/first")
    # The memory grows, and the next row lies in a larger map.
    last = [memory.row(f"s/{number}") for number in range(5000)][-1]
    own.assign("s/t", last)
    row = own.of("s/t")
    assert row.lock()
    del first
    gc.collect()
    holder = start(HOLDER.replace('"s/t", 0', f'"s/t", {last}'), memory)
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "False\n", "the lock is still ours"
    finally:
        holder.kill()
        holder.communicate(timeout=30)
    row.unlock()
