"""The end of a process that Spark starts for a query: with its driver, not with the last answer of a store."""

from __future__ import annotations

import os
import sys
import threading

_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_LOOK_S = 1.0


def is_source_runner() -> bool:
    """Whether this is the process that Spark started for one streaming source."""
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None) == _RUNNER


def end_with_driver() -> None:
    """In Spark's runner of a streaming source: end this process within about a second of the JVM that started it.

    Spark closes the runner's connection and relies on it to notice. One that waits for a store would notice only when
    the store answers or patience ends, and stays behind until then. Does nothing in any other process.
    """
    # Not PR_SET_PDEATHSIG: that follows the thread of the JVM that started us, which may end earlier than the query.
    if is_source_runner():
        threading.Thread(target=_watch, args=(os.getppid(),), name="end-with-driver", daemon=True).start()


def _watch(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_LOOK_S)
    # Not sys.exit: this is not the main thread. Nothing here must be closed for the data to be safe.
    os._exit(1)
