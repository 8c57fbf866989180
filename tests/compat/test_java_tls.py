"""The official Java client over TLS, with a trust store of one authority and its check of host names on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from java_client import JavaClient

from penstock.testing.server import ServerProcess
from tests.certificates import Authority

pytestmark = [pytest.mark.server, pytest.mark.java]


@pytest.fixture(scope="module")
def secured(classpath: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    path = tmp_path_factory.mktemp("java-tls")
    root = Authority()
    options = root.issue(path, hosts=("localhost",)).options()
    with ServerProcess(path / "data", "--advertise", "localhost", *options) as server:
        running = JavaClient(classpath, server, path / "client.log", root.write(path / "ca.pem"))
        yield running
        running.close()


def test_the_java_client_works_over_tls(secured: JavaClient) -> None:
    assert secured.run("scopes")["made"] is True
    assert secured.run("events")
    assert secured.run("transactions")
