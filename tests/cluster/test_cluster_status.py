"""What operators see of a cluster, stores that they drain, and controllers that register."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from penstock.app.cli.cluster import cluster as commands
from penstock.app.cli.cluster.cluster import app
from penstock.app.cluster.access.secret import ClusterSecret, SecretInForce
from penstock.app.cluster.address import parse_cluster_address
from penstock.app.cluster.controller_process import ClusterMember, ControllerProcessSettings
from penstock.app.cluster.init import read_config
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.operations import status
from penstock.app.cluster.operations.requests import request_drained, until_drained
from penstock.app.cluster.operations.status import cluster_state
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.codec.store.cluster_nodes import (
    CONTROLLERS,
    HOLDERS,
    REQUESTS,
    ControllerEntry,
    HeldContainer,
    Requests,
    decode_node,
    encode_node,
)
from penstock.model.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from penstock.storage.memory.memory_objects import MemoryObjects
from penstock.testing.fakes import START_MS, SeededRng
from tests.cluster.cluster_kit import CONTAINERS, LoopClock, join, new_cluster, until
from tests.cluster.signing_kit import keys_of
from tests.cluster.virtual_time import run_virtually


def held(store, *, serving=True):
    return encode_node(HeldContainer(store=store, clients=f"{store}:1", links=f"{store}:2", serving=serving))


async def requests(session):
    return decode_node(Requests, (await session.read(REQUESTS)).data).drained


def test_a_state_names_stores_that_are_away_and_containers_that_nobody_serves():
    async def main():
        coordinator = await new_cluster()
        session = coordinator.open()
        store = await join(coordinator, "a")
        await store.register(f"{HOLDERS}/0", held("a"))
        await store.register(f"{HOLDERS}/1", held("a", serving=False))
        await session.set(REQUESTS, encode_node(Requests(drained=("gone",))), 0)
        found = await cluster_state(session, now_ms=START_MS)
        assert [(one.name, one.entry is not None, one.drained, one.holds) for one in found.stores] == [
            ("a", True, False, 2),
            ("gone", False, True, 0),
        ]
        assert found.unserved == [1, 2, 3]
        assert found.leader is None

    run_virtually(main())


def test_a_store_is_drained_only_by_its_right_name_and_once():
    async def main():
        coordinator = await new_cluster()
        session = coordinator.open()
        await join(coordinator, "a")
        with pytest.raises(NotFoundError, match="no store of this name"):
            await request_drained(session, "b", drained=True)
        assert await request_drained(session, "a", drained=True)
        assert not await request_drained(session, "a", drained=True)
        assert await requests(session) == ("a",)
        assert await request_drained(session, "a", drained=False)
        assert not await request_drained(session, "a", drained=False)
        assert await requests(session) == ()

    run_virtually(main())


def test_a_drain_waits_until_nothing_is_assigned_and_nothing_is_held():
    async def main():
        coordinator = await new_cluster()
        session, one = coordinator.open(), await join(coordinator, "a")
        keeper = asyncio.ensure_future(keep_assignment(coordinator.open(), containers=CONTAINERS, clock=LoopClock()))
        await until(session, lambda found: len(found.owners) == CONTAINERS)
        await one.register(f"{HOLDERS}/0", held("a"))
        await join(coordinator, "b")
        await request_drained(session, "a", drained=True)
        left = []
        waiting = asyncio.ensure_future(until_drained(session, "a", left.append, clock=LoopClock()))
        await until(session, lambda found: set(found.owners.values()) == {"b"})
        await asyncio.sleep(1)
        assert not waiting.done(), "it still holds one"
        await one.delete(f"{HOLDERS}/0", 0)
        await waiting
        assert left[0] >= left[-1] == 0
        assert left == sorted(left, reverse=True)
        other = asyncio.ensure_future(until_drained(session, "b", left.append, clock=LoopClock()))
        with pytest.raises(NotFoundError, match="no longer drained"):
            await other
        keeper.cancel()
        await asyncio.wait([keeper])

    run_virtually(main())


def settings(tmp_path, **given):
    serving = StandaloneSettings(
        store=EmbeddedSettings(data=tmp_path),
        insecure=given.pop("insecure", False),
        host=given.pop("host", "127.0.0.1"),
    )
    fields = {"name": "c1", "secret_file": tmp_path / "secret"} | given
    return ControllerProcessSettings(address=parse_cluster_address("zk://z:1/p"), serving=serving, **fields)


def test_a_controller_waits_for_its_name_and_then_gives_up(tmp_path):
    async def main():
        coordinator = await new_cluster()
        entry = encode_node(ControllerEntry(controller="c1", grpc="h:1", http="h:2", active=True, pid=1))
        earlier, session = coordinator.open(), coordinator.open()
        await earlier.register(f"{CONTROLLERS}/c1", entry)
        config = await read_config(session)
        member = ClusterMember(
            settings(tmp_path),
            session,
            config,
            secrets=SecretInForce(ClusterSecret(current=bytes(32)), ["digest"], tmp_path / "secret"),
            rng=SeededRng(1),
            signing=keys_of(tmp_path, MemoryObjects()),
        )
        with pytest.raises(AlreadyExistsError, match="another controller of this cluster has this name"):
            await member.register()
        waiting = asyncio.ensure_future(member.register())
        await asyncio.sleep(2)
        coordinator.expire(earlier.session().id)
        await waiting
        found = decode_node(ControllerEntry, (await session.read(f"{CONTROLLERS}/c1")).data)
        assert not found.active

    run_virtually(main())


def test_a_controller_beyond_loopback_and_a_bad_name_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"TLS is missing .* authentication is missing .*--insecure"):
        settings(tmp_path, host="10.0.0.1")
    settings(tmp_path, host="10.0.0.1", insecure=True)
    with pytest.raises(InvalidArgumentError, match="give --advertise"):
        settings(tmp_path, host="0.0.0.0", insecure=True)
    for name in ("", "a/b", "_a"):
        with pytest.raises(InvalidArgumentError):
            settings(tmp_path, name=name)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_shows_the_state(monkeypatch, as_json):
    async def prepared():
        coordinator = await new_cluster()
        store = await join(coordinator, "a")
        await store.register(f"{HOLDERS}/0", held("a"))
        return coordinator.open()

    def with_cluster(cluster, work):
        async def main():
            return await work(await prepared())

        return asyncio.run(main())

    monkeypatch.setattr(commands, "with_cluster", with_cluster)
    monkeypatch.setattr(status, "inspect_at", lambda _: None)
    shown = CliRunner().invoke(app, ["status", "--cluster", "zk://z:1/p", *(["--json"] if as_json else [])])
    assert shown.exit_code == 0, shown.output
    if as_json:
        assert json.loads(shown.output)["unserved"] == [1, 2, 3]
    else:
        assert "3 of 4 are not served" in shown.output
        assert "not served: containers 1 to 3: " in shown.output
        assert "none is active" in shown.output
