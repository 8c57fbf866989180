"""The creation of a cluster: its address, its secret, its nodes, and its mark in tier 2."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from penstock.app.cluster.access.secret import SECRET_BYTES, ensure_cluster_secret, read_cluster_secret
from penstock.app.cluster.address import ClusterAddress, parse_cluster_address
from penstock.app.cluster.init import ClusterPlan, create_nodes, mark_tier, read_config
from penstock.codec.store.cluster_nodes import ASSIGNMENT, REQUESTS, TERM, Assignment, Requests, Term, decode_node
from penstock.codec.store.container_record import decode_record
from penstock.model.errors import CorruptDataError, InvalidArgumentError, NotFoundError
from penstock.storage.memory.memory_coordination import MemoryCoordinator
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.fakes import SeededRng

CONFIG = ClusterPlan(tier2="s3://bucket/flights/", containers=3).config("ours")


def test_an_address_has_the_servers_and_the_root():
    found = parse_cluster_address("zk://zk1:2181,zk2:2182/penstock/flights/")
    assert found == ClusterAddress(hosts="zk1:2181,zk2:2182", root="/penstock/flights")
    assert str(found) == "zk://zk1:2181,zk2:2182/penstock/flights"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zk1:2181/a",
        "zk://zk1:2181",
        "zk://zk1:2181/",
        "zk://zk1/a",
        "zk://me@zk1:1/a",
        "zk://zk1:1/a?b",
        "zk://z:1/_a",
    ],
)
def test_other_addresses_are_refused(text):
    with pytest.raises(InvalidArgumentError):
        parse_cluster_address(text)


def test_a_secret_is_drawn_once_and_belongs_to_its_owner(tmp_path):
    path = tmp_path / "cluster.secret"
    with pytest.raises(NotFoundError):
        read_cluster_secret(path)
    assert ensure_cluster_secret(path, SeededRng(1))
    secret = read_cluster_secret(path)
    assert len(secret.current) == SECRET_BYTES
    assert secret.earlier is None
    assert path.stat().st_mode & 0o777 == 0o600
    assert not ensure_cluster_secret(path, SeededRng(2))
    assert read_cluster_secret(path) == secret
    path.chmod(0o640)
    with pytest.raises(InvalidArgumentError, match="chmod 600"):
        read_cluster_secret(path)
    path.chmod(0o600)
    for text in ("", "not hexadecimal", "00" * 16, f"{'00' * 32}\n" * 3):
        path.write_text(text)
        with pytest.raises(CorruptDataError):
            read_cluster_secret(path)


def test_all_nodes_are_created_at_once_and_only_once():
    async def main():
        session, objects = MemoryCoordinator().open(), MemoryObjects()
        with pytest.raises(NotFoundError, match="not finished"):
            await read_config(session)
        assert await create_nodes(session, CONFIG, objects, SeededRng(1))
        assert await read_config(session) == CONFIG
        assert CONFIG.tier2 == "s3://bucket/flights"
        assert decode_node(Requests, (await session.read(REQUESTS)).data) == Requests()
        assert decode_node(Assignment, (await session.read(ASSIGNMENT)).data) == Assignment()
        assert decode_node(Term, (await session.read(TERM)).data).term == 0
        assert list(await session.members("containers")) == ["0", "1", "2"]
        for path in ("stores", "controllers", "holders"):
            assert list(await session.members(path)) == []
        records = [decode_record((await session.read(f"containers/{number}")).data) for number in range(3)]
        assert len({record.uid for record in records}) == 3
        assert not await create_nodes(session, CONFIG, objects, SeededRng(2))
        again = [decode_record((await session.read(f"containers/{number}")).data) for number in range(3)]
        assert again == records

    asyncio.run(main())


def test_a_second_creation_with_other_settings_names_the_difference_and_changes_nothing():
    async def main():
        session, objects, other = MemoryCoordinator().open(), MemoryObjects(), MemoryObjects()
        await create_nodes(session, CONFIG, objects, SeededRng(1))
        wanted = replace(CONFIG, containers=4, tier2="s3://other/place")
        with pytest.raises(InvalidArgumentError, match=r"containers is 3, not 4; tier2 is s3://bucket/flights, not s3"):
            await create_nodes(session, wanted, other, SeededRng(2))
        assert not await other.list("clusters")

    asyncio.run(main())


def test_a_creation_that_ended_after_the_mark_is_finished_by_the_next_call():
    async def main():
        session, objects = MemoryCoordinator().open(), MemoryObjects()
        await mark_tier(objects, CONFIG)
        assert await create_nodes(session, CONFIG, objects, SeededRng(1))

    asyncio.run(main())


@pytest.mark.parametrize("name", ["STORE", "clusters/theirs", "chunks/a", "worker-0/STORE"])
def test_tier_2_of_others_is_refused(name):
    async def main():
        written = []

        async def note(verb, name):
            if verb in ("put", "delete"):
                written.append(name)

        session, objects = MemoryCoordinator().open(), MemoryObjects(before=note)
        await objects.put(name, b'{"format": 1, "store": "theirs"}')
        with pytest.raises(InvalidArgumentError, match="belongs to another"):
            await create_nodes(session, CONFIG, objects, SeededRng(1))
        assert written == [name]
        assert list(await session.members("")) == []

    asyncio.run(main())


def test_of_two_clusters_that_mark_tier_2_together_none_believes_to_be_alone():
    class Racing(MemoryObjects):
        """Another cluster writes its mark at the same time."""

        async def put(self, name, data):
            await super().put(name, data)
            await super().put("clusters/theirs", data)

    async def main():
        objects = Racing()
        with pytest.raises(InvalidArgumentError, match="another cluster"):
            await mark_tier(objects, CONFIG)
        assert list(await objects.list("clusters")) == ["clusters/theirs"]

    asyncio.run(main())


@pytest.mark.parametrize("containers", [0, 65])
def test_the_number_of_containers_is_bounded(containers):
    with pytest.raises(InvalidArgumentError):
        ClusterPlan(tier2="x", containers=containers)
