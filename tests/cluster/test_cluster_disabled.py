"""A container that an operator has disabled is open nowhere until it is enabled, and callers get the reason."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.app.cli.cluster import cluster as commands
from penstock.app.cluster.keeper import keep_assignment
from penstock.app.cluster.lines import open_lines
from penstock.app.cluster.operations.requests import request_disabled, request_drained, until_closed
from penstock.app.cluster.operations.status import cluster_state
from penstock.codec.store.cluster_nodes import CONFIG, REQUESTS, Requests, decode_node, encode_node
from penstock.core.segments.placement import container_of
from penstock.model.errors import InvalidArgumentError, NotFoundError, UnavailableError
from penstock.testing.fakes import START_MS
from tests.cluster.cluster_kit import CONTAINERS, LoopClock, join, new_cluster
from tests.cluster.cluster_kit import until as until_assigned
from tests.cluster.damage_kit import put
from tests.cluster.store_node_kit import MemoryCluster, run, until, until_serving
from tests.cluster.virtual_time import run_virtually


def test_the_request_keeps_drains_and_pins_and_needs_a_container_and_a_reason() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        await join(coordinator, "a")
        await request_drained(session, "a", drained=True)
        assert await request_disabled(session, 1, "repair")
        assert not await request_disabled(session, 1, "repair")
        assert decode_node(Requests, (await session.read(REQUESTS)).data) == Requests(
            drained=("a",), disabled={1: "repair"}
        )
        for container, reason in ((CONTAINERS, "repair"), (-1, "repair"), (0, ""), (0, "x" * 201)):
            with pytest.raises(InvalidArgumentError):
                await request_disabled(session, container, reason)
        assert await request_disabled(session, 1, None)
        assert not await request_disabled(session, 1, None)
        with pytest.raises(NotFoundError, match="no longer disabled"):
            await until_closed(session, 1, print)

    run_virtually(main())


def test_a_controller_takes_a_disabled_container_from_its_store_and_gives_it_back() -> None:
    async def main() -> None:
        coordinator = await new_cluster()
        session = coordinator.open()
        await join(coordinator, "a")
        keeping = asyncio.ensure_future(keep_assignment(session, containers=CONTAINERS, clock=LoopClock()))
        await until_assigned(session, lambda found: len(found.owners) == CONTAINERS)
        await request_disabled(session, 2, "repair")
        await until_assigned(session, lambda found: set(found.owners) == {0, 1, 3})
        state = (await cluster_state(session, now_ms=START_MS)).containers[2]
        assert (state.disabled, state.unserved) == ("repair", "disabled: repair")
        await request_disabled(session, 2, None)
        await until_assigned(session, lambda found: set(found.owners) == {0, 1, 2, 3})
        keeping.cancel()
        await asyncio.wait({keeping})

    run_virtually(main())


def test_a_store_closes_it_without_a_controller_and_opens_it_again_when_it_is_enabled(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        await put(cluster.coordinator, CONFIG, encode_node(cluster.config))
        session = cluster.coordinator.open()
        async with cluster.store("a") as a:
            cluster.assign({0: "a", 1: "a"})
            await until_serving(cluster, {0: "a", 1: "a"})
            unit = a.unit(1)
            seen: list[str] = []
            await request_disabled(session, 0, "repair")
            await until_closed(session, 0, seen.append)
            assert 0 not in a.node.states()
            assert set(seen) <= {"a"}
            assert a.unit(1) is unit, "nothing else is closed"
            epoch = cluster.record(0).epoch
            await asyncio.sleep(0.2)
            assert cluster.record(0).epoch == epoch, "nobody opens it"
            await request_disabled(session, 0, None)
            await until_serving(cluster, {0: "a", 1: "a"})
            assert cluster.record(0).epoch == epoch + 1

    run(main())


@pytest.mark.parametrize("requests", [encode_node(Requests(disabled={0: "repair"})), b"damaged", None])
def test_a_store_that_has_not_seen_the_request_yet_does_not_open_the_container(
    tmp_path: Path, requests: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the requests after it has registered as the holder. Damaged requests count as a request to keep it closed."""
    cluster = MemoryCluster(tmp_path)

    async def main() -> None:
        async with cluster.store("a") as a:

            async def blind(session: object) -> None: ...

            monkeypatch.setattr(a.node, "_read_disabled", blind)
            await put(cluster.coordinator, REQUESTS, requests)
            cluster.assign({0: "a"})
            await until(lambda: 0 in a.node.failures())
            assert cluster.record(0).epoch == 0
            await put(cluster.coordinator, REQUESTS, None)
            await put(cluster.coordinator, REQUESTS, encode_node(Requests()))
            await until_serving(cluster, {0: "a"})

    run(main())


def test_callers_and_the_controller_get_the_reason_at_once() -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            coordinator = await new_cluster(2)

            async def dial(container: int, address: str, handlers: object) -> Any:
                raise AssertionError("nobody holds it")

            await put(coordinator, REQUESTS, encode_node(Requests(disabled={0: "repair", 1: "repair"})))
            async with open_lines(coordinator.open(), dial, containers=2) as lines:
                await until(lambda: lines.lines[1].disabled is not None)
                await lines.until_served(0, patience_s=20, reach_s=20)  # and does not wait for them
                name = next(name for name in map(str, range(100)) if container_of(name, 2) == 1)
                refusal = r"penstock cluster enable.*container=1 .*repair"
                with pytest.raises(UnavailableError, match=refusal):
                    lines.endpoint_of(name)
                with pytest.raises(UnavailableError, match=refusal):
                    await lines.segments.info(name)
                assert lines.away() == "container 0, 1: disabled by an operator: repair"
                await put(coordinator, REQUESTS, encode_node(Requests()))
                await until(lambda: lines.lines[1].disabled is None)
                with pytest.raises(UnavailableError, match="try again"):
                    lines.endpoint_of(name)

    asyncio.run(main())


def test_the_command_asks_and_says_what_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Requests] = []

    def with_cluster(cluster: str, work: Any) -> Any:
        async def main() -> Any:
            session = (await new_cluster()).open()
            answer = await work(session)
            found.append(decode_node(Requests, (await session.read(REQUESTS)).data))
            return answer

        return asyncio.run(main())

    monkeypatch.setattr(commands, "with_cluster", with_cluster)
    words = ["disable", "1", "--cluster", "zk://z:1/p", "--reason", "ticket 7"]
    refused = CliRunner().invoke(commands.app, words)
    assert isinstance(refused.exception, InvalidArgumentError)
    assert "--yes" in str(refused.exception)
    assert not found
    done = CliRunner().invoke(commands.app, [*words, "--yes", "--json"])
    assert json.loads(done.output) | {"message": ""} == {
        "ok": True,
        "message": "",
        "container": 1,
        "reason": "ticket 7",
        "closed": True,
    }
    assert found == [Requests(disabled={1: "ticket 7"})]
    shown = CliRunner().invoke(commands.app, ["enable", "1", "--cluster", "zk://z:1/p"])
    assert shown.output == "container 1 was not disabled\n"
