"""``python -m tests.crash.flips``: flip random bits in the files of a stopped store, open it, read everything.

Each flip must be harmless or refused with an error of ours: no reader gets a byte, a table entry, a number or a name that is
not what was written, and nothing is taken away because it was damaged. The latter is shown by turning the bit back: then
everything must be there again (of SQLite's file, all but the damaged row, which may have been copied by then).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import pickle
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.errors import InternalError, PenstockError
from penstock.segmentstore.store import SegmentStore
from tests.crash import small_store
from tests.crash.model import Belief, Journal
from tests.crash.observe import observe
from tests.crash.states import scratch
from tests.crash.workload import live

KINDS = {
    "log": r"wal/.*\.log$",
    "log epoch": r"wal/EPOCH",
    "chunk": r"chunks/.*[^x]$",
    "sidecar": r"chunks/.*\.idx$",
    "metadata": r"metadata/store\.db$",
    "tier 2's record": r"tier2\.json$|tier2/(STORE|owners/.*)$",
    "version, lock, reserve": r"data/(VERSION|LOCK|RESERVE)$",
}
LIVES = 3


@dataclass(slots=True)
class Tally:
    """``outcomes`` counts per kind of file: detected, harmless, wrong."""

    flips: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def make_store(root: Path, seed: int, *, scale: float = 1.0) -> tuple[Mapping[str, bytes], Belief]:
    """A store below ``root`` that has lived and was stopped in good order: its files, and what it holds."""
    data, tier2, journal = root / "data", root / "tier2", root / "journal"
    tier2.mkdir(parents=True, mode=0o700)
    lives = [_one_life(data, tier2, journal, life, seed, scale) for life in range(LIVES)]
    for life in [*lives, _collected(data, tier2)]:
        child = os.fork()
        if child == 0:
            logging.disable(logging.CRITICAL)
            try:
                asyncio.new_event_loop().run_until_complete(life)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        life.close()
    belief = Belief.read(journal)
    journal.unlink()
    files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    shutil.rmtree(root)
    return files, belief


async def _one_life(data: Path, tier2: Path, journal: Path, life: int, seed: int, scale: float) -> None:
    async with small_store.open_small_store(data, tier2=tier2) as store:
        await live(store, Journal(journal), Belief.read(journal), life=life, seed=seed, scale=scale)
        for _ in range(3):
            # What one flush lets go of, the next one gives back: a file that is missing later was not garbage.
            await store.segments.flush()


async def _collected(data: Path, tier2: Path) -> None:
    """Chunks that were written to be adopted, and were not, are what the next opening takes away."""
    async with small_store.open_small_store(data, tier2=tier2) as store:
        if not isinstance(store.segments, SegmentStore):
            raise InternalError("a small store is one process")
        for container in store.segments.containers:
            await container.reclaimer.scanned()
        for _ in range(3):
            await store.segments.flush()


def look(root: Path, belief: Belief) -> tuple[list[str], list[str]]:
    """Open and read everything, each actor's by itself. Returns refusals, by type, and what is wrong."""

    async def work() -> bytes:
        refused: list[str] = []
        wrong: list[str] = []
        try:
            async with small_store.open_small_store(root / "data") as store:
                for actor, subject in belief.subjects.items():
                    try:
                        seen = await observe(store, {actor: subject})
                    except PenstockError as error:
                        refused.append(f"{type(error).__name__} {error}")
                        continue
                    except Exception as error:  # noqa: BLE001 - an error that is none of ours is the finding
                        wrong.append(f"{actor}: untyped {error!r}")
                        continue
                    found = belief.mismatches({**{name: {} for name in belief.subjects}, **seen})
                    wrong += [line for line in found if line.startswith(f"{actor}:")]
                return pickle.dumps((refused, wrong))
        except PenstockError as error:
            refused.append(f"{type(error).__name__} {error}")
        except Exception as error:  # noqa: BLE001 - the same
            wrong.append(f"untyped {error!r}")
        return pickle.dumps((refused, wrong))

    answer = small_store.in_child(work)
    found: tuple[list[str], list[str]] = pickle.loads(answer) if answer else ([], ["the process died"])
    return found


def _write(root: Path, files: Mapping[str, bytes]) -> None:
    for path, data in files.items():
        target = root / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        target.write_bytes(data)


