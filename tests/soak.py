"""``python -m tests.soak``: the long forms of all that shows reliability, and one line for each promise.

Each check is a command of its own, which prints its figures in its last line and fails if a promise was broken. All are run,
whatever failed before. The lines at the end say for each promise what was run, what it counted, and whether it was kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.crash.trace import CANNOT_TRACE

_ROOT = Path(__file__).resolve().parents[1]
_FIGURE_MAX = 220


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A command with a size: ``count`` of what it repeats takes about ``minutes`` on one core of our laptops."""

    name: str
    what: str
    minutes: float
    count: int
    command: Callable[[int], Sequence[str]]
    least: int = 1

    def scaled(self, factor: float) -> Sequence[str]:
        return self.command(max(self.least, round(self.count * factor)))


def _module(name: str, *options: str) -> Callable[[int], Sequence[str]]:
    """``{}`` in an option stands for the count."""
    return lambda count: ["-m", name, *(option.replace("{}", str(count)) for option in options)]


def _pytest(*options: str) -> Callable[[int], Sequence[str]]:
    return lambda count: ["-m", "pytest", "-q", "-p", "no:cacheprovider", *options]


_SIM = "penstock.testing.simulation"
_CRASH = "tests.crash"
CHECKS: Sequence[Check] = (
    Check(
        name="simulation",
        what="store, controller, wire and client under crashes, power losses, full disks, broken networks",
        minutes=12,
        count=240,
        least=10,
        command=_module(_SIM, "--seeds", "{}", "--from", "40000", "--pace", "8", "--keep-going"),
    ),
    Check(
        name="dense",
        what="the same with more of everything in every second",
        minutes=15,
        count=600,
        least=10,
        command=_module(_SIM, "--seeds", "{}", "--from", "20000", "--keep-going"),
    ),
    Check(
        name="rates",
        what="the same with a stream that scales by rate and writers that note times",
        minutes=8,
        count=80,
        least=10,
        command=_module(_SIM, "--rates", "--seeds", "{}", "--from", "60000", "--keep-going"),
    ),
    Check(
        name="retention",
        what="months of retention under crashes and clocks that jump",
        minutes=12,
        count=10,
        least=1,
        command=_module(_SIM, "--retention-days", "30", "--seeds", "{}", "--from", "700", "--keep-going"),
    ),
    Check(
        name="ledgers",
        what="a log on BookKeeper whose owners die or are deposed, with bookies and a coordinator that fail",
        minutes=5,
        count=2000,
        least=50,
        command=_module(_SIM, "--ledgers", "--seeds", "{}", "--from", "80000", "--seconds", "20", "--keep-going"),
    ),
    Check(
        name="cluster",
        what="three stores of a cluster that crash, pause, lose sessions and connections, and hand containers over",
        minutes=15,
        count=400,
        least=10,
        command=_module(_SIM, "--cluster", "--seeds", "{}", "--from", "90000", "--keep-going"),
    ),
    Check(
        name="planted",
        what="planted bugs, each of which must be found",
        minutes=6,
        count=1,
        command=_pytest("-m", "slow", "tests/simulation"),
    ),
    Check(
        name="planted in files",
        what="the same in real servers, traces and erasures that are killed",
        minutes=14,
        count=1,
        command=_pytest("-m", "slow", "tests/crash"),
    ),
    Check(
        name="cases",
        what="cases of erasure in servers that are killed, and older backups of them with the ledger",
        minutes=10,
        count=60,
        least=3,
        command=_module(f"{_CRASH}.case_lives", "--histories", "{}", "--seed", "5000"),
    ),
    Check(
        name="states",
        what="every disk that a power loss may leave of the real store's files",
        minutes=14,
        count=10_000,
        least=100,
        command=_module(f"{_CRASH}.states", "--states", "{}", "--seeds", "2"),
    ),
    Check(
        name="calls",
        what="the n-th write, sync, rename, unlink fails, is cut short, or kills",
        minutes=14,
        count=50,
        least=3,
        command=_module(f"{_CRASH}.faults", "--n-max", "{}"),
    ),
    Check(
        name="flips",
        what="random bits flipped in every kind of file",
        minutes=7,
        count=2000,
        least=50,
        command=_module(f"{_CRASH}.flips", "--flips", "{}"),
    ),
    Check(
        name="kills",
        what="kill -9 and SIGSTOP of real servers under writers, readers and transactions",
        minutes=20,
        count=1000,
        least=10,
        command=_module(f"{_CRASH}.kills", "--cycles", "{}"),
    ),
    Check(
        name="official",
        what="kill -9 of real servers under Pravega's own client",
        minutes=4,
        count=100,
        least=5,
        command=_module(f"{_CRASH}.kill_cycles", "--cycles", "{}"),
    ),
    Check(
        name="spark kills",
        what="kill -9 of workers, executors, drivers and the store under a streaming copy of Spark",
        minutes=40,
        count=50,
        least=5,
        command=lambda count: ["tests/spark/kill_matrix.py", "--times", str(count)],
    ),
    Check(
        name="full disk",
        what="a real disk that fills up and is emptied again",
        minutes=1,
        count=1,
        command=_pytest("-m", "server", "tests/crash/test_full_disk.py"),
    ),
    Check(
        name="units",
        what="laws of the log, the chunks, the store, the controller on their own",
        minutes=15,
        count=1,
        command=_pytest("--hypothesis-profile", "long", "tests/storage", "tests/segmentstore", "tests/controller"),
    ),
    Check(
        name="slow tests",
        what="all other tests that take minutes",
        minutes=40,
        count=1,
        command=_pytest("-m", "slow", "--ignore=tests/simulation", "--ignore=tests/crash", "tests"),
    ),
)


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of docs/explanation/reliability.md, and the checks that show it."""

    id: str
    text: str
    shown_by: Sequence[str]


_ALL = ("simulation", "dense", "planted", "planted in files", "states", "calls", "kills", "official")
PROMISES: Sequence[Promise] = (
    Promise("B1", "acknowledged events stay", (*_ALL, "retention", "ledgers", "cluster")),
    Promise(
        "B2", "every acknowledgement rests on durable state", ("simulation", "planted", "states", "calls", "kills")
    ),
    Promise("B3", "what was read never vanishes", ("simulation", "planted", "states", "kills")),
    Promise("B4", "after a failed sync nothing is acknowledged from that file", ("simulation", "planted", "calls")),
    Promise("B5", "torn tails are trimmed, damage is refused, nothing is deleted for it", ("states", "flips", "units")),
    Promise("B6", "a flipped bit gives an error, never wrong bytes", ("flips", "units")),
    Promise(
        "B7", "recovery may be cut short anywhere and repeated", ("simulation", "states", "calls", "ledgers", "cluster")
    ),
    Promise("B8", "the log forgets only what is durable in tier 2", ("simulation", "planted", "states")),
    Promise("O1", "order per key and writer, across splits and merges", ("simulation", "rates", "kills", "official")),
    Promise("O3", "a place in a segment holds the same bytes forever", ("simulation", "states", "kills", "cluster")),
    Promise("O5", "conditional appends and tables: compare and set loses nothing", ("simulation", "kills", "cluster")),
    Promise("E1", "an event is stored at most once", ("simulation", "planted", "kills", "official", "spark kills")),
    Promise("T1", "transactions, batches, merges: all or nothing, once", ("simulation", "planted", "states", "kills")),
    Promise("T3", "what was aborted is never read", ("simulation", "planted", "kills")),
    Promise("R1", "heads never move back but by an undo", ("simulation", "retention")),
    Promise("R2", "nothing goes but by a rule, nothing that is held", ("retention", "planted")),
    Promise("R7", "a reader's leased chunks stay", ("simulation", "planted", "kills", "cluster")),
    Promise("F5", "clocks that jump change nothing of this", ("simulation", "retention")),
    Promise(
        "M4", "a full disk is reported, and writing goes on once there is space", ("simulation", "calls", "full disk")
    ),
    Promise("L1", "after all faults everything ends by itself", ("simulation", "dense", "kills")),
    Promise("D1", "the same seed is the same run; planted bugs are found", ("planted",)),
    Promise("R9", "erased bytes are in no file, and in no restored copy", ("cases",)),
    Promise("U1", "all laws that take minutes", ("slow tests",)),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``kept=None``: it could not be run here."""

    kept: bool | None
    figure: str
    took_s: float


