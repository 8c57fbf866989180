"""``python tests/simulation/planted_seeds.py``: how many seeds find each planted bug, from several first seeds.

One line for each bug: the seeds that were needed from each first seed, the worst of them, and the share of runs that showed
the bug. A bug that no seed found in time counts as ``>MAX``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import planted_cluster
import planted_ledgers
import planted_wipes

from penstock.testing.simulation.cluster.run import run_cluster_seed
from penstock.testing.simulation.ledgers.run import run_log_seed

STARTS = (0, 1_000, 2_000, 3_000, 4_000, 5_000)
"""First seeds that are far enough apart for the ranges after them not to overlap."""

Planted = Mapping[str, Callable[[], Any]]


def _finds_in_cluster(seed: int) -> bool:
    return bool(run_cluster_seed(seed, seconds=20.0, stops=True).anomalies)


def _finds_in_log(seed: int) -> bool:
    return bool(run_log_seed(seed, seconds=20.0).anomalies)


def _finds_in_wipes(seed: int) -> bool:
    return bool(run_log_seed(seed, seconds=20.0, wipes=True).anomalies)


SIMULATIONS: Mapping[str, tuple[Planted, Callable[[int], bool]]] = {
    "cluster": (planted_cluster.PLANTED, _finds_in_cluster),
    "log": (planted_ledgers.PLANTED, _finds_in_log),
    "wipes": (planted_wipes.PLANTED_WIPES, _finds_in_wipes),
}


def seeds_needed(plant: Callable[[], Any], finds: Callable[[int], bool], *, first: int, seeds_max: int) -> int | None:
    """How many seeds from ``first`` on find the bug. None: not one of ``seeds_max``."""
    for count in range(1, seeds_max + 1):
        with plant():
            if finds(first + count - 1):
                return count
    return None


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table. Returns 1 if a bug was not found in time from one of the first seeds."""
    parser = argparse.ArgumentParser(prog="planted_seeds")
    parser.add_argument("--of", choices=SIMULATIONS, default="cluster", help="the simulation")
    parser.add_argument("--starts", type=int, nargs="+", default=STARTS, help="the first seeds")
    parser.add_argument(
        "--seeds-max", type=int, default=20, help="seeds from each of them within which a bug must show"
    )
    parser.add_argument("--bugs", nargs="*", help="only these")
    chosen = parser.parse_args(argv)
    planted, finds = SIMULATIONS[chosen.of]
    late: list[str] = []
    for name in chosen.bugs or planted:
        began_s = time.process_time()
        needed = [
            seeds_needed(planted[name], finds, first=first, seeds_max=chosen.seeds_max) for first in chosen.starts
        ]
        runs = sum(one or chosen.seeds_max for one in needed)
        share = sum(one is not None for one in needed) / runs
        texts = [str(one or f">{chosen.seeds_max}") for one in needed]
        worst = max((one or chosen.seeds_max + 1, text) for one, text in zip(needed, texts, strict=True))[1]
        late += [name] if None in needed else []
        sys.stdout.write(
            f"{name:<36} {' '.join(f'{text:>4}' for text in texts)}   worst {worst:>4}   {share:4.0%} of runs"
            f"   {(time.process_time() - began_s) / runs:.2f} s each\n"
        )
        sys.stdout.flush()
    return 1 if late else 0


if __name__ == "__main__":
    sys.exit(main())
