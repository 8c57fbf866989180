"""``python -m tests.crash.faults``: let the n-th write, sync, rename, unlink of a real store fail, for every n.

``strace`` makes one system call of the real process fail (EIO, ENOSPC), or kills the process there; a limit on the size of
files cuts writes short. Actors go on until they are refused. Then the store is opened anew, and everything is read: nothing
acknowledged is missing, nothing is there that was never asked for, every refusal was typed. Where a sync has failed, the disk
that a power loss would leave is recovered as well: whatever that sync should have written is not on it.

Skipped, with status 77, where ``strace`` may not trace.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.errors import InternalError, PenstockError
from tests.crash import small_store
from tests.crash.disk import PowerLossDisk
from tests.crash.model import Belief, Journal
from tests.crash.states import recover, scratch
from tests.crash.trace import CALLS, CANNOT_TRACE, Event, read_trace, strace_path
from tests.crash.workload import live

WRITES = ("pwritev2", "pwritev", "pwrite64")
SYNCS = ("fdatasync", "fsync")
NAMES = ("rename", "unlink", "mkdir")
SIZES = ("ftruncate", "fallocate")
N_MAX = 50
SCALE = 0.5
_LIFE_S = 6.0
_CALLED = re.compile(r"^\d+\s+\w+\([^<\"]*[<\"]([^>\"]*)[>\"]")


@dataclass(frozen=True, slots=True)
class Fault:
    """The ``number``-th ``call`` meets ``what``: an errno, ``KILL``, or (``call`` is "limit") files may not grow beyond
    ``number`` bytes. ``sticky``: all later ones as well."""

    call: str
    what: str
    number: int
    sticky: bool = False

    def __str__(self) -> str:
        return f"{self.call} {self.number}{'+' if self.sticky else ''} {self.what}"


@dataclass(slots=True)
class Tally:
    """What was met: ``hits`` counts faults per place and call, ``refusals`` the errors that callers got."""

    runs: int = 0
    hits: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    acked: int = 0
    power: int = 0
    wrong: list[str] = field(default_factory=list)


def place_of(path: str) -> str:
    """Which part of the store a path belongs to."""
    for part, name in (("wal", "log"), ("chunks", "tier 2"), ("metadata", "metadata")):
        if f"/data/{part}" in path:
            return name
    return "directory"


class Sweep:
    """Runs faults one after the other below ``directory``, each on a new store."""

    def __init__(self, strace: str | None, directory: Path, *, seed: int = 1, scale: float = SCALE) -> None:
        self._strace = strace
        self._directory = directory
        self._seed = seed
        self._scale = scale
        self.tally = Tally()

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def calls(self) -> Sequence[Event]:
        """What a run does without a fault."""
        self._run(None)
        return self._events()

    def sweep(self, call: str, what: str, *, n_max: int = N_MAX, sticky: bool = False, step: int = 1) -> None:
        """Every n until a run ends without meeting the n-th call, but at most ``n_max`` hits on each part of the store."""
        met: Counter[str] = Counter()
        number = 1
        while True:
            hit = self.meet(Fault(call, what, number, sticky))
            if hit is None:
                return
            met[hit] += 1
            number += step
            if met["log"] >= n_max and met["tier 2"] >= n_max and met["metadata"] >= n_max:
                return
            if number > n_max * 12:
                return

    def meet(self, fault: Fault) -> str | None:
        """Run, recover, check. Returns the part of the store that met the fault, or None: the run had no such call."""
        self.tally.runs += 1
        traced = self._run(fault)
        hit = "size limit" if fault.call == "limit" else _hit(traced, fault)
        belief = Belief.read(self._journal)
        self.tally.acked += belief.acked
        self.tally.refusals.update(line.split(": ", 1)[1].split(" ")[0] for line in belief.failures)
        wrong = [f"{fault}: {line}" for line in belief.broken]
        if hit is not None:
            self.tally.hits[f"{hit} {fault.call} {fault.what}"] += 1
        if fault.call in SYNCS and fault.what != "KILL" and hit is not None:
            wrong += self._lose_power(fault, belief)
        found, _ = recover(self._data, belief)
        self.tally.wrong += wrong + [f"{fault} on {hit}: {line}"[:900] for line in found]
        return hit

    @property
    def _journal(self) -> Path:
        return self._directory / "journal"

    def _events(self) -> Sequence[Event]:
        with (self._directory / "trace").open(errors="surrogateescape") as text:
            return read_trace(text, self._data, self._journal)

    def _lose_power(self, fault: Fault, belief: Belief) -> list[str]:
        """The disk without anything that no sync has covered."""
        disk = PowerLossDisk(str(self._data))
        for event in self._events():
            if event.kind != "say":
                disk.apply(event)
        self.tally.power += 1
        wrong = []
        for image in list(disk.images(random.Random(fault.number), 2))[-1:]:
            root = self._directory / "power"
            image.write_to(root)
            found, _ = recover(root, belief)
            wrong += [f"{fault}, then the power: {line}"[:900] for line in found]
            shutil.rmtree(root)
        return wrong

    def _run(self, fault: Fault | None) -> Sequence[str]:
        """One life. Returns the lines of the trace of which one may be the call that met the fault."""
        shutil.rmtree(self._data, ignore_errors=True)
        self._journal.unlink(missing_ok=True)
        output = self._directory / "trace"
        output.unlink(missing_ok=True)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.close(writing)
                os.read(reading, 1)
                _live_once(self._data, self._journal, self._seed, self._scale, fault)
            finally:
                os._exit(0)
        os.close(reading)
        tracer = None
        if fault is None or fault.call != "limit":
            tracer = self._attach(child, fault, output)
        os.write(writing, b"x")
        os.close(writing)
        os.waitpid(child, 0)
        if tracer is None:
            return []
        tracer.communicate()
        with output.open(errors="surrogateescape") as text:
            return [line for line in text if "(INJECTED)" in line or line.rstrip().endswith("= ?")]

    def _attach(self, child: int, fault: Fault | None, output: Path) -> subprocess.Popen[str]:
        if self._strace is None:
            raise InternalError("nothing can be traced")
        # The data of writes is needed only where a lost one is to be put on a disk of our own.
        whole = fault is None or (fault.call in SYNCS and fault.what != "KILL")
        command = [self._strace, "-f", "-y", "-o", str(output), "-e", f"trace={CALLS}", "-e", "signal=none"]
        command += ["-xx", "-s", str(1 << 25)] if whole else ["-s", "0"]
        if fault is not None:
            effect = "signal=KILL" if fault.what == "KILL" else f"error={fault.what}"
            command += ["-e", f"inject={fault.call}:{effect}:when={fault.number}{'+' if fault.sticky else ''}"]
        tracer = subprocess.Popen([*command, "-p", str(child)], stderr=subprocess.PIPE, text=True)
        line = tracer.stderr.readline() if tracer.stderr is not None else ""
        if "attached" not in line:
            tracer.kill()
            raise InternalError("strace cannot attach", said=line)
        return tracer


def _hit(traced: Sequence[str], fault: Fault) -> str | None:
    """The part of the store whose call met the fault: it is marked so, or it is the last of a process that was killed."""
    for line in traced:
        found = _CALLED.match(line)
        if found is not None and ("(INJECTED)" in line or (fault.what == "KILL" and line.rstrip().endswith("= ?"))):
            path = found[1]
            return place_of(bytes.fromhex(path.replace("\\x", "")).decode() if "\\x" in path else path)
    return None


def _live_once(data: Path, journal: Path, seed: int, scale: float, fault: Fault | None) -> None:
    # A refusal is written to the journal, by its type.
    logging.disable(logging.CRITICAL)
    if fault is not None and fault.call == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (fault.number, fault.number))
    book = Journal(journal)

    async def run() -> None:
        async with small_store.open_small_store(data) as store:
            try:
                async with asyncio.timeout(_LIFE_S):
                    await live(store, book, Belief(), life=0, seed=seed, scale=scale)
            except TimeoutError:
                # A call may wait for room, or for tier 2 to work again; nothing was acknowledged meanwhile.
                book.fail("life", "waits")
            os._exit(0)

    try:
        small_store.new_loop().run_until_complete(run())
    except (PenstockError, OSError) as error:
        book.fail("open", f"{type(error).__name__} {error}"[:300])
    except Exception as error:  # noqa: BLE001 - an error that is none of ours is the finding
        book.broken("open", f"untyped error {error!r}"[:300])


def meet_each(faults: Sequence[Fault], strace: str | None, directory: Path) -> Tally:
    """Each of them, on a new store below ``directory``. ``strace`` may be None where all are limits. Forks."""
    sweep = Sweep(strace, directory)
    for fault in faults:
        sweep.meet(fault)
    return sweep.tally


def sweeps(*, n_max: int, step: int) -> Iterator[tuple[str, Callable[[Sweep], None]]]:
    """All of them: name, and what to do."""

    def of(call: str, what: str, *, sticky: bool = False) -> tuple[str, Callable[[Sweep], None]]:
        name = f"{call} {what}{' and all later' if sticky else ''}"
        return name, lambda it: it.sweep(call, what, n_max=n_max, sticky=sticky, step=step)

    for call in (*WRITES, *SYNCS, *NAMES, *SIZES):
        yield of(call, "EIO")
        yield of(call, "KILL")
    for call in (*WRITES, *NAMES, *SIZES):
        yield of(call, "ENOSPC")
    for call in ("pwritev2", "pwrite64", "fdatasync"):
        yield of(call, "EIO", sticky=True)
    yield "short writes", lambda it: _limits(it, n_max, step)


def _limits(sweep: Sweep, n_max: int, step: int) -> None:
    """Files may grow to so many bytes: writes across that bound are cut short there, in every part of the store."""
    largest = small_store.LOG_FILE_BYTES * 3 // 2
    for number in range(1, n_max + 1, step):
        sweep.meet(Fault("limit", "EFBIG", largest * number // n_max + number * 37 % 512))


def main(argv: list[str] | None = None) -> int:
    """1 where any fault broke a promise, 77 where nothing can be traced."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.faults", description=__doc__)
    parser.add_argument("--n-max", type=int, default=N_MAX, help="faults per call, kind and part of the store")
    parser.add_argument("--step", type=int, default=1, help="of every so many n, one")
    parser.add_argument("--only", default="", help="sweeps whose name contains this")
    chosen = parser.parse_args(argv)
    strace = strace_path()
    if strace is None:
        return CANNOT_TRACE
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="penstock-faults-") as name:
        sweep = Sweep(strace, Path(name))
        for title, work in sweeps(n_max=chosen.n_max, step=chosen.step):
            if chosen.only in title:
                before = sweep.tally.runs
                work(sweep)
                sys.stdout.write(f"{title}: {sweep.tally.runs - before} runs, {len(sweep.tally.wrong)} wrong so far\n")
                sys.stdout.flush()
    tally = sweep.tally
    for line in tally.wrong[:20]:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"met: {dict(sorted(tally.hits.items()))}\nrefusals: {dict(tally.refusals.most_common())}\n")
    sys.stdout.write(
        f"{sum(tally.hits.values())} faults met in {tally.runs} runs, {tally.power} power losses after a failed sync, "
        f"{tally.acked} acknowledgements, {len(tally.wrong)} wrong, {time.perf_counter() - began:.0f} s\n"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
