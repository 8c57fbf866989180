"""What a scope holds is counted alike in process, over gRPC, over HTTP and by the client."""

from __future__ import annotations

import pytest
from rest_streams import subscribed, with_events
from rest_support import Running, play

from penstock.answers import ScopeContents
from penstock.client.store import AsyncStore
from penstock.model.errors import ScopeNotFoundError
from penstock.net.dial.controller import dial_controller
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.ports.control.tables import TableConfig
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng


def test_contents_are_counted_until_the_scope_can_be_deleted() -> None:
    async def scene(run: Running) -> None:
        scopes = run.controller.scopes
        with pytest.raises(ScopeNotFoundError):
            await scopes.describe("s")
        assert (await run.expect(404, "GET", "/v1/scopes/s/contents"))["class"] == "ScopeNotFoundError"
        await with_events(run, 1)
        await subscribed(run)
        await run.controller.tables.create(
            "s", "k", TableConfig(partitions=1, primary_key_bytes=4, secondary_key_bytes=0, rollover_bytes=0)
        )
        await scopes.create("empty")
        found = await scopes.describe("s")
        assert (found.streams, found.reader_groups, found.tables) == (1, 1, 1)
        none = ScopeContents(streams=0, internal_streams=0, reader_groups=0, tables=0)
        assert await scopes.describe("empty") == none
        async with (
            GrpcServer(run.controller, run.store, port=0) as server,
            dial_controller(f"127.0.0.1:{server.port}") as remote,
        ):
            assert await AsyncStore(run.store, remote, RealClock(), RealRng()).describe_scope("s") == found
        assert await run.expect(200, "GET", "/v1/scopes/s/contents") == {
            "streams": 1,
            "internal_streams": found.internal_streams,
            "reader_groups": 1,
            "tables": 1,
        }

    play(scene)
