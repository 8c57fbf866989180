"""``python -m tests.crash.states``: trace a real store, and recover every disk that a power loss may leave.

The traced process lives several lives, each ended by ``kill -9``. At every system call the trace gives the disks that POSIX
allows; the real recovery opens each, everything is read, and held against what was acknowledged by then. Some are killed
again and recovered once more, which must find the same. Skipped, with status 77, where ``strace`` may not trace.
"""

from __future__ import annotations

import argparse
import gc
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.crash import small_store
from tests.crash.disk import Image, PowerLossDisk
from tests.crash.model import Belief, Journal
from tests.crash.observe import holding, observe
from tests.crash.trace import CANNOT_TRACE, Event, read_trace, strace_path, trace_command
from tests.crash.workload import live

LIVES = 3
AGAIN_EVERY = 5
"""Every so many-th state is recovered twice."""


@dataclass(slots=True)
class Tally:
    """What was enumerated. ``wrong``: a line for each broken promise."""

    points: int = 0
    states: int = 0
    again: int = 0
    torn: int = 0
    digests: set[bytes] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.points += other.points
        self.again += other.again
        self.digests |= other.digests
        self.states = len(self.digests)
        self.torn += other.torn
        self.wrong += other.wrong


def scratch() -> str | None:
    """Where disks are written: in memory, where there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


# --- the traced process -----------------------------------------------------------------------------------------------


def run_lives(data: Path, journal: Path, seed: int, *, lives: int = LIVES, scale: float = 1.0) -> None:
    """Live, die by ``kill -9`` at once when done, and live again."""
    for life in range(lives):
        known = Belief.read(journal)
        if small_store.in_child(partial(_live_once, data, Journal(journal), known, life, seed, scale)) != b"done":
            raise SystemExit(f"life {life} failed")


async def _live_once(data: Path, journal: Journal, belief: Belief, life: int, seed: int, scale: float) -> bytes:
    async with small_store.open_small_store(data) as store:
        await live(store, journal, belief, life=life, seed=seed, scale=scale)
        return b"done"


def record(strace: str, directory: Path, seed: int, *, scale: float = 1.0) -> list[Event]:
    """Trace such lives. Raises CalledProcessError with what the process said."""
    data, journal, output = directory / "data", directory / "journal", directory / "trace"
    command = [sys.executable, "-m", "tests.crash.states", "--live", str(data), str(journal)]
    subprocess.run(
        [*trace_command(strace, output), *command, "--seed", str(seed), "--scale", str(scale)], check=True, timeout=300
    )
    with output.open(errors="surrogateescape") as text:
        events = read_trace(text, data, journal)
    output.unlink()
    return events


# --- recovery ---------------------------------------------------------------------------------------------------------


def recover(root: Path, belief: Belief) -> tuple[list[str], object]:
    """Open, read everything, and die. Returns what is wrong, and what was seen."""

    async def look() -> bytes:
        try:
            async with small_store.open_small_store(root) as store:
                seen = await observe(store, belief.subjects)
                return pickle.dumps((belief.mismatches(seen), seen))
        except Exception as error:  # noqa: BLE001 - whatever recovery dies of is the finding
            return pickle.dumps(([f"recovery failed: {error!r}"], None))

    if left := holding(root, belief.erased):
        return [f"erased bytes are left: {left[:3]}"], None
    answer = small_store.in_child(look)
    found: tuple[list[str], object] = pickle.loads(answer) if answer else (["recovery died"], None)
    return found


def check(image: Image, root: Path, belief: Belief, tally: Tally, where: str) -> None:
    # A run that was killed in a check has left its disk here.
    shutil.rmtree(root, ignore_errors=True)
    image.write_to(root)
    try:
        wrong, seen = recover(root, belief)
        if not wrong and tally.states % AGAIN_EVERY == 0:
            tally.again += 1
            wrong, later = recover(root, belief)
            if not wrong and later != seen:
                wrong = ["a second recovery finds something else"]
        tally.wrong += [f"{where}, {image.lost} changes lost: {line}"[:900] for line in wrong]
    finally:
        shutil.rmtree(root)


def enumerate_states(
    events: Sequence[Event],
    root: str,
    scratch: Path,
    *,
    seed: int,
    per_point: int,
    points: range | None = None,
    states_max: int | None = None,
    every: int = 1,
    forget: str | None = None,
) -> Tally:
    """Recover what may be found before every event of ``points``; ``every``: of so many, one.

    ``forget`` plants a bug: syncs of paths that match it have done nothing.
    """
    tally = Tally()
    # What is here already never dies: children need not look at it, nor copy its pages.
    gc.collect()
    gc.freeze()
    disk, belief = PowerLossDisk(root), Belief()
    for number, event in enumerate(events):
        if event.kind == "say":
            for line in event.data.splitlines():
                belief.line(line)
            continue
        if (points is None or number in points) and number % every == 0:
            tally.points += 1
            for image in disk.images(random.Random(f"{seed}/{number}"), per_point):
                if image.digest in tally.digests:
                    continue
                tally.digests.add(image.digest)
                tally.states += 1
                tally.torn += image.lost > 0
                check(image, scratch / "disk", belief, tally, f"seed {seed} event {number} {event.kind} {event.path}")
                if tally.states % 500 == 0:
                    sys.stderr.write(f"seed {seed}, event {number}: {tally.states} disks, {len(tally.wrong)} wrong\n")
                if len(tally.wrong) >= 10 or (states_max is not None and tally.states >= states_max):
                    return tally
        if forget is None or event.kind != "sync" or re.search(forget, event.path[len(root) :]) is None:
            disk.apply(event)
    return tally


def _shares(events: int, jobs: int) -> Iterator[range]:
    for job in range(jobs):
        yield range(events * job // jobs, events * (job + 1) // jobs)


def run(seed: int, *, states: int, jobs: int, scale: float = 1.0) -> Tally:
    """Trace one seed, and recover about ``states`` different disks in ``jobs`` processes."""
    strace = strace_path()
    if strace is None:
        raise SystemExit(CANNOT_TRACE)
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="penstock-states-") as name:
        directory = Path(name)
        events = record(strace, directory, seed, scale=scale)
        moments = sum(event.kind != "say" for event in events)
        # Half of a moment's disks are those of its neighbours.
        per_point = max(4, round(states / moments * 2.2))
        every = max(1, round(moments * 4 / 1.6 / states))
        total = Tally()
        if jobs == 1:
            return enumerate_states(
                events, str(directory / "data"), directory, seed=seed, per_point=per_point, every=every
            )
        for share in _in_processes(events, directory, seed, per_point, every, jobs):
            total.add(share)
        return total


def _in_processes(
    events: Sequence[Event], directory: Path, seed: int, per_point: int, every: int, jobs: int
) -> Iterator[Tally]:
    children = []
    for number, points in enumerate(_shares(len(events), jobs)):
        result = directory / f"result-{number}"
        child = os.fork()
        if child == 0:
            try:
                place = directory / f"job-{number}"
                tally = enumerate_states(
                    events, str(directory / "data"), place, seed=seed, per_point=per_point, points=points, every=every
                )
                result.write_bytes(pickle.dumps(tally))
            finally:
                os._exit(0)
        children.append((child, result))
    for child, result in children:
        os.waitpid(child, 0)
        yield pickle.loads(result.read_bytes())


def main(argv: list[str] | None = None) -> int:
    """1 where any disk broke a promise, 77 where nothing can be traced."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.states", description=__doc__)
    parser.add_argument("--states", type=int, default=10_000, help="about how many different disks in all")
    parser.add_argument("--seeds", type=int, default=1, help="traces to take them from")
    parser.add_argument("--seed", type=int, default=1, help="the first")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--scale", type=float, default=1.0, help="length of a life")
    parser.add_argument("--live", nargs=2, metavar=("DATA", "JOURNAL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.live is not None:
        run_lives(Path(chosen.live[0]), Path(chosen.live[1]), chosen.seed, scale=chosen.scale)
        return 0
    began, total = time.perf_counter(), Tally()
    for seed in range(chosen.seed, chosen.seed + chosen.seeds):
        total.add(run(seed, states=chosen.states // chosen.seeds, jobs=chosen.jobs, scale=chosen.scale))
    for line in total.wrong[:20]:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(
        f"{total.states} different disks ({total.torn} with losses) at {total.points} moments of {chosen.seeds} traces, "
        f"{total.again} recovered twice, {len(total.wrong)} wrong, {time.perf_counter() - began:.0f} s\n"
    )
    return 1 if total.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
