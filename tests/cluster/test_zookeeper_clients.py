"""What our use of kazoo does in a process that lives for long. No ZooKeeper is needed."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import aclosing

import pytest

pytest.importorskip("kazoo")

from kazoo.exceptions import ConnectionLoss
from kazoo.protocol.states import KeeperState

from penstock.storage.cluster import nodes
from penstock.storage.cluster.kazoo_line import new_client
from penstock.storage.cluster.zookeeper import ZooKeeperCoordination


def test_after_a_long_absence_of_zookeeper_a_client_is_back_within_a_second(monkeypatch) -> None:
    """kazoo's own pauses double up to an hour: after ten minutes away, it looks once in ten minutes."""
    made = []

    def note(hosts: str, *, session_s: float) -> object:
        made.append(new_client(hosts, session_s=session_s))
        raise ConnectionLoss  # it need not start

    monkeypatch.setattr("penstock.storage.cluster.nodes.new_client", note)

    async def open_and_end() -> None:
        with pytest.raises(ConnectionLoss):
            async with nodes.open_nodes("127.0.0.1:1"):
                pass

    asyncio.run(open_and_end())
    pauses: list[float] = []
    retry = made[0]._conn_retry.copy()
    retry.sleep_func, retry.interrupt = pauses.append, None

    def connect() -> None:
        if len(pauses) < 1_000:
            raise ConnectionLoss

    retry(connect)
    assert sum(pauses) > 300, "it does not give up"
    assert max(pauses) < 1


def test_an_outage_is_two_lines_in_the_log_however_long_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    """kazoo logs two lines for each attempt to connect: ten minutes away were some 3,000 lines."""
    caplog.set_level(logging.INFO)
    client = new_client("127.0.0.1:1", session_s=4.0)
    for _ in range(50):
        client.logger.info("Connecting to %s", "127.0.0.1:1")
        client.logger.warning("Connection dropped: socket connection error: Connection refused")
    assert caplog.messages == [], "nobody was connected: the caller gets an error"
    for state in (KeeperState.CONNECTED, *[KeeperState.CONNECTING] * 5, KeeperState.EXPIRED_SESSION):
        client._session_callback(state)
    client._session_callback(KeeperState.CONNECTING)
    for state in (KeeperState.CONNECTED, KeeperState.CONNECTED, KeeperState.CLOSED):
        client._session_callback(state)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("WARNING", "connection to ZooKeeper was lost; reconnecting"),
        ("WARNING", "ZooKeeper answers again"),
    ]
    assert all(record.address == "127.0.0.1:1" for record in caplog.records)
    client.logger.error("Unhandled exception in connection loop")
    assert caplog.messages[-1] == "Unhandled exception in connection loop", "defects are logged"


class FakeKazoo:
    """Keeps watches as kazoo does: each callable once for a path and kind, until that watch fires."""

    def __init__(self) -> None:
        self.data: dict[str, set] = defaultdict(set)
        self.children: dict[str, set] = defaultdict(set)

    def exists_async(self, path: str, watch) -> object:
        self.data[path].add(watch)
        return object()

    def get_children_async(self, path: str, watch) -> object:
        self.children[path].add(watch)
        return object()

    def change(self, kind: dict[str, set], path: str) -> None:
        for watch in kind.pop(path, ()):
            watch(None)


class FakeLine:
    """``KazooLine`` on a connection that is never lost."""

    def __init__(self, kazoo: FakeKazoo) -> None:
        self.kazoo = kazoo

    async def until_connected(self, deadline: float) -> None:
        return

    async def call(self, request, deadline: float) -> object:
        return request(self.kazoo)

    def watcher(self, changed: asyncio.Event):
        return lambda _: changed.set()

    async def ended(self) -> None:
        await asyncio.Event().wait()

    def check_open(self) -> None:
        return


@pytest.mark.parametrize("kind", ["data", "children"])
def test_watches_that_do_not_fire_do_not_pile_up(kind: str) -> None:
    async def scenario() -> None:
        kazoo = FakeKazoo()
        session = ZooKeeperCoordination(FakeLine(kazoo), "/root", "s", boot_clock=lambda: 0.0, patience_s=1.0)
        async with aclosing(session.notices("members")) as notices:
            for _ in range(50):
                async with asyncio.timeout(5):
                    await anext(notices)
                kazoo.change(getattr(kazoo, kind), "/root/members")
        assert max(len(held) for held in (*kazoo.data.values(), *kazoo.children.values())) == 1

    asyncio.run(scenario())
