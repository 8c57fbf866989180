"""The process from which Spark forks its Python workers, warm. Setting: ``spark.python.daemon.module``.

Workers run ``gc.collect()`` after every task, which takes 20 to 90 ms with Arrow and pandas in memory; frozen objects are
not looked at. Nothing here may open a connection or start a thread: its children would inherit half of it.
"""

from __future__ import annotations

import gc
import importlib

WARM = (
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.sql.pandas.types",
    "pyspark.worker",
    "penstock.spark.frames",
    "penstock.spark.scan",
    "penstock.spark.sink",
    "penstock.spark.source",
    "penstock.spark.stream",
)


def warm_up() -> None:
    """Import what tasks need, and keep it out of the garbage collector's sight for good."""
    for name in WARM:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    """Serve Spark until it closes our standard input."""
    from pyspark.daemon import manager

    warm_up()
    manager()


if __name__ == "__main__":
    main()
