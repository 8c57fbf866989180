"""Processes refuse engines that are not those of their cluster, and say why. One that finds too few bookies waits."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from penstock.app.cluster.init import ClusterPlan, check_incarnation, check_tier, create_nodes
from penstock.codec.store.cluster_nodes import CONFIG, FEATURES, INCARNATIONS
from penstock.codec.store.container_record import ContainerRecord, encode_record
from penstock.core.cluster.levels import LEVEL
from penstock.model.errors import ConditionFailedError, ContainerOfflineError, InvalidArgumentError, WrongClusterError
from penstock.storage.cluster.nodes import open_nodes
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.log_record import HeldRecord, Opening
from penstock.storage.memory.memory_coordination import MemoryCoordinator
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.fakes import FakeClock, SeededRng
from tests.cluster.cluster_processes import ClusterOfProcesses
from tests.cluster.damage_kit import put
from tests.cluster.store_node_kit import MemoryCluster, run, until, until_serving


def test_another_bookkeeper_is_refused() -> None:
    async def main() -> None:
        world = SimBookKeeper()

        async def opened(instance: str | None) -> None:
            async with open_ledgers(
                world.nodes, root=ROOT, clock=FakeClock(), rng=SeededRng(1), connect=world.connect, instance=instance
            ):
                pass

        await opened(None)
        await opened("simulated")
        with pytest.raises(WrongClusterError, match="not the BookKeeper of the cluster"):
            await opened("another")

    asyncio.run(main())


def test_a_repeated_creation_with_another_bookkeeper_is_refused() -> None:
    async def main() -> None:
        session, objects = MemoryCoordinator().open(), MemoryObjects()
        config = ClusterPlan(tier2="s3://bucket/x", containers=2).config("ours", bookkeeper="one", incarnation="first")
        await create_nodes(session, config, objects, SeededRng(1))
        assert not await create_nodes(session, replace(config, incarnation="second"), objects, SeededRng(2))
        assert list(await session.members(INCARNATIONS)) == ["first"]
        with pytest.raises(InvalidArgumentError, match="bookkeeper is one, not two"):
            await create_nodes(session, replace(config, bookkeeper="two"), objects, SeededRng(2))

    asyncio.run(main())


def test_a_process_that_knew_earlier_records_ends() -> None:
    async def main() -> None:
        coordinator, objects = MemoryCoordinator(), MemoryObjects()
        session = coordinator.open()
        config = ClusterPlan(tier2="s3://bucket/x", containers=2).config("ours", incarnation="first")
        await create_nodes(session, config, objects, SeededRng(1))
        await check_incarnation(session, config)
        await check_incarnation(session, replace(config, incarnation=None))
        await put(coordinator, f"{INCARNATIONS}/first", None)
        with pytest.raises(WrongClusterError, match="restart it"):
            await check_incarnation(session, config)

    asyncio.run(main())


@pytest.mark.parametrize("marks", [(), ("clusters/theirs",)])
def test_tier_2_without_the_mark_of_the_cluster_is_refused(marks: tuple[str, ...]) -> None:
    async def main() -> None:
        objects = MemoryObjects()
        config = ClusterPlan(tier2="s3://bucket/x", containers=2).config("ours")
        for name in marks:
            await objects.put(name, b"{}")
        with pytest.raises(WrongClusterError, match="lacks the mark of this cluster"):
            await check_tier(objects, config)
        await objects.put("clusters/ours", b"{}")
        await check_tier(objects, config)

    asyncio.run(main())


def test_a_container_waits_for_bookies_with_the_reason(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        nodes = cluster.bookkeeper.nodes.nodes
        away = {path: nodes.pop(path) for path in [path for path in nodes if "/available/" in path][1:]}
        async with cluster.store("a") as a:
            cluster.assign({0: "a"})
            await until(lambda: 0 in a.node.failures())
            assert "bookies are needed" in a.node.failures()[0]
            assert "start another bookie" in a.node.failures()[0]
            nodes |= away
            await until_serving(cluster, {0: "a"})

    run(main())


@pytest.fixture
def client(zookeeper: Any) -> Iterator[KazooClient]:
    found = KazooClient(zookeeper.address)
    found.start()
    yield found
    found.stop()
    found.close()


@pytest.mark.cluster
def test_records_of_zookeeper_that_were_created_again_cannot_be_changed(
    zookeeper: Any, client: KazooClient, tmp_path: Path
) -> None:
    """With the same version, so that only the guard tells them apart."""
    root = f"/penstock/{tmp_path.name}"

    async def main() -> None:
        client.ensure_path(f"{root}/containers")
        client.ensure_path(f"{root}/incarnations/first")
        record = encode_record(ContainerRecord(uid="u"))
        client.create(f"{root}/containers/0", record)
        async with open_nodes(zookeeper.address, guard=f"{root}/incarnations/first") as nodes:
            held = await HeldRecord.take(nodes, f"{root}/containers/0", rng=SeededRng(1), opening=Opening())
            await nodes.create(f"{root}/deep/below", b"x")
            assert (await nodes.read(f"{root}/deep/below")) == (b"x", 0)
            client.delete(root, recursive=True)
            client.ensure_path(f"{root}/incarnations/second")
            client.create(f"{root}/containers/0", record, makepath=True)
            client.set(f"{root}/containers/0", record)  # the version that the owner knows
            with pytest.raises(ContainerOfflineError):
                await held.change(lambda one: replace(one, truncated=1))
            assert client.get(f"{root}/containers/0")[0] == record
            with pytest.raises(ConditionFailedError, match="created again"):
                await nodes.create(f"{root}/other", b"")
            assert client.exists(f"{root}/other") is None
        client.delete(root, recursive=True)

    asyncio.run(main())


def refused(cluster: ClusterOfProcesses, *words: str) -> str:
    """What a command says that must not succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode not in (0, 1), done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.cluster
