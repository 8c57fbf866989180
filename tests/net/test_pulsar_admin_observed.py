"""What was seen on a real broker, request by request: bodies as tools send them, and what they get for odd ones."""

from __future__ import annotations

import pytest
from pulsar_admin_world import N, P, World, play

ONE = "/admin/v2/namespaces/my-tenant/none"


@pytest.mark.parametrize(("body", "stored"), [(b"1.5", 1), (b'"30"', 30), (b"null", 0), (b" 7 ", 7)])
def test_observed_namespace_ttl_bodies(body: bytes, stored: int) -> None:
    async def story(w: World) -> None:
        assert (await w.ask("POST", f"{N}/messageTTL", raw=body)).status == 204
        assert await w.ok("GET", f"{N}/messageTTL") == stored

    play(story)


@pytest.mark.parametrize("body", [b"", b"2147483648", b"x", b"true", b"[]", b"\xff"])
def test_observed_namespace_ttl_bodies_refused(body: bytes) -> None:
    async def story(w: World) -> None:
        reason = await w.refused(400, "POST", f"{N}/messageTTL", raw=body)
        assert bool(body) or reason == "The request entity cannot be empty."

    play(story)


def test_observed_topic_ttl_query() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{P}/messageTTL?messageTTL=9")
        await w.refused(404, "POST", f"{P}/messageTTL?messageTTL=abc")
        assert await w.ok("GET", f"{P}/messageTTL") == 9
        assert (await w.ask("POST", f"{P}/messageTTL?messageTTL=")).status == 204
        assert (await w.ask("GET", f"{P}/messageTTL")).status == 204

    play(story, topic=True)


@pytest.mark.parametrize(
    ("body", "stored"),
    [
        (b"{}", (0, 0)),
        (b'{"retentionTimeInMinutes": "10", "retentionSizeInMB": 5.9, "more": 1}', (10, 5)),
        (b'{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}', (-1, -1)),
    ],
)
def test_observed_retention_bodies(body: bytes, stored: tuple[int, int]) -> None:
    async def story(w: World) -> None:
        for level in (N, P):
            assert (await w.ask("POST", f"{level}/retention", raw=body)).status == 204
            found = await w.ok("GET", f"{level}/retention")
            assert (found["retentionTimeInMinutes"], found["retentionSizeInMB"]) == stored

    play(story, topic=True)


@pytest.mark.parametrize("body", [b'{"retentionSizeInMB": 5}', b'{"retentionTimeInMinutes": 5}'])
def test_observed_retention_one_missing_field_is_400(body: bytes) -> None:
    async def story(w: World) -> None:
        assert await w.refused(400, "POST", f"{N}/retention", raw=body) == (
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the limits has a "
            "non-zero value"
        )

    play(story)


@pytest.mark.parametrize("body", [b"null", b""])
def test_observed_retention_without_a_body_removes_that_of_a_namespace_and_leaves_that_of_a_topic(body: bytes) -> None:
    async def story(w: World) -> None:
        kept = {"retentionTimeInMinutes": 1, "retentionSizeInMB": 2}
        for level in (N, P):
            await w.ok("POST", f"{level}/retention", kept)
            assert (await w.ask("POST", f"{level}/retention", raw=body)).status == 204
        assert (await w.ask("GET", f"{N}/retention")).status == 204
        assert await w.ok("GET", f"{P}/retention") == kept

    play(story, topic=True)


def test_observed_retention_as_text_is_415_and_put_is_405() -> None:
    async def story(w: World) -> None:
        answer = await w.ask("POST", f"{N}/retention", {}, content_type="text/plain")
        assert answer.status == 415
        answer = await w.ask("PUT", f"{N}/retention", {})
        assert (answer.status, answer.body) == (405, b"")
        assert (await w.ask("POST", f"{N}/retention", {}, content_type="application/json; charset=utf-8")).status == 204

    play(story)


@pytest.mark.parametrize("level", [N, P])
def test_observed_quota_of_an_unknown_policy_is_400_and_of_an_unknown_type_404(level: str) -> None:
    async def story(w: World) -> None:
        body = {"limitSize": 1, "policy": "no_such"}
        assert await w.refused(400, "POST", f"{level}/backlogQuota", body) == "attribute policy cannot be null"
        for method in ("POST", "DELETE"):
            body = {"limitSize": 1, "policy": "producer_exception"}
            await w.refused(404, method, f"{level}/backlogQuota?backlogQuotaType=x", body)

    play(story, topic=True)


def test_observed_quota_of_a_topic_without_a_body_removes_it() -> None:
    async def story(w: World) -> None:
        await w.ok("POST", f"{P}/backlogQuota", {"limitSize": 9, "policy": "producer_exception"})
        assert (await w.ask("POST", f"{P}/backlogQuota")).status == 204
        assert await w.ok("GET", f"{P}/backlogQuotaMap") == {}

    play(story, topic=True)


