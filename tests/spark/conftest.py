"""What most tests of a file share: a store in a process of its own, a link to it, and a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_world import World, open_here, served, spark_in

from penstock.spark.connect import close_links, dial, link


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("store")) as found:
        try:
            yield found
        finally:
            close_links()


@pytest.fixture(scope="module")
def world(address: str) -> World:
    return World(link(dial, address))


@pytest.fixture
def world_here(tmp_path: Path) -> Iterator[World]:
    """A store in this process, in the directory ``data``."""
    try:
        yield World(link(open_here, str(tmp_path / "data")))
    finally:
        close_links()


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of ``world_here``; a read of a stream waits for nothing there."""
    monkeypatch.setattr("penstock.spark.reading.stream.LONG_POLL_S", 0.0)
    return tmp_path / "data"


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_in(tmp_path_factory.mktemp("spark")) as session:
        yield session
