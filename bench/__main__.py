"""The measured figures of Penstock, each beside its physical limit from the same run.

    python -m bench                       everything, about fifteen minutes
    python -m bench --only store --runs 3 --scale 0.2

Writes ``bench/results.json`` and prints the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import time
from dataclasses import asdict
from pathlib import Path

from bench.limits import measure
from bench.measure import show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        choices=["limits", "planner", "store", "truncation", "retention", "history", "tails", "spark", "workers"],
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of events")
    parser.add_argument("--directory", type=Path, default=Path("data/bench"))
    parser.add_argument("--out", type=Path, default=Path("bench/results.json"))
    given = parser.parse_args()
    directory = given.directory.absolute()
    limits = measure(directory)
    figures = []
    if given.only in (None, "planner"):
        from bench.planner import PlannerBench

        figures += PlannerBench(given.runs, given.scale).run()
    if given.only in (None, "store"):
        from bench.store import StoreBench

        figures += StoreBench(directory, limits, given.runs, given.scale).run()
    if given.only in (None, "truncation"):
        from bench.truncation import TruncationBench

        figures += TruncationBench(directory / "truncation", given.runs, given.scale).run()
    if given.only in (None, "retention"):
        from bench.retention_cycle import RetentionCycleBench

        figures += RetentionCycleBench(directory / "retention", given.runs, given.scale).run()
    if given.only in (None, "history"):
        from bench.history import HistoryBench

        figures += HistoryBench(directory, limits, given.runs, given.scale).run()
    if given.only in (None, "tails"):
        from bench.tails import TailsBench

        figures += TailsBench(directory / "tails", limits, given.runs, given.scale).run()
    if given.only in (None, "spark"):
        from bench.spark import SparkBench

        figures += SparkBench(directory / "spark", given.runs, given.scale).run()
    if given.only in (None, "workers"):
        from bench.workers import WorkersBench

        figures += WorkersBench(directory / "workers", given.runs, given.scale).run()
    shutil.rmtree(directory, ignore_errors=True)
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    result = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "limits": asdict(limits),
        "figures": [item.as_dict() for item in figures],
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n")
    for name, value in asdict(limits).items():
        print(f"{name:>20}  {value:,.4g}")
    print(show(figures))


if __name__ == "__main__":
    main()
