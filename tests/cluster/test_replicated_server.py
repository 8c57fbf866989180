"""A server whose log is on real bookies, killed together with one of them."""

from __future__ import annotations

import time

import pytest

import penstock
from penstock.testing import ServerProcess

pytestmark = pytest.mark.cluster


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
