"""Fail the parts of a cluster of real processes under load, again and again, then check what was acknowledged.

    python -m tests.crash.failover --failures 50 --seed 1
    python -m tests.crash.failover --record bench/takeovers.jsonl --until 1000 --failures 12 --containers 24

Needs the engines of ``make setup-cluster``. The first form makes one run, and prints it as a JSON object: what was
acknowledged, the anomalies, and for each kind of failure how many seconds containers were away. The second makes run
after run, each on a new cluster and with the next seed, and appends each that was checked to the file, with its commit,
until the file has that many takeovers. It may be stopped at any time and started again: only the run that was stopped is
lost. Then it prints the totals of the file. The exit status is 1 if there is an anomaly.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.cluster import failover_kit, failover_nemesis
from tests.cluster.failover_facts import broken, totals

ROOT = Path(__file__).parents[2]


def one_run(given: argparse.Namespace, seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as temporary:
        started = time.monotonic()
        summary = failover_nemesis.run(
            given.directory or Path(temporary),
            given.failures,
            seed,
            sizes=failover_kit.Sizes(containers=given.containers, stores=given.stores),
            kinds=given.kinds,
        )
    took_s = round(time.monotonic() - started)
    return summary | {"took_s": took_s, "cores": os.cpu_count(), "load": round(os.getloadavg()[2], 1)}


def recorded(path: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def next_seed(runs: Sequence[Mapping[str, Any]], first: int) -> int:
    """No seed is used twice in a file."""
    return max([first - 1, *(int(one["seed"]) for one in runs)]) + 1


def collect(given: argparse.Namespace) -> list[Mapping[str, Any]]:
    """Append runs to the file until it has enough takeovers, or a run has an anomaly. Returns all its runs."""
    words = ("git", "describe", "--always", "--dirty")
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    runs = recorded(given.record)
    while totals(runs)["takeovers"] < given.until:
        day = datetime.now(UTC).date().isoformat()
        summary = {"day": day, "commit": commit, **one_run(given, next_seed(runs, given.seed))}
        with given.record.open("a") as file:
            file.write(json.dumps(summary) + "\n")
        runs.append(summary)
        print(f"{totals(runs)['takeovers']} of {given.until} takeovers", file=sys.stderr, flush=True)
        if broken(summary):
            break
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--failures", "--takeovers", type=int, default=20, help="number of failures of a run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--containers", type=int, default=8)
    parser.add_argument("--stores", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=failover_nemesis.KINDS, default=failover_nemesis.KINDS)
    parser.add_argument("--directory", type=Path, help="where all files of one run stay; without it, nothing stays")
    parser.add_argument("--record", type=Path, help="file to which runs are appended, one JSON object a line")
    parser.add_argument(
        "--until", type=int, default=0, help="takeovers that the file shall have; 0 only prints its totals"
    )
    given = parser.parse_args()
    if given.record is not None and given.directory is not None:
        parser.error("--directory is for one run, and --record for many")
    reason = failover_kit.engines_missing()
    if reason is not None:
        sys.exit(reason)
    runs = [one_run(given, given.seed)] if given.record is None else collect(given)
    print(json.dumps({**(runs[0] if given.record is None else {}), "totals": totals(runs)}, indent=1))
    sys.exit(any(broken(one) for one in runs))


if __name__ == "__main__":
    main()
