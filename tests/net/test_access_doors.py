"""Every call at every door, made by every kind of caller: who gets in, and who gets nowhere.

One process serves gRPC, HTTP and the wire protocol over a real store. The calls come from the ports, the routes and the
table of commands, so a new call is tested as soon as it exists.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from access_calls import EVERY, command_of, request_of, routes_of
from access_world import NOBODY, ORDERS, PASSWORD, RIGHTS, SEGMENT, Doors, run
from rest_support import Answer, _call

from penstock.app.access.settings import AccessSettings, load_access_settings
from penstock.app.workers.supervisor import Patience, Worker
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.core.access.commands import COMMANDS, WITHOUT_TOKEN
from penstock.core.access.resources import parse_grant
from penstock.model.callers import Caller, calling
from penstock.model.errors import InvalidArgumentError
from penstock.model.identity import Action, Identity
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.net.http.path_rights import PUBLIC_PATHS
from penstock.net.proto import Controller_pb2 as pb
from penstock.net.wire.wire_errors import own_token
from penstock.ports.data.segments import Append
from penstock.storage.access.bearer import StoreTokens
from penstock.storage.access.store_key import key_path, load_key

# --- gRPC -------------------------------------------------------------------------------------------------


def test_the_matrix_of_grpc_calls(tmp_path):
    """Nobody gets in, a caller from elsewhere gets nothing of the scope, and each right allows its own calls."""

    async def test(opened: Doors) -> None:
        allowed: dict[str, set[str]] = {}
        for name, (subject, method, call) in EVERY.items():
            request = request_of(subject, method, call)
            for caller in NOBODY:
                assert await opened.native(name, request, caller) == "UNAUTHENTICATED", (name, caller)
            outcomes = {caller: await opened.native(name, request, caller) for caller in RIGHTS}
            assert set(outcomes.values()) <= {"made", "PERMISSION_DENIED"}, (name, outcomes)
            allowed[name] = {caller for caller, outcome in outcomes.items() if outcome == "made"}
        assert_rights(allowed)

    run(tmp_path, test)


def assert_rights(allowed: Mapping[str, set[str]]) -> None:
    """What each kind of caller may do, checked against the words of the reference and not against the table itself."""
    for name, callers in allowed.items():
        # Lists show each caller its own part.
        lists = ("scopes.list", "cases.list", "approvals.list")
        if name in (*lists, "segments.release_lease", "segments.finish_lease_part"):
            continue
        assert not callers & {"foreign", "scraper"}, name
    changes = ["create", "update", "seal", "delete", "truncate", "restore", "scale"]
    for name, callers in allowed.items():
        subject, _, verb = name.partition(".")
        if (subject in ("scopes", "streams", "tables") and verb in changes) or name in (
            "layout.scale",
            "groups.delete",
        ):
            assert callers == {"admin"}, name
        if name.startswith(("batches.",)) or name in ("transactions.create", "transactions.commit", "cuts.note_time"):
            assert callers == {"writer"}, name
        if subject == "retention" and verb in ("run", "undo", "undo_last"):
            assert callers == set(), name
        if name in ("policies.set", "holds.add", "holds.release", "erasures.erase", "erasures.withdraw"):
            assert callers == set(), name
        if name in ("segments.chunk_ranges", "segments.lease_chunks", "subscribers.publish", "groups.create"):
            assert callers == {"reader"}, name
        if name in ("streams.config", "streams.exists", "layout.current", "cuts.tail"):
            assert callers == {"reader", "writer", "admin", "auditor"}, name
        if name in ("retention.plan", "retention.explain", "subscribers.describe", "streams.describe"):
            assert "writer" not in callers, name
            assert "reader" in callers, name


def test_pravegas_calls_and_odd_credentials_over_grpc(tmp_path):
    async def test(opened: Doors) -> None:
        service = pb.DESCRIPTOR.services_by_name["ControllerService"]
        stream = pb.StreamInfo(scope="shop", stream="orders").SerializeToString()
        ann = "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        for method in service.methods_by_name:
            path = f"/{service.full_name}/{method}"
            assert await opened.rpc(path, b"", []) == "UNAUTHENTICATED", method
            assert await opened.rpc(path, b"", [("authorization", opened.credentials["wrong"])]) == "UNAUTHENTICATED"
        current = f"/{service.full_name}/getCurrentSegments"
        assert await opened.rpc(current, stream, [("authorization", ann)]) == "made"
        assert (
            await opened.rpc(f"/{service.full_name}/sealStream", stream, [("authorization", ann)])
            == "PERMISSION_DENIED"
        )
        twice = [("authorization", ann), ("authorization", opened.credentials["admin"])]
        assert await opened.rpc(current, stream, twice) == "UNAUTHENTICATED"
        for smuggled in (
            [("x-forwarded-user", "admin")],
            [("penstock-who-bin", b"admin")],
            [("authorization-bin", ann.encode())],
            [("proxy-authorization", ann)],
        ):
            assert await opened.rpc(current, stream, smuggled) == "UNAUTHENTICATED"

    run(tmp_path, test)


# --- HTTP -------------------------------------------------------------------------------------------------


def test_the_matrix_of_http_routes(tmp_path):
    async def test(opened: Doors) -> None:
        await opened.controller.scopes.create("shop.ns")
        await opened.controller.streams.create(StreamName("shop.ns", "t"), StreamConfig())
        routes = routes_of(opened)
        assert len(routes) > 150
        for method, path in routes:
            if path in PUBLIC_PATHS:
                assert (await opened.http(method, path, "none")).status < 400
                continue
            for caller in NOBODY:
                answer = await opened.http(method, path, caller)
                assert answer.status == 401, (method, path, caller, answer.data)
                assert "Basic" in answer.headers.get("www-authenticate", answer.headers.get("WWW-Authenticate", ""))
            answer = await opened.http(method, path, "foreign")
            named = "shop" in path
            if named and method == "GET":
                # Nothing of the scope is shown. A path that no stream can have is refused as such.
                assert answer.status in (400, 403, 404) or b"shop" not in answer.data, (method, path, answer)
            elif named:
                assert answer.status >= 400, (method, path, answer)

    run(tmp_path, test)


def test_http_credentials_cannot_be_smuggled_and_rights_hold(tmp_path):
    async def test(opened: Doors) -> None:
        ann = "Basic " + base64.b64encode(f"ann:{PASSWORD}".encode()).decode()
        path = "/v1/scopes/shop/streams/orders"
        assert (await opened.http("GET", path, "none", authorization=ann)).status == 200
        assert (await opened.http("DELETE", path, "none", authorization=ann)).status == 403
        for headers in (
            {"authorization": f"{ann}, {ann}"}, {"authorization": ann.replace("Basic", "Basic  Basic")},
            {"x-authorization": ann}, {"proxy-authorization": ann}, {"penstock-who": "admin"}, {"x-forwarded-user": "admin"},
        ):  # fmt: skip
            assert (await opened.http("GET", path, "none", **headers)).status == 401, headers
        reader, writer = await asyncio.open_connection("127.0.0.1", opened.rest.port)
        head = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: {ann}\r\n"
        writer.write(f"{head}authorization: {opened.credentials['admin']}\r\nconnection: close\r\n\r\n".encode())
        assert b" 401 " in (await reader.read()).partition(b"\r\n")[0]
        writer.close()
        names = [one["scopeName"] for one in (await opened.http("GET", "/v1/scopes", "foreign")).json["scopes"]]
        assert names == ["other"]
        missing = await opened.http("GET", "/v1/scopes/shop/streams/missing", "foreign")
        there = await opened.http("GET", path, "foreign")
        assert (missing.status, json.loads(missing.data)) == (there.status, json.loads(there.data)) or (
            missing.data.replace(b"missing", b"orders") == there.data
        )
        statuses = {caller: (await opened.http("GET", "/metrics", caller)).status for caller in RIGHTS}
        # These doors serve no metrics, so who may see them gets 404.
        assert statuses == {caller: 404 if caller in ("auditor", "scraper") else 403 for caller in RIGHTS}
        assert (await opened.http("GET", path, "scraper")).status == 403
        listed = await opened.http("GET", "/v1/scopes", "scraper")
        assert (listed.status, listed.json["fields"]["needs"]) == (403, "any right but metrics on /")

    run(tmp_path, test)


def test_a_second_identity_approves_over_http(tmp_path):
    async def test(opened: Doors) -> None:
        path, bea = "/v1/scopes/shop/streams/orders", "none"
        tokens = StoreTokens(load_key(tmp_path), opened.clock)
        bearer = {"authorization": "Bearer " + tokens.issue(
            "bea", [parse_grant("/scope:shop=approve")], ttl_s=3600, token_id=UUID(int=2)
        )}  # fmt: skip
        with calling(Caller(identity=Identity(name="root", proof="token"))):
            await opened.controller.approvals.require("shop", ["delete"])
        await opened.controller.streams.seal(ORDERS)
        for _ in range(2):
            assert (await opened.http("DELETE", path, "admin")).status == 409
        (asked,) = (await opened.http("GET", "/v1/approvals", bea, **bearer)).json["approvals"]
        assert (asked["action"], asked["requested_by"]) == ("delete", "admin")
        request = f"/v1/approvals/{asked['id']}"
        assert (await opened.http("GET", "/v1/approvals", "foreign")).json == {"approvals": []}
        assert (await opened.http("GET", request, "foreign")).status in (403, 404)
        assert (await opened.http("POST", f"{request}/approve", "admin")).status == 403
        assert (await opened.http("POST", f"{request}/refuse", bea, **bearer)).status == 400  # without a reason
        assert (await opened.http("POST", f"{request}/withdraw", bea, **bearer)).status == 403
        assert await opened.controller.streams.exists(ORDERS)
        done = await opened.http("POST", f"{request}/approve", bea, **bearer)
        assert (done.json["state"], done.json["decided_by"]) == ("executed", "bea")
        assert (await opened.http("GET", request, bea, **bearer)).json == done.json
        assert not await opened.controller.streams.exists(ORDERS)

    run(tmp_path, test)


def test_required_approvals_are_set_over_http(tmp_path):
    async def test(opened: Doors) -> None:
        tokens = StoreTokens(load_key(tmp_path), opened.clock)
        bearer = {"authorization": "Bearer " + tokens.issue(
            "ruth", [parse_grant("/scope:shop=retain")], ttl_s=3600, token_id=UUID(int=3)
        )}  # fmt: skip

        async def put(path: str, actions: Sequence[str]) -> Answer:
            body = json.dumps({"actions": actions}).encode()
            sent = {"content-type": "application/json", **bearer}
            return await asyncio.to_thread(_call, opened.rest.port, "PUT", path, body, sent)

        scope, stream = "/v1/scopes/shop/required-approvals", "/v1/scopes/shop/streams/orders/required-approvals"
        assert (await put(scope, ["truncate"])).json == {"actions": ["truncate"]}
        assert (await put(stream, ["delete"])).json == {"actions": ["delete", "truncate"]}
        assert (await opened.http("GET", stream, "none", **bearer)).json == {"actions": ["delete", "truncate"]}
        assert (await put("/v1/required-approvals", ["delete"])).status == 403
        assert (await put(scope, ["wipe"])).status == 400
        assert (await opened.http("GET", scope, "foreign")).status in (403, 404)
        assert (await put(scope, [])).status == 409, "less is required: that needs an approval itself"
        assert (await opened.http("GET", scope, "none", **bearer)).json == {"actions": ["truncate"]}

    run(tmp_path, test)


# --- the wire ---------------------------------------------------------------------------------------------


def test_the_matrix_of_wire_commands(tmp_path):
    """Each command passes with each action that the table lists for it, and with no other one and no other stream."""

    async def test(opened: Doors) -> None:
        def token(*actions: Action, stream: StreamName = ORDERS) -> str:
            return opened.issuer.issue("ann", stream, frozenset(actions))

        everything = (Action.READ, Action.WRITE, Action.ADMIN)
        expired = token(*everything)
        opened.clock.jump(700_000)
        other = token(*everything, stream=StreamName("shop", "other"))
        refused = c.AuthTokenCheckFailed
        peer = await opened.peer()
        requests = {spec.kind for spec in wire.SPECS if spec.is_request}
        for kind in sorted(requests - WITHOUT_TOKEN - {c.AppendMany}, key=lambda one: one.__name__):
            if kind is c.CallController:
                assert isinstance(await peer.ask(command_of(kind, "")), refused)
                continue
            assert kind in COMMANDS, kind
            cases = {"": 0, "x": 0, other: 0, expired: 1, token(*everything) + "A": 0}
            for action in everything:
                if action not in COMMANDS[kind]:
                    cases[token(action)] = 0
            for text, code in cases.items():
                for sent in (text, own_token(text)):
                    reply = await peer.ask(command_of(kind, sent))
                    assert isinstance(reply, refused), (kind.__name__, sent, reply)
                    assert (reply.rid, reply.code) == (7, code), (kind.__name__, sent)
        await peer.close()
        assert (await opened.store.info(SEGMENT)).length == 0

    run(tmp_path, test)


def test_a_token_lets_its_own_commands_through_and_ends_while_a_writer_writes(tmp_path, monkeypatch):
    async def test(opened: Doors) -> None:
        monkeypatch.setattr("penstock.net.wire.permits.GRACE_S", 0.05)
        read = opened.issuer.issue("ann", ORDERS, frozenset({Action.READ}))
        write = opened.issuer.issue("ann", ORDERS, frozenset({Action.WRITE}))
        peer, writer = await opened.peer(), UUID(int=3).bytes
        assert isinstance(await peer.ask(c.GetStreamSegmentInfo(1, SEGMENT, read)), c.StreamSegmentInfo)
        assert isinstance(await peer.ask(c.SetupAppend(2, writer, SEGMENT, write)), c.AppendSetup)
        await peer.send(c.AppendBlockEnd(writer, 0, b"\0\0\0\0\0\0\0\1x", 1, 1, 3))
        assert isinstance(await peer.receive(), c.DataAppended)
        await peer.send(c.ReadSegment(SEGMENT, 9, 1000, read, 4))  # waits at the tail
        opened.clock.jump(599_960)
        assert isinstance(await peer.ask(c.SetupAppend(5, writer, SEGMENT, write)), c.AppendSetup)
        reply = await asyncio.wait_for(peer.receive(), 5)
        assert reply == c.AuthTokenCheckFailed(5, "", 1)
        opened.clock.jump(100)
        # Dropped: the writer has to be set up again.
        await peer.send(c.AppendBlockEnd(writer, 0, b"\0\0\0\0\0\0\0\1y", 1, 2, 6))
        assert await peer.ask(c.SetupAppend(7, writer, SEGMENT, write)) == c.AuthTokenCheckFailed(7, "", 1)
        assert (await opened.store.info(SEGMENT)).length == 9
        last = await opened.store.setup_append(SEGMENT, UUID(int=4))
        await opened.store.append(
            Append(segment=SEGMENT, writer=UUID(int=4), data=b"\0\0\0\0\0\0\0\1z", event_number=1, previous=last)
        )
        # The read that waited past the end of its token gets no data.
        assert await asyncio.wait_for(peer.receive(), 5) == c.AuthTokenCheckFailed(4, "", 1)
        await peer.close()

    run(tmp_path, test)


def test_each_reader_of_one_place_is_answered_by_its_own_token(tmp_path):
    async def test(opened: Doors) -> None:
        early = opened.issuer.issue("ann", ORDERS, frozenset({Action.READ}))
        first, second = await opened.peer(), await opened.peer()
        await first.ask(c.ReadSegment(SEGMENT, 0, 1000, "", 1))
        await first.send(c.ReadSegment(SEGMENT, 0, 1000, early, 1))
        assert isinstance(await first.ask(c.GetStreamSegmentInfo(2, SEGMENT, early)), c.StreamSegmentInfo)
        opened.clock.jump(300_000)
        late = opened.issuer.issue("ann", ORDERS, frozenset({Action.READ}))
        await second.send(c.ReadSegment(SEGMENT, 0, 1000, late, 3))
        assert isinstance(await second.ask(c.GetStreamSegmentInfo(4, SEGMENT, late)), c.StreamSegmentInfo)
        opened.clock.jump(400_000)
        last = await opened.store.setup_append(SEGMENT, UUID(int=4))
        await opened.store.append(
            Append(segment=SEGMENT, writer=UUID(int=4), data=b"\0\0\0\0\0\0\0\1z", event_number=1, previous=last)
        )
        assert await asyncio.wait_for(first.receive(), 5) == c.AuthTokenCheckFailed(1, "", 1)
        answer = await asyncio.wait_for(second.receive(), 5)
        assert (answer.rid, bytes(answer.data)) == (3, b"\0\0\0\0\0\0\0\1z")
        await first.close()
        await second.close()

    run(tmp_path, test)


def test_a_token_that_ends_during_its_setup_ends_the_writer(tmp_path, monkeypatch):
    async def test(opened: Doors) -> None:
        monkeypatch.setattr("penstock.net.wire.permits.GRACE_S", 0.02)
        monkeypatch.setattr("penstock.net.wire.permits.AGAIN_S", 0.02)
        write = opened.issuer.issue("ann", ORDERS, frozenset({Action.WRITE}))
        opened.clock.jump(599_990)
        peer, writer = await opened.peer(), UUID(int=3).bytes
        may_answer, setup = asyncio.Event(), opened.store.setup_append

        async def slow(segment: str, one: UUID) -> int:
            last = await setup(segment, one)
            await may_answer.wait()
            return last

        monkeypatch.setattr(opened.store, "setup_append", slow)
        await peer.send(c.SetupAppend(2, writer, SEGMENT, write))
        await asyncio.sleep(0.2)  # past the end of the token
        may_answer.set()
        assert isinstance(await peer.receive(), c.AppendSetup)
        assert await asyncio.wait_for(peer.receive(), 5) == c.AuthTokenCheckFailed(2, "", 1)
        await peer.close()

    run(tmp_path, test)


def test_odd_tokens_and_long_names_over_the_wire(tmp_path):
    """A token that is no text, or whose header is nested without end, is refused like any other. A read of a segment
    with a long name keeps the end of its token."""

    async def test(opened: Doors) -> None:
        long = StreamName("shop", "x" * 100)
        await opened.controller.streams.create(long, StreamConfig())
        segment, writer = f"{long}/0.#epoch.0", UUID(int=4)
        last = await opened.store.setup_append(segment, writer)
        await opened.store.append(
            Append(segment=segment, writer=writer, data=b"\0\0\0\0\0\0\0\1z", event_number=1, previous=last)
        )
        peer = await opened.peer()
        nested = base64.urlsafe_b64encode(b"[" * 8000).decode().rstrip("=")
        for rid, odd in enumerate((f"{nested}.e30.e30", "\udcff.\udcff.\udcff")):
            reply = await peer.ask(c.GetStreamSegmentInfo(rid, SEGMENT, odd))
            assert reply == c.AuthTokenCheckFailed(rid, "", 0)
        status = await opened.http("GET", "/v1/scopes", "none", authorization=f"Bearer {nested}.e30.e30")
        assert status.status == 401
        read = opened.issuer.issue("ann", long, frozenset({Action.READ}))
        reply = await peer.ask(c.ReadSegment(segment, 0, 1000, read, 4))
        assert isinstance(reply, c.SegmentRead)
        assert bytes(reply.data)[-1:] == b"z"
        await peer.send(c.ReadSegment(segment, 9, 1000, read, 5))  # waits at the tail
        opened.clock.jump(700_000)
        await opened.store.append(
            Append(segment=segment, writer=writer, data=b"\0\0\0\0\0\0\0\1z", event_number=2, previous=1)
        )
        assert await asyncio.wait_for(peer.receive(), 5) == c.AuthTokenCheckFailed(5, "", 1)
        await peer.close()

    run(tmp_path, test)


def test_a_worker_that_starts_again_verifies_with_the_key_of_its_running_server(tmp_path):
    """The server signs with the key that it has read, even if the file is removed for the next start."""

    async def test() -> None:
        settings: Any = SimpleNamespace(
            store=SimpleNamespace(data=tmp_path), access=AccessSettings(), tls=None, host="h", advertised="h",
            worker_port=lambda _: 0,
        )  # fmt: skip
        nothing: Any = None
        worker = Worker(number=0, settings=settings, layout=nothing, counts=nothing, patience=Patience())
        sent: list[Any] = []

        async def call(*arguments: Any) -> int:
            sent.append(arguments[-1])
            return 1

        link: Any = SimpleNamespace(call=call)
        await worker.serve(link)
        key_path(tmp_path).unlink()
        await worker.serve(link)
        assert sent[0] == sent[1] is not None

    asyncio.run(test())


# --- settings ---------------------------------------------------------------------------------------------


def test_settings_are_read_from_a_file_and_mistakes_are_named(tmp_path):
    path = tmp_path / "auth.toml"
    path.write_text(
        'users = "u.json"\ntoken_seconds = 60\n[jwt]\nissuer = "i"\naudience = "a"\njwks = "k.json"\n'
        'algorithms = ["ES256"]\nleeway_seconds = 5\nroles_claim = "r"\n[jwt.roles]\nx = ["/scope:s=read"]\n'
    )
    found = load_access_settings(path)
    assert found.users == tmp_path / "u.json"
    assert found.token_s == 60
    assert found.jwt is not None
    assert found.jwt.roles["x"] == (parse_grant("/scope:s=read"),)
    for bad in (
        "x = 1", "users = 1", "token_seconds = 1", "[jwt]\nissuer = 'i'", "[jwt", "[jwt]\nsecret = 's'",
        "[jwt]\nissuer='i'\naudience='a'\njwks='k'\nalgorithms=['HS256']",
        "[jwt]\nissuer='i'\naudience='a'\njwks='k'\n[jwt.roles]\nx='/=read'",
        "[jwt]\nissuer='i'\naudience='a'\njwks='k'\n[jwt.roles]\nx=['/=fly']",
    ):  # fmt: skip
        path.write_text(bad)
        with pytest.raises(InvalidArgumentError):
            load_access_settings(path)
