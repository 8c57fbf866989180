"""Calls that workers refuse at their own ports have entries in the audit stream, as those at the server's ports."""

from __future__ import annotations

import asyncio
import json

import pytest
from wire_peers import RawPeer

import penstock
from penstock.codec.wire import commands as c
from penstock.core.access.resources import parse_grant
from penstock.model.credentials import Credentials
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.testing.server import ServerProcess

SEGMENT = "shop/orders/0.#epoch.0"
PASSWORD = "correct horse"


async def refused_calls(port: int, count: int) -> None:
    peer = RawPeer(*await asyncio.open_connection("127.0.0.1", port))
    assert await peer.ask(c.Hello(17, 5)) == c.Hello(17, 5)
    for number in range(count):
        await peer.send(c.GetStreamSegmentInfo(number, SEGMENT, "no token"))
        assert isinstance(await peer.receive(), c.AuthTokenCheckFailed)
    await peer.close()


@pytest.mark.server
def test_refusals_at_the_ports_of_workers_are_in_the_audit_stream(tmp_path):
    data = tmp_path / "data"

    def add(users: dict[str, User]) -> None:
        users["root"] = User(name="root", password=hash_password(PASSWORD), grants=(parse_grant("/=*"),))

    change_users(users_path(data), add)
    with ServerProcess(data, "--workers", "2", "--auth") as server:
        for number, worker in enumerate(server.workers):
            asyncio.run(refused_calls(int(worker["store"].rpartition(":")[2]), 2 + number))
        server.stop()  # each worker sends what waits before it ends
        server.start()
        with (
            penstock.connect(server.address, credentials=Credentials.basic("root", PASSWORD)) as store,
            store.stream("_system/audit").reader(until_tail=True) as reader,
        ):
            entries = [json.loads(event.data) for event in reader]
    found = [entry for entry in entries if entry["kind"] == "refused"]
    assert sorted(entry["count"] for entry in found) == [2, 3], found
    for entry in found:
        wanted = {"reason": "credentials", "via": "wire", "call": "GetStreamSegmentInfo", "peer": "127.0.0.1"}
        assert wanted.items() <= entry.items()
