"""For all tests."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import settings

# A law holds on a busy machine too: how long an example takes is none of a test's business.
settings.register_profile("laws", deadline=None, max_examples=50)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("laws")

SPARK_GROUPS = 2  # processes with a JVM; each spends 30 s of CPU until its code is compiled


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where processes share the tests (``--dist loadgroup``), a file stays in one process, and the files that use Spark
    stay in two. Those come first: they take longest."""
    if not hasattr(config, "workerinput"):
        return
    with_spark = {_file(item) for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        file = _file(item)
        group = f"spark-{crc32(file.encode()) % SPARK_GROUPS}" if file in with_spark else file.rpartition("/")[2]
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: _file(item) not in with_spark)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]
