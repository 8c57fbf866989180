"""A hold is extended without a moment in which its data is not held, alike in process, over gRPC and over HTTP."""

from __future__ import annotations

import pytest
from rest_streams import S, with_events
from rest_support import Running, play

from penstock.client.retention import AsyncHolds
from penstock.controller import keys
from penstock.model.errors import InvalidArgumentError, NotFoundError, RetentionHoldError
from penstock.net.dial.controller import dial_controller
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

DAY_MS = 86_400_000


@pytest.mark.parametrize("target", [S, S.scope], ids=["stream", "scope"])
def test_every_face_extends_a_hold_and_never_shortens_it(target) -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        calls, now_ms = run.controller.holds, RealClock().now_ms()
        held = await calls.add(target, owner="legal", reason="case 7", until_ms=now_ms + DAY_MS, hold_id="case-7")
        async with (
            GrpcServer(run.controller, run.store, port=0) as server,
            dial_controller(f"127.0.0.1:{server.port}") as remote,
        ):
            holds = AsyncHolds(target, remote, RealRng())
            later = await holds.extend("case-7", owner="ann", until=now_ms + 2 * DAY_MS)
            assert (later.until_ms, later.owner, later.created_ms) == (now_ms + 2 * DAY_MS, "legal", held.created_ms)
            assert await holds.extend("case-7", owner="ann", until=now_ms + 2 * DAY_MS) == later
            with pytest.raises(InvalidArgumentError):
                await holds.extend("case-7", owner="ann", until=now_ms + DAY_MS)
            with pytest.raises(NotFoundError):
                await holds.extend("case-8", owner="ann")
        shown = await run.expect(200, "PUT", "/v1/holds/case-7", {"owner": "ann"})
        assert shown["until_ms"] is None
        assert await run.expect(400, "PUT", "/v1/holds/case-7", {"owner": "ann", "until_ms": now_ms + DAY_MS})
        assert [hold.until_ms for hold in await calls.list(target)] == [None]
        with pytest.raises(RetentionHoldError):
            await run.controller.streams.truncate(S, await run.controller.cuts.tail(S))
        await calls.release("case-7", owner="legal")
        assert (await run.expect(404, "PUT", "/v1/holds/case-7", {"owner": "ann"}))["class"] == "NotFoundError"

    play(scene)


@pytest.mark.parametrize("target", [S, S.scope], ids=["stream", "scope"])
def test_a_removal_that_was_decided_before_the_extension_is_refused(target) -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        now_ms = RealClock().now_ms()
        await run.controller.holds.add(target, owner="o", reason="r", until_ms=now_ms + DAY_MS, hold_id="h")
        record = keys.stream(S) if target == S else keys.scope(S.scope)

        async def version() -> int:
            (entry,) = await run.store.table_get(keys.TABLE, [record])
            return entry.version

        before = await version()
        await run.controller.holds.extend("h", owner="o", until_ms=now_ms + 2 * DAY_MS)
        changed = await version()
        assert changed != before, "removals check this record, so one that has not seen the new end fails"
        await run.controller.holds.extend("h", owner="o", until_ms=now_ms + 2 * DAY_MS)
        assert await version() == changed

    play(scene)