def test_init_store_and_controller_refuse_with_a_sentence(
    zookeeper: Any, bookies: Any, client: KazooClient, tmp_path: Path
) -> None:
    with ClusterOfProcesses(tmp_path, zookeeper.address, bookies.root) as cluster:
        root = "/" + cluster.url.split("/", 3)[3]
        config = client.get(f"{root}/{CONFIG}")[0]
        mark = next((tmp_path / "tier2" / "clusters").iterdir())

        def process(role: str, url: str = cluster.url, data: str = "fresh") -> tuple[str, ...]:
            ports = ("--port", "0", "--links-port", "0") if role == "store" else ("--controller-port", "0")
            shared = ("--cluster", url, "--name", role, "--secret-file", str(cluster.secret))
            return role, *shared, "--data", str(tmp_path / f"{role}-{data}"), *ports

        def configured(**fields: Any) -> None:
            client.set(f"{root}/{CONFIG}", json.dumps(json.loads(config) | fields).encode())

        for role in ("store", "controller"):
            assert "has no node at this root" in refused(cluster, *process(role, cluster.url + "x"))
            client.set(f"{root}/{FEATURES}", b'{"format": 1, "level": 99}')
            assert "install the version that other machines run" in refused(cluster, *process(role))
            client.set(f"{root}/{FEATURES}", b'{"format": 1, "level": %d}' % LEVEL)
            client.set(f"{root}/{CONFIG}", b"{")
            assert "cannot be read" in refused(cluster, *process(role))
            configured()
        configured(bookkeeper="another")
        assert "not the BookKeeper of the cluster" in refused(cluster, *process("store"))
        assert "bookkeeper is another, not" in refused(cluster, *cluster.init)
        configured()
        mark.rename(mark.with_name("theirs"))
        assert "tier 2 lacks the mark of this cluster" in refused(cluster, *process("store"))
        other = ("cluster", "init", "--cluster", cluster.url + "2", *cluster.init[4:])
        assert "tier 2 belongs to another cluster" in refused(cluster, *other)
        absent = tmp_path / "absent.secret"
        assert "copy it from the machine" in refused(cluster, *cluster.init, "--secret-file", str(absent))
        assert not absent.exists(), "a second secret would keep processes apart"
        assert "has no node at this root" in refused(cluster, *process("controller", cluster.url + "2")), (
            "init left something"
        )
        mark.with_name("theirs").rename(mark)
        assert "no BookKeeper has its metadata" in refused(cluster, *cluster.init, "--bookkeeper-root", "/none")
        store, controller = cluster.store("store"), cluster.controller("controller")
        cluster.until(lambda: bool(store.facts) and controller.facts.get("role") == "active")
        assert "another process of the cluster has this name" in refused(cluster, *process("store", data="second"))
        assert "another controller of this cluster has this name" in refused(
            cluster, *process("controller", data="second")
        )
        found = json.loads(doctor(cluster, 0))
        assert found["findings"] == []
        client.set(f"{root}/{CONFIG}", config)
        client.set(f"{root}/requests", b"{")
        assert [one["subject"] for one in json.loads(doctor(cluster, 7))["findings"]] == ["node requests"]


def doctor(cluster: ClusterOfProcesses, status: int) -> str:
    command = [sys.executable, "-m", "penstock", "cluster", "doctor", "--cluster", cluster.url, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout
