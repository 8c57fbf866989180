"""Measure the workloads in turns beside the bare loop, and print a table of stages for each.

.venv/bin/pip install py-spy
python -m bench.stages                              all of them, a quarter of an hour
python -m bench.stages --only W1a W10 --scale 0.5
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from bench.stages import reads, starts, writes
from bench.stages.sampling import sampler
from bench.stages.sides import Side, compare
from bench.stages.starts import GROUP

Opening = Callable[[Path, float], AbstractContextManager[dict[str, Side]]]

WORKS: dict[str, tuple[str, str, Opening]] = {
    "W1a": (
        "durable ingest, 100 B, Arrow batches, 1,000 keys, 4 segments",
        "event",
        partial(writes.batches, how="arrow"),
    ),
    "W1": ("durable ingest, 100 B, lists, 1,000 keys, 4 segments", "event", partial(writes.batches, how="list")),
    "W2": ("durable ingest, 1 KiB, Arrow batches", "event", partial(writes.batches, how="arrow", size=1024)),
    "W10": ("single frames of 100 B, 64 connections", "event", reads.frames),
    "W3": ("one durable event at a time over loopback", "event", writes.single),
    "W4": ("one durable event at a time, embedded", "event", writes.embedded),
    "W5-1": ("lists, 100,000 keys, 1 segment", "event", partial(writes.batches, how="many", segments=1)),
    "W5-1000": ("lists, 100,000 keys, 1,000 segments", "event", partial(writes.batches, how="many", segments=1000)),
    "W5-10000": ("lists, 100,000 keys, 10,000 segments", "event", partial(writes.batches, how="many", segments=10_000)),
    "R4": ("tail readers of one stream, a connection each", "event and reader", reads.tails),
    "R2-cached": ("catch up, raw, cached", "MiB", partial(reads.history, cold=False)),
    "R2-cold": ("catch up, raw, cold", "MiB", partial(reads.history, cold=True)),
    "F5": ("recovery of 100 B records", "MiB", starts.recovery),
    "F5-runs": ("recovery of 100 B records, runs of 64", "MiB", partial(starts.recovery, per_append=GROUP)),
}


def table(name: str, result: dict[str, Any]) -> Iterator[str]:
    """Stages of both sides beside each other, as Markdown."""
    title, unit, _ = WORKS[name]
    yield f"\n## {name}: {title}; µs of CPU for each {unit}\n"
    for side, found in result.items():
        waits = f", p50 {found['p50_us']:.0f} µs, p99 {found['p99_us']:.0f} µs" if "p50_us" in found else ""
        cpu = ", ".join(f"{who} {one['cpu_us']:.3f} µs" for who, one in found["processes"].items())
        yield f"{side}: {found['units_per_s']:,.0f} units/s{waits}; {cpu}; loop {found['iteration_ns']:.0f} ns"
    for what in ("stages", "kinds"):
        yield f"\n| process | {what} | product µs | bare µs | where |\n|---|---|---|---|---|"
        for process, one in result["product"]["processes"].items():
            other = result["bare"]["processes"].get(process, {what: {}})
            yield from _rows(process, one[what], other[what])


def _rows(process: str, mine: dict[str, Any], theirs: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*mine, *theirs]):
        found = [side.get(name) for side in (mine, theirs)]
        cells = ["" if one is None else f"{one['us'] if isinstance(one, dict) else one:.3f}" for one in found]
        places = next((one["places"] for one in found if isinstance(one, dict)), [])
        yield f"| {process} | {name} | {' | '.join(cells)} | {'; '.join(places)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[*WORKS, "F2"], default=[*WORKS, "F2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of events")
    parser.add_argument("--sampled", type=float, default=6.0, help="seconds under the sampler, for each side")
    parser.add_argument("--directory", type=Path, default=Path("data/stages"))
    parser.add_argument("--out", type=Path, default=Path("bench/results-stages.json"))
    given = parser.parse_args()
    sampler()
    directory = given.directory.absolute()
    out: dict[str, Any] = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in given.only:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        print(
            f"stages: {name} at {time.strftime('%H:%M:%S')}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True
        )
        out["machine"] = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
        if name == "F2":
            out[name] = starts.start(directory, given.rounds)
            print(json.dumps(out[name], indent=1))
        else:
            with WORKS[name][2](directory / name, given.scale) as sides:
                found = compare(sides, given.rounds, directory, given.sampled)
            out[name] = {side: outcome.as_dict() for side, outcome in found.items()}
            out[name]["product"]["load"] = os.getloadavg()[0]
            print("\n".join(table(name, out[name])), flush=True)
        given.out.write_text(json.dumps(out, indent=1) + "\n")
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
