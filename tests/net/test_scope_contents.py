"""What a scope holds is counted alike in process, over gRPC, over HTTP and by the client."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rest_streams import S, subscribed, with_events
from rest_support import Running, play

from penstock.answers import ScopeContents
from penstock.client.store import AsyncStore
from penstock.model.errors import NotEmptyError, RetentionHoldError, ScopeNotFoundError
from penstock.model.policies import StreamConfig
from penstock.net.dial.controller import dial_controller
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.ports.control.tables import TableConfig
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

NOTHING = ScopeContents(streams=0, internal_streams=0, reader_groups=0, tables=0)


def test_every_interface_returns_the_same_counts() -> None:
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
        # Internal: the mark stream of the stream, and the stream of the group's state.
        found = ScopeContents(streams=1, internal_streams=2, reader_groups=1, tables=1)
        assert await scopes.describe("s") == found
        assert await scopes.describe("empty") == NOTHING
        async with (
            GrpcServer(run.controller, run.store, port=0) as server,
            dial_controller(f"127.0.0.1:{server.port}") as remote,
        ):
            assert await AsyncStore(run.store, remote, RealClock(), RealRng()).describe_scope("s") == found
        assert await run.expect(200, "GET", "/v1/scopes/s/contents") == {
            "streams": 1,
            "internal_streams": 2,
            "reader_groups": 1,
            "tables": 1,
        }

    play(scene)


def test_a_scope_can_be_deleted_once_its_counts_are_zero_and_no_hold_is_on_it() -> None:
    async def scene(run: Running) -> None:
        scopes, holds = run.controller.scopes, run.controller.holds
        await scopes.create("s")
        await run.controller.streams.create(S, StreamConfig())
        assert await scopes.describe("s") == replace(NOTHING, streams=1, internal_streams=1)
        with pytest.raises(NotEmptyError):
            await scopes.delete("s")
        await run.controller.streams.seal(S)
        await run.controller.streams.delete(S)
        assert await scopes.describe("s") == NOTHING
        hold = await holds.add("s", owner="o", reason="r")
        with pytest.raises(RetentionHoldError):
            await scopes.delete("s")
        await holds.release(hold.id, owner="o")
        await scopes.delete("s")
        assert not await scopes.exists("s")

    play(scene)
