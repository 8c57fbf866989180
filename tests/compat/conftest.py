"""What the tests of the Java client share: its build, a server, and one process of the client for all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from java_client import JavaClient, Steps, build

from penstock.testing.server import ServerProcess


@pytest.fixture(scope="session")
def classpath() -> str:
    return build()


@pytest.fixture(scope="session")
def client(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    path = tmp_path_factory.mktemp("java")
    with ServerProcess(path / "data", "--retention-cycle", "200ms") as server:
        running = JavaClient(classpath, server, path / "client.log")
        yield running
        running.close()


@pytest.fixture
def killed(classpath: str, tmp_path: Path) -> Iterator[tuple[JavaClient, Steps]]:
    """A client, and steps that kill its server with ``kill -9`` and start it again."""
    with ServerProcess(tmp_path / "data") as server:

        def restart(_: Mapping[str, Any]) -> str:
            server.kill()
            server.start()
            return "go on"

        running = JavaClient(classpath, server, tmp_path / "client.log")
        yield running, restart
        running.close()
