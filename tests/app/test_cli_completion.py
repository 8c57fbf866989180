"""The shell completes the names of scopes, streams, groups and tables from the store that the line names."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.app.cli.common.completion import NAMES_MAX, stream_names_in
from penstock.client.store import AsyncStore
from penstock.testing.fakes import FakeClock, SeededRng
from penstock.testing.server import ServerProcess, free_ports
from penstock.testing.world import World

pytestmark = pytest.mark.server
PENSTOCK = Path(sys.executable).with_name("penstock")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("completion") / "data") as running:
        with penstock.connect(running.address) as store:
            for name in ("shop/orders", "shop/open-offers", "shore/waves"):
                store.create_stream(name, create_scope=True)
            store.reader_group("shop/billing", ["shop/orders"])
            store.create_table("shop/prices", primary_key_bytes=2)
        yield running


@pytest.fixture(scope="module")
def script() -> str:
    """What a user loads into bash."""
    words = [str(PENSTOCK), "--show-completion", "bash"]
    environment = os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout


def completed(script: str, line: str, address: str) -> list[str]:
    """What bash offers after the line."""
    calls = f"""
        {script}
        read -ra COMP_WORDS <<< {shlex.quote(line)}
        [[ {shlex.quote(line)} == *' ' ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
        _penstock_completion {shlex.quote(str(PENSTOCK))}
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    environment = os.environ | {"PENSTOCK_CONTROLLER": address}
    found = subprocess.run(
        ["bash", "-c", calls], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stderr == ""
    return found.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("penstock stream list ", ["shop", "shore"]),
        ("penstock stream describe sho", ["shop/", "shore/"]),
        pytest.param("penstock stream describe shor", ["shore/waves"], marks=pytest.mark.slow),
        pytest.param("penstock stream describe shop/o", ["shop/open-offers", "shop/orders"], marks=pytest.mark.slow),
        ("penstock group describe shop/", ["shop/billing"]),
        ("penstock table scan shop/", ["shop/prices"]),
        pytest.param("penstock group reset nowhere/", [], marks=pytest.mark.slow),
    ],
)
def test_names_are_those_of_the_store(server: ServerProcess, script: str, line: str, names: list[str]) -> None:
    found = completed(script, line, server.address)
    if names and not found:
        found = completed(script, line, server.address)  # a loaded machine may take longer than a shell should wait
    assert found == names


def test_the_line_names_the_store(server: ServerProcess, script: str) -> None:
    (closed,) = free_ports(1)
    line = f"penstock stream describe --controller {server.address} shop/or"
    assert completed(script, line, f"127.0.0.1:{closed}") == ["shop/orders"]
    assert completed(script, "penstock stream describe --data /no/store shop/or", server.address) == []


def test_without_a_server_there_are_no_names_and_no_words(script: str) -> None:
    (closed,) = free_ports(1)
    began = time.monotonic()
    assert completed(script, "penstock stream describe sh", f"127.0.0.1:{closed}") == []
    assert time.monotonic() - began < 10  # the start of Python on a loaded machine; nothing is waited for


def test_a_scope_with_many_streams_is_searched_from_the_first_name_that_can_match() -> None:
    async def search() -> None:
        async with World(clock=FakeClock(), rng=SeededRng(1)).serving() as (segments, controller):
            store = AsyncStore(segments, controller, FakeClock(), SeededRng(2))
            await store.create_scope("many")
            for number in range(NAMES_MAX + 20):
                await store.create_stream(f"many/s{number:04}")
            await store.create_stream("many/zz")
            assert len(await stream_names_in(store, "many", "")) >= NAMES_MAX
            assert await stream_names_in(store, "many", "z") == ["zz"]
            assert await stream_names_in(store, "many", "s0219") == ["s0219"]
            assert await stream_names_in(store, "many", "s021") == [f"s021{digit}" for digit in range(10)]

    asyncio.run(search())
