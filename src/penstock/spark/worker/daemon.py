"""The process from which Spark forks its Python workers, with modules preloaded. Setting:
``spark.python.daemon.module``.

Workers run ``gc.collect()`` after every task, which takes 20 to 90 ms with Arrow and pandas in memory; frozen objects
are skipped. Nothing here may open a connection or start a thread: children would inherit it in a broken state.

The first row of a session waits for this process. So modules that reads need are loaded before the first worker is
forked; the others a moment later, between requests. PySpark comes from its installed files, not from Spark's archive.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Sequence

from penstock.spark.worker.archives import superseded
from penstock.spark.worker.lifetime import end_on_hang_up

WARM = (
    "numpy",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.sql.pandas.types",
    "pyspark.worker",
    "penstock.spark.reading.scan",
    "penstock.spark.source",
)
LATER = (
    "pandas",
    "penstock.spark.writing.frames",
    "penstock.spark.writing.attempt",
    "penstock.spark.writing.sink",
    "penstock.spark.reading.stream",
)
"""A worker that is forked before these are loaded, and needs them, loads them itself."""

LATER_S = 2.0


def warm_up(names: Sequence[str]) -> None:
    """Import what tasks need, and exclude it from garbage collection permanently."""
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


def warm_up_later(after_s: float = LATER_S) -> None:
    """Import the rest in this thread, once, after ``after_s`` seconds. Spark's loop waits for requests by then; a
    request that arrives during the import waits until it ends."""
    signal.signal(signal.SIGALRM, lambda *_: warm_up(LATER))
    # Workers do not inherit timers, but they inherit signal handlers.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL))
    signal.setitimer(signal.ITIMER_REAL, after_s)


def main() -> None:
    """Serve Spark until it closes our standard input."""
    left_out = superseded(sys.path)
    sys.path[:] = [*(entry for entry in sys.path if entry not in left_out), *left_out]
    from pyspark import daemon

    warm_up(WARM)
    warm_up_later()
    daemon.worker = end_on_hang_up(daemon.worker)
    daemon.manager()


if __name__ == "__main__":
    main()
