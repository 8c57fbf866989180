"""A process that commits to a table until it is killed: ``FORMAT ROOT LAST``. Prints a line for each commit."""

from __future__ import annotations

import random
import sys
from pathlib import Path

from lake_world import DEFINITION, SCHEMA, cut_at, offset_of, rows_of, table_of, written

from penstock.spark.lake.port import Change
from penstock.spark.lake.upkeep import compact


def main(kind: str, root: Path, last: int) -> None:
    rng = random.Random()
    table = table_of(kind, root)
    state = table.state() or table.create(DEFINITION, SCHEMA, cut_at(0))
    print("begun", flush=True)
    while offset_of(state) < 10 * last:
        start = offset_of(state) // 10
        end = min(last, start + rng.randint(1, 9))
        files = written(table, state, rows_of(range(start, end)))
        state = table.commit(state, Change(cut=cut_at(10 * end), added=files))
        print(end, flush=True)
        if rng.random() < 0.2:
            state = compact(table, target_bytes=1 << 20).state


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
