"""For all tests."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# A law holds on a busy machine too: how long an example takes is none of a test's business.
settings.register_profile("laws", deadline=None, max_examples=50)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("laws")

SPARK = Path(__file__).parent / "spark"
FIRST = (SPARK, Path(__file__).parent / "cluster" / "test_small_cluster.py")
"""The longest pieces of work, longest first. The cluster waits for most of its time, so it slows the others little."""
SPARK_PROCESSES = 2
"""How many of the processes run Spark's tests: a JVM takes 30 s of CPU until it is warm, and a process has one."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and let it pass over what was collected.

    Some two million objects live until the end: each full collection, also one that a test asks for, visited them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest pieces of work begin."""
    items.sort(key=lambda item: _rank(item.path))


@cache
def _rank(file: Path) -> int:
    return next((rank for rank, place in enumerate(FIRST) if file.is_relative_to(place)), len(FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Any:
    """Share the tests out by file, and all of Spark's to two processes."""
    from xdist.scheduler import LoadFileScheduling

    class ByFileAndJvm(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            if not file.startswith("tests/spark/"):
                return file
            return f"spark {zlib.crc32(file.encode()) % SPARK_PROCESSES}"

    return ByFileAndJvm(config, log) if config.getoption("dist") == "loadfile" else None
