"""Progress reports of a job, and work that runs next to Spark's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from penstock.model.errors import PenstockError
from penstock.spark.connect import close_links

log = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A moment of a job: ``done`` of ``total`` portions, called ``what``."""

    what: str
    done: int
    total: int


Told: TypeAlias = Callable[[Progress], None]
"""Called from a thread of its own, about once a second; must be short."""


def untold(_: Progress) -> None:
    """Nobody listens."""


@contextmanager
def beside(step: Callable[[], None], *, every_s: float) -> Iterator[None]:
    """Call ``step`` every so often in a thread, until the block ends. Its failures are logged: the next call may succeed."""
    ended = threading.Event()

    def run() -> None:
        try:
            while not ended.wait(every_s):
                try:
                    step()
                except (PenstockError, OSError) as error:
                    log.warning("work beside a job failed", extra={"error": str(error)})
        finally:
            close_links()

    thread = threading.Thread(target=run, name="beside-a-job", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def tasks_of(spark: Any, told: Told, what: str) -> Callable[[], None]:
    """A step for ``beside`` that reports how many tasks of the running stages are done, if the session knows it."""
    context = getattr(spark, "sparkContext", None) if _is_classic(spark) else None

    def step() -> None:
        tracker = context.statusTracker() if context is not None else None
        found = [tracker.getStageInfo(item) for item in tracker.getActiveStageIds()] if tracker is not None else []
        stages = [item for item in found if item is not None]
        if stages:
            done = sum(item.numCompletedTasks for item in stages)
            told(Progress(what=what, done=done, total=sum(item.numTasks for item in stages)))

    return step


def _is_classic(spark: Any) -> bool:
    return not type(spark).__module__.startswith("pyspark.sql.connect")
