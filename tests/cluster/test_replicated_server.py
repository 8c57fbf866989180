"""A server whose log is on real bookies, killed together with one of them, and with its whole disk."""

from __future__ import annotations

import shutil
import threading
import time
from contextlib import suppress

import cluster_engines
import pytest

import penstock
from penstock.testing import ServerProcess

pytestmark = pytest.mark.cluster

END_MAX_S = 60.0
"""Controller, containers and log take 30 s at most, kazoo up to 20 s, and the machine is busy."""


def test_acknowledged_events_outlive_the_server_and_a_bookie(zookeeper, bookies, tmp_path):
    url = f"bookkeeper://{zookeeper.address}/penstock/server?ledgers={bookies.root}"
    expected = [b"%d" % number for number in range(300)]
    try:
        with ServerProcess(tmp_path / "store", "--log", url) as server:
            with penstock.connect(server.address) as store:
                clicks = store.create_stream("shop/clicks", create_scope=True)
                with clicks.writer() as writer:
                    for data in expected[:100]:
                        writer.write(data)
                    writer.flush()
                    bookies.servers[0].kill()
                    for data in expected[100:200]:
                        writer.write(data)
            server.kill()
            server.start()
            with penstock.connect(server.address) as store, store.stream("shop/clicks").writer() as writer:
                for data in expected[200:]:
                    writer.write(data)
            server.kill()
            server.start()
            with penstock.connect(server.address) as store:
                found = [event.data for event in store.stream("shop/clicks").reader(until_tail=True)]
        assert sorted(found, key=int) == expected
    finally:
        while not bookies.servers[0].running and bookies.registered(bookies.servers[0].port):
            time.sleep(0.1)
        bookies.start()


def test_acknowledged_events_outlive_the_machine(zookeeper, bookies, tmp_path):
    """Killed under load, and its data directory deleted: another directory continues from bookies and tier 2."""
    tier = tmp_path / "tier2"
    tier.mkdir()
    options = (
        "--log",
        f"bookkeeper://{zookeeper.address}/penstock/elsewhere?ledgers={bookies.root}",
        "--tier2",
        str(tier),
    )
    keys, acknowledged = ("ann", "bob", "cid"), {"ann": -1, "bob": -1, "cid": -1}

    def load(address: str, ready: threading.Event) -> None:
        """Write rounds of 50 events of each key until the server is gone."""
        try:
            with penstock.connect(address) as store, store.stream("shop/clicks").writer(deadline_s=5.0) as writer:
                while True:
                    first = acknowledged["ann"] + 1
                    for number in range(first, first + 50):
                        for key in keys:
                            writer.write(f"{key} {number}".encode(), key=key)
                    writer.flush()
                    acknowledged.update(dict.fromkeys(keys, first + 49))
                    if first >= 1000 and any(tier.rglob("j-*")):  # what follows needs the log and the catalogue
                        ready.set()
        except penstock.PenstockError:
            ready.set()

    with ServerProcess(tmp_path / "first", *options) as server:
        with penstock.connect(server.address) as store:
            store.create_stream("shop/clicks", segments=3, create_scope=True)
        ready = threading.Event()
        writing = threading.Thread(target=load, args=(server.address, ready))
        writing.start()
        assert ready.wait(60)
        server.kill()
        writing.join()
    shutil.rmtree(tmp_path / "first")
    assert min(acknowledged.values()) >= 1000
    with ServerProcess(tmp_path / "second", *options, "--take-over") as server:
        found = {key: [] for key in keys}
        with penstock.connect(server.address) as store:
            for event in store.stream("shop/clicks").reader(until_tail=True):
                key, number = event.data.decode().split()
                found[key].append(int(number))
            for key in keys:
                assert found[key] == list(range(len(found[key]))), "once, and in order"
                assert len(found[key]) > acknowledged[key]
            with store.stream("shop/clicks").writer() as writer:
                writer.write(b"ann after", key="ann")
        server.kill()
        server.start()  # in the directory that owns the store now, the option changes nothing
        with penstock.connect(server.address) as store:
            last = [event.data for event in store.stream("shop/clicks").reader(until_tail=True) if b"ann" in event.data]
        assert last[-1] == b"ann after"


@pytest.mark.parametrize("way", ["kill", "pause"])
def test_a_server_ends_while_bookies_and_zookeeper_are_away(engines, tmp_path, way):
    """Under load, with and without anybody at the other end of the connections."""
    with (
        cluster_engines.ZooKeeper(tmp_path / "zookeeper") as zookeeper,
        cluster_engines.Bookies(tmp_path / "bookies", zookeeper.address) as bookies,
        ServerProcess(
            tmp_path / "store", "--log", f"bookkeeper://{zookeeper.address}/penstock/end?ledgers={bookies.root}"
        ) as server,
        penstock.connect(server.address) as store,
    ):
        store.create_stream("shop/clicks", create_scope=True)
        away = [*zookeeper.servers, *bookies.servers]
        with suppress(penstock.PenstockError), store.stream("shop/clicks").writer(deadline_s=3.0) as writer:
            writer.write(b"kept")
            writer.flush()
            for one in away:
                getattr(one, way)()
            for number in range(1000):
                writer.write(b"%d" % number)  # what is in flight cannot end
            began_s = time.monotonic()
            status = server.stop()
            took_s = time.monotonic() - began_s
        if way == "pause":
            for one in away:
                one.resume()
        assert status == 0, server.tail()
        assert took_s < END_MAX_S, server.tail()
