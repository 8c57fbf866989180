"""Load and export beside Parquet to Parquet of the same rows, in one session: row S4. ``python -m bench.bulk [SCALE]``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock
from bench.measure import Figure, figure, seconds, show
from penstock.spark.jobs.export.job import ExportRequest, export
from penstock.spark.jobs.load import LoadRequest, load
from penstock.testing.server import ServerProcess

_EVENTS = {100: 3_000_000, 1024: 500_000}
_TARGET = ">= 0.5"
_CODEC = "snappy"
_MIN = 1000
_SORTED = "load, keyed, in order of each key"


@contextmanager
def _session(directory: Path) -> Iterator[Any]:
    from pyspark.sql import SparkSession

    from penstock.spark.java import ensure_java
    from penstock.spark.session import configure

    ensure_java(Path(sys.prefix) / "java")
    builder = configure(SparkSession.builder.master("local[2]").appName("bench bulk"))
    spark = (
        builder.config("spark.ui.enabled", "false")
        .config("spark.local.dir", str(directory / "tmp"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def rows(scale: float = 1.0, *, runs: int = 5, directory: Path | None = None, spark: Any = None) -> list[Figure]:
    """S4 for events of 100 B and 1 KiB of random bytes: load without and with keys and order, and export.

    ``directory`` is emptied; ``spark`` a session to use. Events and runs alternate with the yardstick: Spark reading the same
    rows from Parquet and writing them to Parquet with the same codec.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-bulk-", dir=directory) as made:
        work = Path(made)
        with ServerProcess(work / "store") as server:
            if spark is not None:
                return [item for size in _EVENTS for item in _Bulk(spark, server, work, size, scale, runs).figures()]
            with _session(work) as own:
                return [item for size in _EVENTS for item in _Bulk(own, server, work, size, scale, runs).figures()]


class _Bulk:
    def __init__(self, spark: Any, server: ServerProcess, work: Path, size: int, scale: float, runs: int) -> None:
        self._spark = spark
        self._server = server
        self._work = work / str(size)
        self._size = size
        self._count = max(_MIN, int(_EVENTS[size] * scale))
        self._runs = runs
        self._number = 0

    def figures(self) -> list[Figure]:
        self._work.mkdir()
        source = self._work / "in"
        # Random bytes, for events that compress would flatter stores that do not compress.
        words = ", ".join("sha2(cast(rand() as string), 256)" for _ in range(-(-self._size // 32)))
        (
            self._spark.range(0, self._count, 1, 4)
            .selectExpr(
                f"substring(unhex(concat({words})), 1, {self._size}) as event", "cast(id % 1000 as string) as key", "id"
            )
            .write.option("compression", _CODEC)
            .parquet(str(source))
        )
        stream = self._loaded(source, f"export{self._size}", {}, keep=True)
        works: dict[str, Callable[[], object]] = {
            "Parquet to Parquet": lambda: self._parquet(source),
            "Parquet to Parquet, sorted": lambda: self._parquet(source, keyed=True),
            "load": lambda: self._loaded(source, self._name("load"), {}),
            _SORTED: lambda: self._loaded(source, self._name("keyed"), {"key": "key", "order_by": ("id",)}),
            "export": lambda: self._exported(stream),
        }
        times: dict[str, list[float]] = {name: [] for name in works}
        for name in works:
            works[name]()  # warm
        for _ in range(self._runs):
            for name, work in works.items():
                times[name].append(self._count / seconds(work))
        sticks = {
            name: figure("S4", f"{name}, {self._size} B", "rows/s", times.pop(name))
            for name in ("Parquet to Parquet", "Parquet to Parquet, sorted")
        }
        found: list[Figure] = []
        for name, measured in times.items():
            # What sorts is held to what sorts.
            stick = "Parquet to Parquet, sorted" if name == _SORTED else "Parquet to Parquet"
            limit = (stick, sticks[stick].median)
            found.append(figure("S4", f"{name}, {self._size} B", "rows/s", measured, limit=limit, target=_TARGET))
        return [*found, *sticks.values()]

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}{self._size}-{self._number}"

    def _parquet(self, source: Path, *, keyed: bool = False) -> None:
        target = self._work / "copy"
        frame = self._spark.read.parquet(str(source))
        frame = frame.repartition(2, "key").sortWithinPartitions("id") if keyed else frame
        frame = frame.select("event", "key") if keyed else frame.select("event")
        frame.write.mode("overwrite").option("compression", _CODEC).parquet(str(target))

    def _loaded(self, source: Path, name: str, how: dict[str, Any], *, keep: bool = False) -> str:
        stream = f"bulk/{name}"
        write = {"controller": self._server.address, "stream": stream, "default_num_segments": "4"}
        report = load(self._spark, LoadRequest(paths=(str(source),), write=write, **how))
        if report.events != self._count:
            raise AssertionError(f"{report.events} of {self._count} events loaded")
        if not keep:
            with penstock.connect(self._server.address) as store:
                found = store.stream(stream)
                found.seal()
                found.delete()
        return stream

    def _exported(self, stream: str) -> None:
        output = self._work / "exported"
        shutil.rmtree(output, ignore_errors=True)
        read = {"controller": self._server.address, "stream": stream, "target_partition_bytes": "64m"}
        report = export(self._spark, ExportRequest(read=read, output=output, columns=("event",), compression=_CODEC))
        if report.events != self._count:
            raise AssertionError(f"{report.events} of {self._count} events exported")


def main() -> None:
    """Print the table."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    print(show(rows(scale)))


if __name__ == "__main__":
    main()