def _choose(rng: random.Random, files: Mapping[str, bytes], kind: str) -> tuple[str, int]:
    """A file of that kind, and a bit of it: half of the time one near others that are set."""
    path = rng.choice([name for name in files if re.search(KINDS[kind], name) and files[name]])
    data = files[path]
    place = rng.randrange(len(data))
    if rng.random() < 0.7:
        used = [index for index in rng.sample(range(len(data)), min(len(data), 400)) if data[index]]
        place = rng.choice(used or [place])
    return path, place * 8 + rng.randrange(8)


def flip(root: Path, files: Mapping[str, bytes], belief: Belief, kind: str, rng: random.Random, tally: Tally) -> None:
    """One bit: what happens, and whether all that it did not touch is still there."""
    path, bit = _choose(rng, files, kind)
    mask = 1 << bit % 8
    damaged = bytearray(files[path])
    damaged[bit // 8] ^= mask
    _write(root, {**files, path: bytes(damaged)})
    try:
        refused, wrong = look(root, belief)
        # What serves the right bytes first and stumbles over the damage later must do so every time.
        outcome = "wrong" if wrong else "detected" if refused else "harmless"
        tally.errors.update(line.split(" ")[0] for line in refused)
        if not wrong and refused:
            wrong = _gone(root, files) or _turn_back(root, files, path, bit, belief)
            outcome = "wrong" if wrong else outcome
        tally.flips += 1
        tally.outcomes[f"{kind} {outcome}"] += 1
        for line in wrong:
            tally.wrong.append(f"{path} byte {bit // 8} bit {bit % 8}: {line}"[:900])
            sys.stderr.write(f"{tally.wrong[-1]}\n")
    finally:
        shutil.rmtree(root)


def _gone(root: Path, files: Mapping[str, bytes]) -> list[str]:
    """Chunks that are not there any more, or not as they were: a stopped store has none that nobody needs."""
    chunks = [name for name in files if re.search(r"chunks/", name)]
    return [f"{name} is gone" for name in chunks if not (root / name).exists()]


def _turn_back(root: Path, files: Mapping[str, bytes], path: str, bit: int, belief: Belief) -> list[str]:
    target = root / path
    if not target.exists():
        return ["the damaged file was deleted"]
    data = bytearray(target.read_bytes())
    if bit // 8 >= len(data):
        return ["the damaged file was cut"]
    data[bit // 8] ^= 1 << bit % 8
    target.write_bytes(data)
    refused, wrong = look(root, belief)
    if re.search(KINDS["metadata"], path):
        # SQLite copies a page whole when it changes another row of it: the damaged row then lies in two places.
        return [f"after healing: {line}" for line in wrong] + _gone(root, files)
    return [*(f"not healed: {line}" for line in refused), *(f"after healing: {line}" for line in wrong)]


def run(count: int, *, seed: int, scale: float = 1.0) -> Tally:
    """So many flips, over all kinds of files in turn."""
    tally = Tally()
    with tempfile.TemporaryDirectory(dir=scratch(), prefix="penstock-flips-") as name:
        root = Path(name) / "store"
        files, belief = make_store(root, seed, scale=scale)
        _write(root, files)
        refused, wrong = look(root, belief)
        wrong += _gone(root, files)
        shutil.rmtree(root)
        if refused or wrong:
            tally.wrong.append(f"the store is not sound to begin with: {refused} {wrong}")
            return tally
        kinds = list(KINDS)
        for number in range(count):
            # Of the small files all bits are met soon; most flips go where data lie.
            kind = (
                kinds[number % len(kinds)] if number % 3 == 0 else ("metadata", "log", "chunk", "sidecar")[number % 4]
            )
            flip(root, files, belief, kind, random.Random(f"{seed}/{number}"), tally)
            if number % 200 == 199:
                sys.stderr.write(f"{number + 1} flips, {len(tally.wrong)} wrong\n")
    return tally


def main(argv: list[str] | None = None) -> int:
    """1 where any flip did harm."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.flips", description=__doc__)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=0.6)
    chosen = parser.parse_args(argv)
    began = time.perf_counter()
    tally = run(chosen.flips, seed=chosen.seed, scale=chosen.scale)
    for line in tally.wrong[:30]:
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{dict(sorted(tally.outcomes.items()))}\n{dict(tally.errors.most_common())}\n")
    sys.stdout.write(f"{tally.flips} flips, {len(tally.wrong)} wrong, {time.perf_counter() - began:.0f} s\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
