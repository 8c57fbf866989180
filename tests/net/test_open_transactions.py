"""Transactions that have not ended are listed alike in process, over gRPC, over HTTP and by the client."""

from __future__ import annotations

from rest_streams import STREAM, S, with_events
from rest_support import Running, play

from penstock.client.stream import AsyncStream
from penstock.net.dial.controller import dial_controller
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.ports.control.transactions import TransactionStatus
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng

LEASE_MS = 20_000


def test_transactions_are_listed_from_begin_to_end_by_every_face() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        calls = run.controller.transactions
        before_ms = RealClock().now_ms()
        begun = [(await calls.create(S, lease_ms=LEASE_MS)).id for _ in range(3)]
        ended = await calls.create(S, lease_ms=LEASE_MS)
        await calls.abort(S, ended.id)
        await run.controller.sweep()
        found = await calls.list_open(S)
        assert [(item.id, item.state, item.epoch) for item in found] == [
            (txn, TransactionStatus.OPEN, 0) for txn in begun
        ]
        assert all(before_ms <= (item.begun_ms or 0) <= item.expires_ms - LEASE_MS for item in found)
        assert all(before_ms + LEASE_MS <= item.expires_ms <= item.deadline_ms for item in found)
        async with (
            GrpcServer(run.controller, run.store, port=0) as server,
            dial_controller(f"127.0.0.1:{server.port}") as remote,
        ):
            assert list(await remote.transactions.list_open(S)) == list(found)
            stream = AsyncStream(S, run.store, remote, RealClock(), RealRng())
            assert list(await stream.open_transactions()) == list(found)
        shown = await run.expect(200, "GET", f"{STREAM}/transactions")
        assert shown["transactions"] == [
            {
                "id": str(item.id),
                "state": "open",
                "epoch": 0,
                "expires_ms": item.expires_ms,
                "deadline_ms": item.deadline_ms,
                "begun_ms": item.begun_ms,
                "writer": "",
                "batch": None,
                "shared": False,
            }
            for item in found
        ]

    play(scene)


def test_a_stream_created_again_does_not_list_transactions_of_its_predecessor() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        await run.controller.transactions.create(S, lease_ms=LEASE_MS)
        config = await run.controller.streams.config(S)
        await run.controller.streams.delete(S, seal=True)
        assert (await run.expect(404, "GET", f"{STREAM}/transactions"))["class"] == "StreamNotFoundError"
        await run.controller.streams.create(S, config)
        assert list(await run.controller.transactions.list_open(S)) == []
        await run.expect(400, "GET", f"{STREAM}/transactions?state=open")

    play(scene)
