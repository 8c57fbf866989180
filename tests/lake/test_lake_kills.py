"""A writer that is killed at any moment leaves a table whose rows are exactly those before its cut."""

from __future__ import annotations

import random
import select
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from lake_world import offset_of, table_of

WRITER = Path(__file__).with_name("lake_writer.py")


def check_exact(kind: str, root: Path) -> int:
    """The number of rows, each exactly once and none after the cut, as DuckDB counts them."""
    table = table_of(kind, root)
    state = table.state()
    if state is None:
        return 0
    found = table.read()
    if not found.num_rows:
        assert offset_of(state) == 0
        return 0
    rows = duckdb.from_arrow(found)
    end = offset_of(state) // 10
    counts = rows.query("t", "select count(*), count(distinct n), min(n), max(n) from t").fetchall()
    assert counts == [(end, end, 0, end - 1)]
    right = rows.query("t", "select count(*) from t where \"offset\" = 10 * n and name = 'plain-' || n").fetchall()
    assert right == [(end,)]
    return end


@pytest.mark.parametrize("rounds", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_a_killed_writer_leaves_exactly_the_rows_before_the_cut(kind: str, rounds: int, tmp_path: Path) -> None:
    rng = random.Random(rounds)
    reached = 0
    for number in range(rounds):
        process = subprocess.Popen(
            [sys.executable, str(WRITER), kind, str(tmp_path), "1000000"], stdout=subprocess.PIPE, cwd=WRITER.parent
        )
        with process:
            assert process.stdout is not None
            for _ in range(rng.randint(1, 8)):
                assert process.stdout.readline(), f"the writer ended in round {number}"
            # Between two commits, or in the middle of one.
            select.select([process.stdout], [], [], rng.random() * 0.05)
            process.kill()
        now = check_exact(kind, tmp_path)
        assert now >= reached
        reached = now
    assert reached > 0
