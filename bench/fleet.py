"""Retention what-if over a made-up fleet on Spark: streams a second, beside the planner of the loop in one process.

    python -m bench.fleet --streams 1000000 [--runs 3] [--out what-if]

Prints one JSON object. With ``--out`` the decisions and the report of the last run stay there.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.fleet_world import NOW_MS, batches, lines, write_fleet
from bench.measure import Figure, figure, seconds
from penstock.core.retention.planner import decide
from penstock.spark.fleet.changes import PolicyEdit, edit_of
from penstock.spark.fleet.report import FleetReport
from penstock.spark.fleet.rows import FactsRows
from penstock.spark.jobs.fleet import fleet

CHANGE = {"retain": {"min_age_s": 5 * 86_400}}
"""Nearly every policy of the fleet is touched, and a third of its streams loses something."""

SAMPLE = 8192


def rows(scale: float, runs: int = 3, directory: Path | None = None) -> list[Figure]:
    """The figures of a fleet of ``scale`` million streams, as Parquet, and of a tenth of it as JSON Lines."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        bench = FleetBench(Path(scratch), max(SAMPLE, int(1_000_000 * scale)), runs)
        return bench.run()


class FleetBench:
    """Runs alternate with the loop's planner, so that what else the machine does shows in both."""

    def __init__(self, directory: Path, streams: int, runs: int, out: Path | None = None) -> None:
        self.directory = directory
        self.streams = streams
        self.runs = runs
        self.out = out
        self.report: FleetReport | None = None
        self.facts = [FactsRows(batch) for batch in batches(SAMPLE, seed=7)]

    def changed(self, spark: Any, late: Callable[[], bool] = lambda: False) -> list[Figure]:
        """A change of policy over the fleet, as Parquet, in a session that is there; no further runs once it is ``late``."""
        table = self._table()
        self._warm(spark)
        return self._figures(spark, "with a change of policy, Parquet", table, self.streams, edit_of(CHANGE), late)

    def _table(self) -> Path:
        table = self.directory / "fleet.parquet"
        write_fleet(table, self.streams)
        return table

    def _warm(self, spark: Any) -> None:
        sample = self.directory / "sample.parquet"
        write_fleet(sample, SAMPLE)
        fleet(spark, sample)

    def run(self) -> list[Figure]:
        table, text = self._table(), self.directory / "fleet.jsonl"
        count = max(SAMPLE, self.streams // 10)
        with text.open("w", encoding="utf-8") as file:
            for batch in batches(count):
                file.writelines(f"{line}\n" for line in lines(batch))
        spark = self._session()
        try:
            fleet(spark, text)
            change = edit_of(CHANGE)
            found = [
                *self._figures(spark, "with a change of policy, Parquet", table, self.streams, change),
                *self._figures(spark, "policies in force, Parquet", table, self.streams, None)[:1],
                *self._figures(spark, "policies in force, JSON Lines", text, count, None)[:1],
            ]
        finally:
            spark.stop()
        return found

    def _figures(
        self,
        spark: Any,
        work: str,
        facts: Path,
        count: int,
        change: PolicyEdit | None,
        late: Callable[[], bool] = lambda: False,
    ) -> list[Figure]:
        rates, alone = [], []
        for number in range(self.runs):
            if number and late():
                break
            alone.append(self._planner())
            out = self.directory / "out" if self.out is None else self.out
            shutil.rmtree(out / "decisions", ignore_errors=True)
            elapsed = seconds(lambda out=out: self._decide(spark, facts, change, out))
            rates.append(count / elapsed)
            print(f"{work}: run {number + 1}: {elapsed:.1f} s", file=sys.stderr)
        planner = figure("S5", "decide(), one process, facts in memory, one policy", "streams/s", alone)
        mine = figure(
            "S5",
            f"fleet what-if, {count:,} streams, {work}",
            "streams/s",
            rates,
            limit=("the planner alone in one process", planner.median),
            target=f">= {count / 60:,.0f} (60 s)" if count >= 1_000_000 else "",
        )
        return [mine, planner]

    def _decide(self, spark: Any, facts: Path, change: PolicyEdit | None, out: Path) -> None:
        self.report = fleet(spark, facts, change, out=out)

    def _planner(self) -> float:
        """Decisions a second of the loop's planner on a sample, by wall time."""
        made = [rows.facts(row) for rows in self.facts for row in range(rows.rows)]
        started = time.perf_counter()
        for item in made:
            decide(item, now_ms=NOW_MS)
        return len(made) / (time.perf_counter() - started)

    def _session(self) -> Any:
        from pyspark.sql import SparkSession

        from penstock.spark.java import ensure_java
        from penstock.spark.session import configure

        ensure_java(Path(sys.prefix) / "java")
        builder = configure(SparkSession.builder.master("local[2]").appName("bench fleet"))
        builder = builder.config("spark.ui.enabled", "false").config("spark.local.dir", str(self.directory / "tmp"))
        spark = builder.config("spark.sql.warehouse.dir", str(self.directory / "warehouse")).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        return spark


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None, help="for temporary files; default: the system's")
    parser.add_argument("--out", type=Path, default=None, help="keep the decisions and report of the last run here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as scratch:
        bench = FleetBench(Path(scratch), asked.streams, asked.runs, asked.out)
        found = bench.run()
    print(json.dumps([item.as_dict() for item in found], indent=1))


if __name__ == "__main__":
    main()
