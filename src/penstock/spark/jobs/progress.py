"""Progress reports of a job, and work that runs next to Spark's own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from penstock.model.errors import PenstockError
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import close_links

log = logging.getLogger("penstock.spark")


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a job is: ``done`` of ``total`` units. ``what`` names the unit, in plural."""

    what: str
    done: int
    total: int


ProgressCallback: TypeAlias = Callable[[Progress], None]
"""Called about once a second from a separate thread. It must return quickly."""


def ignore_progress(_: Progress) -> None:
    """The callback for callers that need no progress."""


@contextmanager
def repeat_in_background(step: Callable[[], None], *, every_s: float) -> Iterator[None]:
    """Call ``step`` every ``every_s`` seconds in a thread until the block ends.

    A failure is logged and does not end the block, because the next call may succeed.
    """
    ended = threading.Event()

    def run() -> None:
        try:
            while not ended.wait(every_s):
                try:
                    step()
                except (PenstockError, OSError) as error:
                    log.warning("background step of a job failed", extra={"error": str(error)})
        finally:
            close_links()

    thread = threading.Thread(target=run, name="background-of-a-job", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def task_progress(spark: Any, on_progress: ProgressCallback, what: str) -> Callable[[], None]:
    """A step for ``repeat_in_background``. It reports how many tasks of the running stages are done.

    Over Spark Connect, the session does not know this, and nothing is reported.
    """
    context = getattr(spark, "sparkContext", None) if _is_classic(spark) else None

    def step() -> None:
        tracker = context.statusTracker() if context is not None else None
        found = [tracker.getStageInfo(item) for item in tracker.getActiveStageIds()] if tracker is not None else []
        stages = [item for item in found if item is not None]
        if stages:
            done = sum(item.numCompletedTasks for item in stages)
            on_progress(Progress(what=what, done=done, total=sum(item.numTasks for item in stages)))

    return step


def _is_classic(spark: Any) -> bool:
    return not type(spark).__module__.startswith("pyspark.sql.connect")
