"""Does the store stay bounded and polite? One line for each promise: the figure, and the target.

    python -m bench.bounded                        everything, about a quarter of an hour
    python -m bench.bounded --only memory          one group (memory, traffic), or one scenario
    python -m bench.bounded --only million --memory 96MiB --scale 0.1

Real ``penstock standalone`` processes, raw clients, memory from /proc. Linux only.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from bench import bounded_memory, bounded_traffic
from bench.bounded_report import Bench
from penstock.core.units import parse_size

GROUPS = {
    "memory": bounded_memory.SCENARIOS,
    "traffic": bounded_traffic.SCENARIOS,
}


def main() -> None:
    names = [name for group in GROUPS.values() for name in group]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*GROUPS, *names], help="may be repeated")
    parser.add_argument("--memory", default="512MiB", help="the server's budget")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long traffic lasts")
    parser.add_argument("--directory", type=Path, default=Path("data/bounded"))
    given = parser.parse_args()
    bench = Bench(
        directory=given.directory.absolute(),
        memory_bytes=parse_size(given.memory),
        scale=given.scale,
        seconds=given.seconds,
    )
    wanted = given.only or list(GROUPS)
    for group, scenarios in GROUPS.items():
        for name, scenario in scenarios.items():
            if group in wanted or name in wanted:
                shutil.rmtree(bench.directory, ignore_errors=True)
                bench.directory.mkdir(parents=True)
                scenario(bench)
    shutil.rmtree(bench.directory, ignore_errors=True)
    sys.exit(0 if bench.met else 1)


if __name__ == "__main__":
    main()
