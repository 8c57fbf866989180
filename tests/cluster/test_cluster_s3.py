"""A cluster of real processes with its chunks and the keys of its ledgers in a real bucket: a store dies, and events are erased."""

from __future__ import annotations

from contextlib import suppress

import pytest

import penstock
from penstock.codec.wire.commands import FlushToStorage, StorageFlushed
from tests.abuse.peers import Peer
from tests.cluster.clicks_kit import KEYS, SEGMENTS, Writing, holders, read
from tests.cluster.cluster_processes import ClusterOfProcesses, ClusterProcess
from tests.storage.s3_world import contents, running

pytestmark = pytest.mark.cluster

CANARY = b"ann@example.com"


def is_flushed(process: ClusterProcess) -> bool:
    """Ask a store to write all that it has to the bucket. It ends the connection if it cannot."""
    with suppress(EOFError, OSError), Peer(int(process.address.rpartition(":")[2]), timeout_s=60) as peer:
        return peer.ask(FlushToStorage(0, "", 1)) == StorageFlushed(1)
    return False


def test_events_outlive_a_store_whose_chunks_are_in_a_bucket_and_are_erased(zookeeper, bookies, tmp_path):
    with running("swift", tmp_path / "swift") as server:
        url = server.new_bucket()
        place = f"{url}/shop"
        with ClusterOfProcesses(
            tmp_path, zookeeper.address, bookies.root, tier2=place, endpoint=server.endpoint
        ) as cluster:
            stores = [cluster.store(f"s{number}") for number in range(2)]
            cluster.controller("c0")
            cluster.active()
            address = cluster.controllers
            cluster.run("stream", "create", "shop/clicks", "--segments", str(SEGMENTS), "--controller", address)
            cluster.run("stream", "create", "shop/people", "--segments", "4", "--controller", address)
            cluster.until(lambda: len(holders(cluster)) == 2)
            with penstock.connect(address) as store, store.stream("shop/people").writer() as writer:
                for number in range(100):
                    writer.write(CANARY + b" %d" % number, key=f"k{number % 7}")
            with Writing(address, 0) as writing:
                writing.rounds(20)
                cluster.until(lambda: all(is_flushed(one) for one in stores))
                assert any(CANARY in data for data in contents(server, url).values()), "nothing was in the bucket"
                writing.rounds(20)
                stores[0].kill()
                writing.rounds(20)
                cluster.until(lambda: not cluster.status()["unserved"])
                with penstock.connect(address) as store:
                    people = store.stream("shop/people")
                    found = [(event.segment, event.offset) for event in people.reader(until_tail=True)]
                    assert len(found) == 100
                    receipt = people.erase(found, who="ann", why="request 17")
                    assert "the bytes on bookies are unreadable" in receipt["tiers"]["log"]
                    assert not list(people.reader(until_tail=True))
                cluster.until(lambda: not any(CANARY in data for data in contents(server, url).values()))
                stores[0].start()
                cluster.until(lambda: len(holders(cluster)) == 2)
                stores[1].kill()
                cluster.until(lambda: holders(cluster) == {"s0"} and not cluster.status()["unserved"])
                writing.rounds(20)
            expected = {key: list(range(writing.next)) for key in KEYS}
            assert read(address) == expected, "once, and in order per key"
            with penstock.connect(address) as store:
                assert not list(store.stream("shop/people").reader(until_tail=True))
