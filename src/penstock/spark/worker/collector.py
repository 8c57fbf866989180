"""Reduces the garbage collection that Spark's workers do between calls.

A worker that Spark reuses runs ``gc.collect()`` after every call, over all loaded objects. That takes 20 to 90 ms, in
which it answers nothing. A micro-batch pays this in each of its processes. Frozen objects are skipped.
"""

from __future__ import annotations

import gc
import sys

_DAEMONS = ("pyspark.daemon", "penstock.spark.worker.daemon")

_TWICE = 2  # calls for one name: Spark loads Arrow after the first

_seen: dict[str, int] = {}


def spare(what: str) -> None:
    """In a Spark worker, exclude all existing objects from garbage collection.

    Call it after loading something large that stays. It acts twice for each ``what``, because Spark itself loads Arrow
    after the first call. Does nothing in other processes, whose owners manage their memory.
    """
    if _seen.get(what, 0) < _TWICE and _is_worker():
        _seen[what] = _seen.get(what, 0) + 1
        gc.freeze()


def _is_worker() -> bool:
    return getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None) in _DAEMONS
