"""End the processes that Spark starts together with their driver, without waiting for a store and without a
traceback."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
_LOOK_S = 1.0
_DAEMON = "pyspark.daemon"
_HUNG_UP = 1
"""Any status other than 0: the worker is not used again."""


def is_source_runner() -> bool:
    """Whether this is the process that Spark started for one streaming source."""
    return _program() == _RUNNER


def _program() -> str | None:
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)


def end_on_hang_up(worker: Callable[..., int]) -> Callable[..., int]:
    """The worker's main function. If Spark has closed the connection, as at the end of a session, it ends without
    output; Spark's daemon would print a traceback. Failures of the work itself are sent to Spark before that."""

    def serve(*args: Any) -> int:
        try:
            return worker(*args)
        except (BrokenPipeError, ConnectionResetError):
            return _HUNG_UP

    return serve


def end_quietly() -> None:
    """In a worker that Spark's own daemon forked, print no traceback when Spark closes the connection of the idle worker.

    Spark plans reads and commits writes in such workers, regardless of ``spark.python.daemon.module``. Does nothing in
    other processes. Call it once per process.
    """
    if _program() == _DAEMON:
        daemon: Any = sys.modules["__main__"]
        # The daemon looks up the name for each request, so the next request calls this.
        daemon.worker = end_on_hang_up(daemon.worker)


def end_with_driver() -> None:
    """In Spark's runner of a streaming source: end this process within about a second of the JVM that started it.

    Spark closes the runner's connection and relies on the runner to notice. A runner that waits for a store would
    notice only when the store answers or the wait times out. Does nothing in other processes.
    """
    # Not PR_SET_PDEATHSIG: it follows the JVM thread that started this process, which may end before the query.
    if is_source_runner():
        threading.Thread(target=_watch, args=(os.getppid(),), name="end-with-driver", daemon=True).start()


def _watch(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(_LOOK_S)
    # Not sys.exit: this is not the main thread. The data is safe without closing anything here.
    os._exit(1)
