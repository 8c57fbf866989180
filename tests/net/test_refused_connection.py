"""Where nobody listens, the first connection of a session says so at once; later ones outlast a restart as ever."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest

import penstock
from penstock.__main__ import main
from penstock.model.errors import NotConnectedError
from penstock.net.dial.checking import REFUSED_S, check_listens
from penstock.net.dial.controller import dial_controller
from penstock.spark.connect import close_links, dial, link

LATEST_S = 5.0
"""Far below the 30 s of a session that was connected, and above what a loaded machine adds to 1.5 s."""


@pytest.fixture
def address():
    """A port that is held, so that nobody can listen there, and refuses."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def blocking(address):
    penstock.connect(address, dial_s=30)


def in_a_loop(address):
    async def dialled():
        async with dial_controller(address, dial_s=30):
            raise AssertionError("connected")

    asyncio.run(dialled())


def from_spark(address):
    try:
        link(dial, f"tcp://{address}").served()
    finally:
        close_links()


@pytest.mark.parametrize("connect", [blocking, in_a_loop, from_spark])
def test_a_refused_connection_is_reported_at_once_with_the_address(address, connect):
    began = time.monotonic()
    with pytest.raises(NotConnectedError, match="nothing listens") as caught:
        connect(address)
    assert time.monotonic() - began < LATEST_S
    assert caught.value.fields["address"] == address
    assert "penstock standalone" in str(caught.value)


def test_a_command_says_so_too(address, capsys, monkeypatch):
    began = time.monotonic()
    monkeypatch.setattr("sys.argv", ["penstock", "stream", "list", "s", "--controller", address])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code not in (0, None)
    assert time.monotonic() - began < LATEST_S
    said = capsys.readouterr()
    assert address in said.err + said.out
    assert "nothing listens" in said.err + said.out


def test_a_server_that_starts_beside_its_client_is_waited_for():
    async def scene():
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            checking = asyncio.create_task(check_listens(f"127.0.0.1:{server.getsockname()[1]}", wait_s=20 * REFUSED_S))
            await asyncio.sleep(0)
            server.listen()
            await checking

    asyncio.run(scene())


def test_a_session_that_was_connected_does_not_ask_again(address):
    one = link(dial, address)
    one._was_open = True
    try:
        assert one.served() is one
    finally:
        close_links()
