"""The end of a process that Spark starts: with its driver, not with the last answer of a store, and without a stack."""

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
"""Any status but 0: the worker is not used again."""


def is_source_runner() -> bool:
    """Whether this is the process that Spark started for one streaming source."""
    return _program() == _RUNNER


def _program() -> str | None:
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)


def until_hung_up(worker: Callable[..., int]) -> Callable[..., int]:
    """The worker, which ends without output where Spark has closed its connection, as at the end of a session. Spark's daemon
    would print the stack. Failures of the work itself do not come here: the worker sends them to Spark."""

    def serve(*args: Any) -> int:
        try:
            return worker(*args)
        except (BrokenPipeError, ConnectionResetError):
            return _HUNG_UP

    return serve


def end_quietly() -> None:
    """In a worker that Spark's own daemon forked, print no stack when Spark closes the connection of the idle worker.

    Spark plans reads and commits writes in such workers, whatever ``spark.python.daemon.module`` says. Does nothing in any
    other process. Call it once in each process.
    """
    if _program() == _DAEMON:
        daemon: Any = sys.modules["__main__"]
        # The daemon looks the name up for each request, so the next one comes here.
        daemon.worker = until_hung_up(daemon.worker)


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
