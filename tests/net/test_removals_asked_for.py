"""Removals that are asked for over a port: the dry run names what goes and changes nothing; the audit names the caller."""

from __future__ import annotations

from typing import Any

from rest_streams import STREAM, S, head_of, subscribed, with_events
from rest_support import FIRST, Running, play

from penstock.codec.audit import decode_entry
from penstock.codec.events import split_events
from penstock.model.callers import Caller, calling
from penstock.model.cuts import StreamCut
from penstock.model.names import AUDIT_STREAM, segment_name
from penstock.net.dial.controller import dial_controller
from penstock.net.grpc.grpc_server import GrpcServer


async def audit_entries(run: Running, kind: str) -> list[dict[str, Any]]:
    await run.controller.drain_audit()
    found = await run.store.read(segment_name(AUDIT_STREAM, FIRST), 0, 1 << 20, wait=False)
    entries = [decode_entry(event) for event in split_events(b"".join(found.parts))]
    return [entry for entry in entries if entry["kind"] == kind]


def test_the_dry_run_of_a_truncation_is_what_the_truncation_then_does() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        await subscribed(run)
        await run.expect(200, "PUT", f"{STREAM}/retention", {"grace_s": 3600})
        planned = await run.expect(200, "POST", f"{STREAM}/truncate?dry_run=true", {"cut": {"0#0": 300}})
        assert planned == await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": {"0#0": 300}, "dry_run": True})
        assert planned == {
            "stream": "s/events",
            "from": {"0#0": 0},
            "to": {"0#0": 300},
            "bytes": 300,
            "events": 3,
            "subscribers": [{"subscriber": "s/g", "bytes": 300, "events": 3}],
            "holds": [],
            "grace_s": 3600.0,
        }
        assert await head_of(run) == 0
        await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": {"0#0": 300}})
        (entry,) = await audit_entries(run, "truncate")
        assert (entry["bytes"], entry["events"]) == (planned["bytes"], planned["events"])
        planned = await run.expect(200, "POST", f"{STREAM}/truncate?dry_run=true", {"cut": "head"})
        assert (planned["bytes"], planned["events"], planned["subscribers"]) == (0, 0, [])

    play(scene)


def test_a_subscriber_loses_only_what_it_has_not_read() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        await subscribed(run)
        await run.expect(200, "PUT", f"{STREAM}/subscribers/g", {"cut": {"0#0": 200}})
        for cut, lost in ((100, []), (200, []), (700, [{"subscriber": "s/g", "bytes": 500, "events": 5}])):
            planned = await run.expect(200, "POST", f"{STREAM}/truncate?dry_run=true", {"cut": {"0#0": cut}})
            assert (planned["bytes"], planned["subscribers"]) == (cut, lost)

    play(scene)


def test_the_dry_run_of_a_deletion_is_what_the_deletion_then_does() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        await subscribed(run)
        await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": {"0#0": 300}})
        planned = await run.expect(200, "DELETE", f"{STREAM}?dry_run=true")
        assert planned == {
            "stream": "s/events",
            "from": {"0#0": 300},
            "to": {"0#0": 1000},
            "bytes": 700,
            "events": 7,
            "subscribers": [{"subscriber": "s/g", "bytes": 700, "events": 7}],
            "holds": [],
        }
        assert await run.controller.streams.exists(S)
        await run.expect(200, "PUT", f"{STREAM}/state", {"streamState": "SEALED"})
        await run.expect(204, "DELETE", f"{STREAM}?dry_run=false")
        assert not await run.controller.streams.exists(S)
        (entry,) = await audit_entries(run, "delete")
        assert (entry["bytes"], entry["events"]) == (700, 7)
        await run.expect(404, "DELETE", f"{STREAM}?dry_run=true")

    play(scene)


def test_all_truncations_since_a_time_are_taken_back() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        await run.expect(200, "PUT", f"{STREAM}/retention", {"grace_s": 3600})
        for end in (100, 200, 300):
            await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": {"0#0": end}})
        undone = await run.expect(200, "POST", f"{STREAM}/retention/undo")
        assert (undone["positions"], undone["truncations"], undone["bytes"]) == ({"0#0": 200}, 1, 100)
        first_ms = (await audit_entries(run, "truncate"))[0]["at_ms"]
        undone = await run.expect(200, "POST", f"{STREAM}/retention/undo?since_ms={first_ms}")
        assert (undone["positions"], undone["truncations"], undone["bytes"]) == ({"0#0": 0}, 2, 200)
        assert StreamCut.from_text(undone["cut"]) == StreamCut(S, {FIRST: 0})
        assert (undone["not_restored"], undone["subscribers"]) == ([], [])
        assert await head_of(run) == 0
        assert (await run.expect(409, "POST", f"{STREAM}/retention/undo?since_ms=0"))["class"] == "ConflictError"
        assert (await run.expect(400, "POST", f"{STREAM}/retention/undo?since_ms=now"))[
            "class"
        ] == "InvalidArgumentError"

    play(scene)


def test_the_audit_names_who_asked_over_http_and_why() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        body = {"cut": {"0#0": 300}}
        headers = {"Penstock-Who": "ann", "Penstock-Why": "ticket 7, für Käthe".encode().decode("latin-1")}
        await run.expect(200, "POST", f"{STREAM}/truncate", body, headers=headers)
        await run.expect(200, "POST", f"{STREAM}/truncate", {"cut": "tail"})
        stated, silent = await audit_entries(run, "truncate")
        assert stated["caller"] == {"who": "ann", "why": "ticket 7, für Käthe", "via": "http", "peer": "127.0.0.1"}
        assert silent["caller"] == {"via": "http", "peer": "127.0.0.1"}
        refused = await run.expect(400, "POST", f"{STREAM}/truncate", body, headers={"Penstock-Why": "x" * 1001})
        assert refused["fields"]["field"] == "why"

    play(scene)


def test_the_audit_names_who_asked_over_grpc_and_why() -> None:
    async def scene(run: Running) -> None:
        await with_events(run)
        async with (
            GrpcServer(run.controller, run.store, port=0) as server,
            dial_controller(f"127.0.0.1:{server.port}") as remote,
        ):
            with calling(Caller(who="ann", why="für Käthe", via="cli")):
                await remote.streams.truncate(S, StreamCut(S, {FIRST: 300}))
            await remote.streams.truncate(S, StreamCut(S, {FIRST: 400}))
        stated, silent = await audit_entries(run, "truncate")
        assert stated["caller"] == {"who": "ann", "why": "für Käthe", "via": "grpc", "peer": "127.0.0.1"}
        assert silent["caller"] == {"via": "grpc", "peer": "127.0.0.1"}

    play(scene)


def test_an_abort_over_http_is_audited_though_neither_program_has_a_name() -> None:
    async def scene(run: Running) -> None:
        await with_events(run, 1)
        txn = (await run.controller.transactions.create(S, lease_ms=30_000)).id
        (listed,) = (await run.expect(200, "GET", f"{STREAM}/transactions"))["transactions"]
        assert (listed["id"], listed["writer"]) == (str(txn), "")
        await run.expect(204, "DELETE", f"{STREAM}/transactions/{txn}")
        (entry,) = await audit_entries(run, "abort")
        assert entry["transaction"] == str(txn)
        assert entry["caller"]["via"] == "http"
        assert not entry["caller"].get("who")

    play(scene)