def run(check: Check, factor: float) -> Outcome:
    """Run a command and take its last line for its figure."""
    began = time.monotonic()
    paths = [str(_ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *check.scaled(factor)],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.strip()] or [done.stderr.strip()[-_FIGURE_MAX:]]
    kept = None if done.returncode == CANNOT_TRACE else done.returncode == 0
    if kept is False:
        sys.stderr.write(f"--- {check.name} failed ---\n" + "\n".join(lines[-40:]) + f"\n{done.stderr[-2000:]}\n")
    return Outcome(kept, lines[-1].strip(" =")[:_FIGURE_MAX], time.monotonic() - began)


def line_of(promise: Promise, outcomes: dict[str, Outcome]) -> str:
    """Its one line: id, verdict, promise, the command that shows it again, what each check counted."""
    ran = {name: outcomes[name] for name in promise.shown_by if name in outcomes}
    verdict = verdict_of(ran)
    figures = "; ".join(f"{name}: {item.figure}" for name, item in ran.items() if item.kept is not None)
    command = f"python -m tests.soak --only {promise.id}"
    return f"{promise.id:3} {verdict:9} {promise.text} | {command} | {figures or 'nothing was run'}"


def verdict_of(ran: dict[str, Outcome]) -> str:
    if any(item.kept is False for item in ran.values()):
        return "BROKEN"
    return "kept" if any(item.kept for item in ran.values()) else "not shown"


