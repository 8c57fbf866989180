"""The measured figures of Penstock, each beside its physical limit from the same run.

    python -m bench                       everything, half an hour or more
    python -m bench --only store --runs 3 --scale 0.2
    python -m bench --only peers            other stores beside ours, after make setup-peers; under eight minutes
    python -m bench --only spark            the pipeline, beside Parquet and Spark's Kafka source; under eight minutes
    python -m bench --draw bench/results.json

Writes ``bench/results.json``, prints the table and draws it (see ``bench/draw.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.draw import Rows, draw
from bench.limits import Limits, measure
from bench.measure import Row, number, show


def print_pictures(rows: Rows, directory: Path) -> None:
    """Draw what can be drawn, and say what was."""
    try:
        for path in draw(rows, directory):
            print(f"drawn: {path}")
    except ImportError:
        print("bench: no pictures without matplotlib: pip install 'penstock[demo]'")


PARTS = (
    "planner",
    "store",
    "segments",
    "truncation",
    "retention",
    "history",
    "tails",
    "spark",
    "workers",
    "tls",
    "peers",
)


def part(name: str, given: argparse.Namespace, directory: Path, limits: Limits) -> list[Row]:
    """Measure one part; its modules are loaded here, for each wants other packages."""
    match name:
        case "planner":
            from bench.planner import PlannerBench

            return [*PlannerBench(given.runs, given.scale).run()]
        case "store":
            from bench.store import StoreBench

            return [*StoreBench(directory, limits, given.runs, given.scale).run()]
        case "segments":
            from bench.segments import SegmentsBench

            return [*SegmentsBench(directory / "segments", given.runs, given.scale).run()]
        case "truncation":
            from bench.truncation import TruncationBench

            return [*TruncationBench(directory / "truncation", given.runs, given.scale).run()]
        case "retention":
            from bench.retention_cycle import RetentionCycleBench

            return [*RetentionCycleBench(directory / "retention", given.runs, given.scale).run()]
        case "history":
            from bench.history import HistoryBench

            return [*HistoryBench(directory, limits, given.runs, given.scale).run()]
        case "tails":
            from bench.tails import TailsBench

            return [*TailsBench(directory / "tails", limits, given.runs, given.scale).run()]
        case "spark":
            from bench.spark.run import SparkBench

            return [*SparkBench(directory / "spark", min(given.runs, 3), given.scale, given.part).run()]
        case "workers":
            from bench.workers import WorkersBench

            return [*WorkersBench(directory / "workers", given.runs, given.scale).run()]
        case "tls":
            from bench.tls import TlsBench

            return [*TlsBench(directory / "tls", given.runs, given.scale).run()]
        case "peers":
            from bench.peers.contest import PeersBench

            return [*PeersBench(directory / "peers", min(given.runs, 3), given.scale).run()]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        choices=["limits", *PARTS],
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full number of events")
    parser.add_argument("--directory", type=Path, default=Path("data/bench"))
    parser.add_argument("--out", type=Path, help="bench/results.json; with --only, bench/results-PART.json")
    parser.add_argument("--draw", nargs="+", type=Path, metavar="JSON", help="measure nothing, draw these results")
    parser.add_argument("--pictures", type=Path, help="where pictures go: docs; with --only, beside the results")
    parts = ("S1", "S2", "S3", "S4-load", "S4-export", "S5", "S6", "S7", "W9")
    parser.add_argument(
        "--part", nargs="+", default=[], choices=parts, metavar="PART", help=f"of spark: {', '.join(parts)}"
    )
    given = parser.parse_args()
    out = given.out or Path(f"bench/results-{given.only}.json" if given.only else "bench/results.json")
    pictures = given.pictures or (out.parent if given.only else Path("docs"))
    if given.draw:
        print_pictures([row for path in given.draw for row in json.loads(path.read_text())["figures"]], pictures)
        return
    # A signal that ends this process ends the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))
    directory = given.directory.absolute()
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
    result: dict[str, Any] = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": machine}
    figures: list[Row] = []
    failed: list[str] = []
    try:
        limits = measure(directory)
        result["limits"] = asdict(limits)
        for name in PARTS if given.only is None else [given.only]:
            print(f"bench: {name} at {time.strftime('%H:%M:%S')}", file=sys.stderr, flush=True)
            try:
                figures += part(name, given, directory, limits)
            except Exception:  # noqa: BLE001 (a part may fail in any way)
                # The other parts are worth having; the end says which is missing.
                traceback.print_exc()
                failed.append(name)
            result["figures"] = [item.as_dict() for item in figures]
            # After each part: a run that is stopped after an hour keeps its figures.
            out.write_text(json.dumps(result, indent=1) + "\n")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name, value in result["limits"].items():
        print(f"{name:>20}  {number(value)}")
    print(show(figures))
    print_pictures(result["figures"], pictures)
    if failed:
        sys.exit(f"bench: failed, and not in {out}: {', '.join(failed)}")


if __name__ == "__main__":
    main()
