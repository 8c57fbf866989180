"""Settings of a Spark session with which Penstock is fastest."""

from __future__ import annotations

import os
import sys
from typing import Any, TypeVar

SETTINGS = {
    # Loopback TCP costs each Python task 35 to 40 ms of delayed acknowledgements.
    "spark.python.unix.domain.socket.enabled": "true",
    # Workers forked from a warm process that keeps its imports out of the collector's sight: 85 ms less for each task.
    "spark.python.daemon.module": "penstock.spark.worker.daemon",
    # Two hundred shuffle partitions, the default, are for clusters; each costs a task.
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 2)),
}
LOCAL_SETTINGS = {
    # A laptop's host name often resolves to an address that nothing listens on.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}

Builder = TypeVar("Builder")


def settings(*, local: bool = True) -> dict[str, str]:
    """The settings by name. ``local=False`` leaves out those that only a driver with ``local[N]`` may have.

    Core settings cannot be changed in a running session: on a cluster put them into ``spark-defaults.conf``.
    """
    return SETTINGS | (LOCAL_SETTINGS if local else {})


def configure(builder: Builder, *, local: bool = True) -> Builder:
    """Apply our settings to ``SparkSession.builder``, and return it. Later settings override these.

    Python workers run the interpreter of this process, unless ``PYSPARK_PYTHON`` says otherwise: another one would not
    have Penstock installed. With ``local``, ``penstock-spark-python`` starts it, which takes PySpark from its files.
    """
    python = _python() if local else sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", python)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)
    current: Any = builder
    for name, value in settings(local=local).items():
        current = current.config(name, value)
    return current  # type: ignore[no-any-return]


def _python() -> str:
    """The command that starts this interpreter without Spark's archives (see ``worker.archives``); itself, where an
    installation has no commands."""
    command = os.path.join(os.path.dirname(sys.executable), "penstock-spark-python")
    return command if os.access(command, os.X_OK) else sys.executable