def _chosen(only: Sequence[str]) -> Sequence[Check]:
    wanted = {name for promise in PROMISES if promise.id in only for name in promise.shown_by} | set(only)
    unknown = set(only) - {promise.id for promise in PROMISES} - {check.name for check in CHECKS}
    if unknown:
        raise SystemExit(f"no such promise or check: {', '.join(sorted(unknown))}; see --list")
    return [check for check in CHECKS if not only or check.name in wanted]


def main(argv: list[str] | None = None) -> int:
    """1 where any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--list", action="store_true", help="say what would be run")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a check, or a promise's id")
    parser.add_argument("--minutes", type=float, help="scale everything to about so many minutes in all")
    given = parser.parse_args(argv)
    checks = _chosen(given.only)
    factor = 1.0 if given.minutes is None else given.minutes / sum(check.minutes for check in checks)
    if given.list:
        for check in checks:
            command = " ".join(check.scaled(factor))
            sys.stdout.write(
                f"{check.name:11} about {check.minutes * factor:.0f} min: {check.what}\n{'':12}python {command}\n"
            )
        for promise in PROMISES:
            sys.stdout.write(f"{promise.id:3} {promise.text}: {', '.join(promise.shown_by)}\n")
        return 0
    outcomes: dict[str, Outcome] = {}
    for check in checks:
        sys.stderr.write(f"{check.name}: {check.what} (about {check.minutes * factor:.0f} min)\n")
        outcomes[check.name] = found = run(check, factor)
        word = {True: "kept", False: "BROKEN", None: "skipped"}[found.kept]
        sys.stderr.write(f"{check.name}: {word}, {found.figure}, {found.took_s:.0f} s\n")
    for promise in PROMISES:
        if any(name in outcomes for name in promise.shown_by):
            sys.stdout.write(line_of(promise, outcomes) + "\n")
    return 1 if any(item.kept is False for item in outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
