"""What waiting for tier 2 costs: stores that acknowledge after the disk, after a directory and after a bucket.

    make setup-s3
    python -m bench.acks [--directory DIR] [--rounds 5] [--wait-ms 0]

Embedded stores take turns. The directory is on the disk of ``--directory``; the bucket is that of Versity's gateway on
loopback, whose answers come sooner than those of a bucket in a cloud. Prints medians of the rounds, the least and the most of
them, and ratios.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import penstock
from bench.measure import percentile
from bench.store import KEYS, payloads

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))
from tests.storage.s3_world import running  # noqa: E402

SINGLES = 40
COUNT, SIZE, STEP = 60_000, 1024, 10_000


def measured(path: Path, place: Mapping[str, Any]) -> dict[str, float]:
    """One store: single events, then batches."""
    found: dict[str, float] = {}
    with penstock.open(path, **place) as store:
        stream = store.create_stream("bench/acks", segments=4, create_scope=True)
        with stream.writer(linger_s=0) as writer:
            waits = []
            for number in range(-3, SINGLES):
                since = time.perf_counter()
                writer.write(b"x" * 100, "k")
                writer.flush()
                if number >= 0:
                    waits.append(1000 * (time.perf_counter() - since))
            found["one event of 100 B, ms p50"] = percentile(waits, 0.5)
            events, keys = payloads(SIZE, COUNT), [KEYS[number % len(KEYS)] for number in range(COUNT)]
            since = time.perf_counter()
            for start in range(0, COUNT, STEP):
                writer.write_many(events[start : start + STEP], keys[start : start + STEP])
            writer.flush()
            found["events of 1 KiB in batches, MB/s"] = COUNT * SIZE / 1e6 / (time.perf_counter() - since)
    return found


def main() -> None:
    """Run all rounds and print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.acks", description=__doc__)
    parser.add_argument("--directory", type=Path, help="where stores and the directory of tier 2 are")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--wait-ms", type=int, default=0, help="how long appends to the bucket collect")
    chosen = parser.parse_args()
    rows: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=chosen.directory, prefix="penstock-acks-")))
        server = stack.enter_context(running("versitygw", home))
        for number in range(chosen.rounds):
            (home / f"tier2-{number}").mkdir()
            bucket = {**server.place(f"{server.new_bucket()}/store"), "ack": "tier2", "ack_wait_ms": chosen.wait_ms}
            turns = [
                ("disk", {}),
                ("directory", {"ack": "tier2", "tier2": str(home / f"tier2-{number}")}),
                ("bucket", bucket),
            ]
            for who, place in turns if number % 2 == 0 else reversed(turns):
                for work, value in measured(home / f"{who}-{number}", place).items():
                    rows.setdefault((work, who), []).append(value)
    for (work, who), values in sorted(rows.items()):
        first = statistics.median(rows[work, "disk"])
        spread = f"{min(values):,.3g} to {max(values):,.3g}"
        print(
            f"{work:34} {who:10} {statistics.median(values):9,.3g} ({spread}; {statistics.median(values) / first:.2f})"
        )


if __name__ == "__main__":
    main()
