"""Runs a target: so many inputs, each bounded in time, all together in memory."""

from __future__ import annotations

import resource
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutate import Mutator
from tests.fuzz.targets import Target

SLOWEST_S = 0.1
"""One input of 64 KiB at most may take this long: it is what one peer can take from all others at once."""
GROWTH_BYTES = 64 << 20
_POOL_MAX = 256
_KEEP_EVERY = 64
_CHECKED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """An input that a decoder did not take well, and what it did."""

    target: str
    data: bytes
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run of one target saw. ``decoded``: inputs that were taken; ``refused``: by a documented error."""

    target: str
    executions: int
    decoded: int
    refused: int
    slowest_s: float
    took_s: float
    grown_bytes: int
    finds: tuple[Find, ...]


def check(target: Target, data: bytes) -> tuple[bool, str | None]:
    """Whether the input was decoded, and what is wrong with how it was taken, if anything is."""
    try:
        target.run(data)
    except target.errors:
        return False, None
    except Exception:  # noqa: BLE001 - whatever it is, it is the find
        return False, traceback.format_exc(limit=-4)
    return True, None


def run(target: Target, *, executions: int, seed: int, finds_max: int = 5) -> Report:
    """So many mutations, the same for the same seed. Ends early with ``finds_max`` finds, each of another kind."""
    mutator = Mutator(seed)
    corpus = list(target.corpus)
    finds: dict[str, Find] = {}
    decoded = refused = done = 0
    slowest = 0.0
    clock = time.perf_counter
    before = _peak_bytes()
    begun = clock()
    while done < executions and len(finds) < finds_max:
        data = mutator.mutated(mutator.choose(corpus), corpus, text=target.text)
        started = clock()
        taken, wrong = check(target, data)
        took = clock() - started
        done += 1
        if wrong is None and took > SLOWEST_S:
            # The machine may have been busy elsewhere: what is slow by itself is slow again, in time of this thread.
            took = min(_cpu_s(target, data) for _ in range(_CHECKED))
            wrong = f"took {took:.3f} s" if took > SLOWEST_S else None
        slowest = max(slowest, took)
        if wrong is not None:
            finds.setdefault(wrong.splitlines()[-1][:60], Find(target=target.name, data=data, what=wrong))
        elif taken:
            decoded += 1
            if decoded % _KEEP_EVERY == 0:
                # What decodes is a better beginning than what does not.
                if len(corpus) < _POOL_MAX:
                    corpus.append(data)
                else:
                    corpus[len(target.corpus) + decoded // _KEEP_EVERY % (_POOL_MAX - len(target.corpus))] = data
        else:
            refused += 1
    grown = _peak_bytes() - before
    if grown > GROWTH_BYTES:
        finds["memory"] = Find(target=target.name, data=b"", what=f"memory grew by {grown >> 20} MiB")
    return Report(
        target=target.name,
        executions=done,
        decoded=decoded,
        refused=refused,
        slowest_s=slowest,
        took_s=clock() - begun,
        grown_bytes=grown,
        finds=tuple(finds.values()),
    )


def save(find: Find, directory: Path) -> Path:
    """Keep an input, to run it again by ``--replay``."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{find.target}-{abs(hash(find.data)):x}"
    path.write_bytes(find.data)
    return path


def _cpu_s(target: Target, data: bytes) -> float:
    started = time.thread_time()
    check(target, data)
    return time.thread_time() - started


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