def test_observed_unknown_namespace() -> None:
    async def story(w: World) -> None:
        for name in ("retention", "messageTTL", "backlogQuotaMap", "inactiveTopicPolicies", "persistence"):
            assert await w.refused(404, "GET", f"{ONE}/{name}") == "Namespace does not exist"
        assert await w.refused(404, "POST", f"{ONE}/retention", {}) == "Namespace policies does not exist"
        assert await w.refused(404, "DELETE", f"{ONE}/retention") == "Namespace policies does not exist"
        body = {"limitSize": 1, "policy": "producer_exception"}
        assert await w.refused(404, "POST", f"{ONE}/backlogQuota", body) == ""
        assert await w.refused(404, "DELETE", f"{ONE}/backlogQuota") == ""
        assert (await w.ask("POST", f"{ONE}/clearBacklog")).status == 204

    play(story)


def test_observed_odd_operations() -> None:
    async def story(w: World) -> None:
        assert (await w.ask("POST", f"{N}/unsubscribe/none")).status == 204
        await w.ok("PUT", f"{P}/subscription/a", "latest")
        for count in ("0", "-1", "1000"):
            assert (await w.ask("POST", f"{P}/subscription/a/skip/{count}")).status == 204
        assert (await w.ask("POST", f"{P}/subscription/a/skip/abc")).status == 404
        assert (await w.ask("POST", f"{P}/trim")).status in (200, 204)
        await w.ok("PUT", f"{P}x/partitions", 2)
        assert (await w.ask("GET", f"{P}x/lastMessageId")).status == 404
        assert (await w.ask("POST", f"{P}x/partitions", 1)).status == 422
        assert (await w.ask("PUT", f"{P}y/partitions", 0)).status == 406

    play(story, topic=True)


def test_observed_errors_are_json_with_a_reason_and_204_has_no_content_type() -> None:
    async def story(w: World) -> None:
        answer = await w.ask("GET", f"{ONE}/retention")
        assert answer.headers["content-type"] == "application/json"
        assert answer.json == {"reason": "Namespace does not exist"}
        answer = await w.ask("POST", f"{N}/messageTTL", 5)
        assert (answer.status, "content-type" in answer.headers) == (204, False)

    play(story)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/admin/v2/nothing", 404),
        ("GET", "/admin/v2/namespaces/a/b/c/d/e/f", 404),
        ("DELETE", "/admin/v2/clusters", 405),
        ("POST", "/admin/v2/namespaces//x/retention", 404),
        ("GET", "/admin/v2/persistent/my-tenant/my-ns/", 200),
    ],
)
def test_paths_that_there_are_not(method: str, path: str, status: int) -> None:
    async def story(w: World) -> None:
        assert (await w.ask(method, path)).status == status

    play(story)


def test_a_body_that_is_too_large_is_413() -> None:
    async def story(w: World) -> None:
        assert (await w.ask("POST", f"{N}/retention", raw=b" " * (1 << 20) + b"{}")).status == 413

    play(story)


def test_the_routes_serve_over_a_real_port_beside_those_of_pravega() -> None:
    async def story(w: World) -> None:
        import asyncio

        from penstock.net.http.http_server import RestServer
        from penstock.net.http.pulsar.api import pulsar_routes

        async def ask(port: int, head: str, body: bytes = b"") -> tuple[int, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            lines = [f"{head} HTTP/1.1", f"Host: 127.0.0.1:{port}", "Connection: close"]
            if body:
                lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
            writer.write("\r\n".join([*lines, "", ""]).encode() + body)
            async with asyncio.timeout(20):
                answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            top, _, content = answer.partition(b"\r\n\r\n")
            return int(top.split()[1]), content

        routes = pulsar_routes(w.controller, w.store, w.clock)
        server = RestServer(w.controller, w.store, clock=w.clock, port=0, routes=routes)
        async with server:
            port = server.port
            assert await ask(port, "GET /admin/v2/clusters") == (200, b'["standalone"]')
            assert await ask(port, f"POST {N}/messageTTL", b"60") == (204, b"")
            assert await ask(port, f"GET {N}/messageTTL") == (200, b"60")
            assert (await ask(port, f"PUT {P}/subscription/a%2Fb%20c"))[0] == 204
            assert await ask(port, f"GET {P}/subscriptions") == (200, b'["a/b c"]')
            assert (await ask(port, f"PUT {N}/retention"))[0] == 405
            assert (await ask(port, "GET /admin/v2/nothing"))[0] == 404
            assert (await ask(port, "GET /v1/scopes"))[0] == 200

    play(story, topic=True)
