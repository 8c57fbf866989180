"""A cluster of real processes with its chunks in a real HDFS: stores and the namenode die while events are written."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import penstock
from penstock.codec.wire.commands import FlushToStorage, StorageFlushed
from penstock.storage.objects.hdfs_objects import HdfsObjects
from tests.abuse.peers import Peer
from tests.cluster.clicks_kit import KEYS, SEGMENTS, Writing, holders, read
from tests.cluster.cluster_processes import ClusterOfProcesses, ClusterProcess
from tests.storage.hdfs_world import hdfs_running

pytestmark = pytest.mark.cluster


def chunks_in(url: str, containers: int = 4) -> set[str]:
    async def found() -> set[str]:
        parts = [f"container-{number}" for number in range(containers)]
        lists = [await HdfsObjects(f"{url}/{part}").list("chunks") for part in parts]
        return {f"{part}/{name}" for part, names in zip(parts, lists, strict=True) for name in names}

    return asyncio.run(found())


def is_flushed(process: ClusterProcess) -> bool:
    """Ask a store to write all that it has to tier 2, which it does by itself after minutes. It ends the connection if it
    cannot."""
    with suppress(EOFError, OSError), Peer(int(process.address.rpartition(":")[2]), timeout_s=60) as peer:
        return peer.ask(FlushToStorage(0, "", 1)) == StorageFlushed(1)
    return False


def test_events_outlive_a_store_whose_chunks_are_in_hdfs_and_its_namenode(zookeeper, bookies, tmp_path):
    with hdfs_running(tmp_path / "hdfs") as hdfs:
        url = hdfs.new_bucket()
        with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root, tier2=url) as cluster:
            stores = [cluster.store(f"s{number}") for number in range(2)]
            cluster.controller("c0")
            cluster.active()
            address = cluster.controllers
            cluster.run("stream", "create", "shop/clicks", "--segments", str(SEGMENTS), "--controller", address)
            cluster.until(lambda: len(holders(cluster)) == 2)
            cluster.until(lambda: all(is_flushed(one) for one in stores))
            others = chunks_in(url)
            with Writing(address, 0) as writing:
                writing.rounds(20)
                cluster.until(lambda: all(is_flushed(one) for one in stores))
                first = chunks_in(url) - others
                assert len({chunk.partition("/")[0] for chunk in first}) > 1, "not all containers wrote"
                writing.rounds(20)
                stores[0].kill()
                writing.rounds(20)
                cluster.until(lambda: not cluster.status()["unserved"])
                # The log keeps what cannot be written to tier 2.
                hdfs.engine.servers[0].kill()
                writing.rounds(50)
                hdfs.engine.start()
                before = chunks_in(url)
                cluster.until(lambda: is_flushed(stores[1]) and bool(chunks_in(url) - before))
                writing.rounds(20)
                stores[0].start()
                cluster.until(lambda: len(holders(cluster)) == 2)
                stores[1].kill()
                cluster.until(lambda: holders(cluster) == {"s0"} and not cluster.status()["unserved"])
                writing.rounds(20)
            expected = {key: list(range(writing.next)) for key in KEYS}
            assert read(address) == expected, "once, and in order per key"
            with penstock.connect(address) as store:
                stream = store.stream("shop/clicks")
                stream.truncate(stream.tail())
            # Some of these chunks are the controller's.
            cluster.until(lambda: is_flushed(stores[0]) and len(first & chunks_in(url)) < len(first) / 2)
            for process in cluster.processes:
                if process.running:
                    process.kill()
            # A store cannot use the chunks of a cluster.
            with pytest.raises(penstock.PenstockError, match="belongs to"):
                penstock.open(tmp_path / "other", tier2=f"{url}/container-0").close()
