"""What most tests of a file share: a store in a process of its own, a link to it, and a session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from spark_world import World, served, spark_in

from penstock.spark.connect import close_links, dial, link


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture(scope="module")
def world(address: str) -> Iterator[World]:
    try:
        yield World(link(dial, address))
    finally:
        close_links()


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_in(tmp_path_factory.mktemp("spark")) as session:
        yield session
