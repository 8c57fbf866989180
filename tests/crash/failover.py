"""Fail the parts of a cluster of real processes under load, again and again, then check what was acknowledged.

    python -m tests.crash.failover --takeovers 50 --seed 1

Needs the engines of ``make setup-cluster``. Prints one JSON object: what was acknowledged, the anomalies, and for each
kind of failure how many seconds the slowest container was away. The exit status is 1 if there is an anomaly.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster import failover_kit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--takeovers", type=int, default=20, help="number of failures")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--containers", type=int, default=8)
    parser.add_argument("--stores", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=failover_kit.KINDS, default=failover_kit.KINDS)
    parser.add_argument("--directory", type=Path, help="where all files stay; without it, nothing stays")
    given = parser.parse_args()
    reason = failover_kit.engines_missing()
    if reason is not None:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as temporary:
        started = time.monotonic()
        summary = failover_kit.run(
            given.directory or Path(temporary),
            given.takeovers,
            given.seed,
            sizes=failover_kit.Sizes(containers=given.containers, stores=given.stores),
            kinds=given.kinds,
        )
    conditions = {"took_s": round(time.monotonic() - started), "cores": os.cpu_count()}
    print(json.dumps(summary | conditions, indent=1))
    sys.exit(any(summary["anomalies"].values()) or summary["load_status"] != 0)


if __name__ == "__main__":
    main()
