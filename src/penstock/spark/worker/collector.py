"""Sparing Spark's workers most of what they do between calls.

A worker that Spark keeps runs ``gc.collect()`` after every call, over all that is loaded: 20 to 90 ms, in which it answers
nothing, and which a micro-batch meets in each of the processes it passes. What is frozen is not looked at.
"""

from __future__ import annotations

import gc
import sys

_DAEMONS = ("pyspark.daemon", "penstock.spark.worker.daemon")

_TWICE = 2  # calls for one name: Spark loads Arrow behind the first

_seen: dict[str, int] = {}


def spare(what: str) -> None:
    """In a Spark worker, exclude all existing objects from garbage collection.

    To be called when something large and lasting has been loaded. Heeded twice for each ``what``: Spark itself loads Arrow
    behind the first call. Does nothing in any other process, whose memory is its owner's business.
    """
    if _seen.get(what, 0) < _TWICE and _is_worker():
        _seen[what] = _seen.get(what, 0) + 1
        gc.freeze()


def _is_worker() -> bool:
    return getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) in _DAEMONS
