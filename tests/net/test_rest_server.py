"""The HTTP port itself: who may ask, how much, and how slowly."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from contextlib import suppress

from rest_support import Running, exchange, head, play

from penstock.net.http.http_limits import RestLimits

SCOPE = b'{"scopeName":"s"}'


def test_it_answers_to_its_own_names() -> None:
    async def scene(run: Running) -> None:
        for host in ("localhost", "LOCALHOST:9091", "127.0.0.1", "127.0.0.1:80", "[::1]:9091", "store.lan"):
            assert (await run.call("GET", "/ping", headers={"host": host})).status == 200, host

    play(scene, hosts=["Store.LAN"])


def test_a_name_that_resolves_here_is_not_enough() -> None:
    """DNS rebinding: a page's own name, pointed at this machine after the page was loaded."""

    async def scene(run: Running) -> None:
        for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:9091", "", "[::1"):
            answer = await run.call("POST", "/v1/scopes", {"scopeName": "s"}, headers={"host": host})
            assert answer.status == 403, host
        assert not await run.controller.scopes.exists("s")

    play(scene)


def test_a_port_that_may_be_reached_from_elsewhere_takes_any_name() -> None:
    async def scene(run: Running) -> None:
        assert (await run.call("GET", "/ping", headers={"host": "store.example"})).status == 200

    play(scene, hosts=None)


def test_no_header_is_a_fault_of_the_server() -> None:
    names = (
        "host",
        "origin",
        "content-type",
        "penstock-who",
        "penstock-why",
        "accept",
        "connection",
        "expect",
        "range",
    )
    values = (
        "",
        "[",
        "http://[",
        "http://]",
        "http://[::1",
        "http://a:b:c",
        "\xff",
        "%",
        ";",
        "=",
        "a" * 4000,
        "9" * 4000,
    )

    async def scene(run: Running) -> None:
        for name in names:
            for value in values:
                answer = await run.call("POST", "/v1/scopes", {"scopeName": "-"}, headers={name: value})
                assert answer.status < 500, (name, value)

    play(scene)


def test_pages_of_other_origins_are_refused_and_its_own_are_not() -> None:
    async def scene(run: Running) -> None:
        own = f"localhost:{run.server.port}"
        for origin, status in (
            ("http://[", 403),
            (f"http://{own}", 201),
            ("http://evil.example", 403),
            ("null", 403),
            (f"http://{own}.evil.example", 403),
            ("http://localhost:1", 403),
        ):
            answer = await run.call(
                "POST", "/v1/scopes", {"scopeName": f"s{status}"}, headers={"host": own, "origin": origin}
            )
            assert answer.status == status, origin
        assert not await run.controller.scopes.exists("s403")

    play(scene)


def test_bodies_are_json_which_no_form_can_send() -> None:
    async def scene(run: Running) -> None:
        for content_type, status in (
            ("text/plain", 415),
            ("application/x-www-form-urlencoded", 415),
            ("multipart/form-data; boundary=x", 415),
            ("", 415),
            ("application/json", 201),
            ("application/json; charset=utf-8", 409),
            ("application/vnd.x+json", 409),
        ):
            answer = await run.call("POST", "/v1/scopes", data=SCOPE, headers={"content-type": content_type})
            assert answer.status == status, content_type
            assert await run.controller.scopes.exists("s") == (status != 415)

    play(scene)


def test_a_body_that_is_too_large_is_refused_and_its_sender_hears_why() -> None:
    async def scene(run: Running) -> None:
        answer = await run.call("POST", "/v1/scopes", data=b" " * (4 << 20))
        assert answer.status == 413
        assert answer.json["fields"] == {"limit_bytes": 1 << 20}
        # Padding up to the limit is legal JSON.
        assert (await run.call("POST", "/v1/scopes", data=SCOPE.ljust(1 << 20))).status == 201

    play(scene)


def test_a_body_is_counted_as_it_comes_whatever_its_length_is_said_to_be() -> None:
    async def scene(run: Running) -> None:
        begin = head("POST", "/v1/scopes", "content-type: application/json", "transfer-encoding: chunked")
        chunk = b"%x\r\n" % 5000 + b" " * 5000 + b"\r\n"
        got = await exchange(run, begin + chunk * 3 + b"0\r\n\r\n" + b"x")
        assert got.startswith(b"HTTP/1.1 413")
        # More than is read and forgotten: answered at once, and closed.
        huge = head("POST", "/v1/scopes", "content-type: application/json", "content-length: 99999999999")
        got = await exchange(run, huge)
        assert got.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in got

    play(scene, limits=RestLimits(body_bytes=10_000, drained_bytes=20_000, idle_s=1))


def test_a_refused_body_is_freed_with_its_answer() -> None:
    """An error that is kept in a name holds the frames it passed, and they hold the body until the next collection."""

    async def scene(run: Running) -> None:
        begin = head("POST", "/v1/scopes", "content-type: application/json", "transfer-encoding: chunked")
        sent = begin + (b"%x\r\n" % 50_000 + b" " * 50_000 + b"\r\n") * 22 + b"0\r\n\r\n"
        await exchange(run, sent)
        tracemalloc.start()
        gc.disable()
        try:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(5):
                assert (await exchange(run, sent)).startswith(b"HTTP/1.1 413")
            assert tracemalloc.get_traced_memory()[0] - before < 500_000
        finally:
            gc.enable()
            tracemalloc.stop()

    play(scene, limits=RestLimits(idle_s=1))


def test_a_body_of_tiny_chunks_is_cut_off_and_one_of_small_chunks_is_not() -> None:
    async def scene(run: Running) -> None:
        begin = head("POST", "/v1/scopes", "content-type: application/json", "transfer-encoding: chunked")
        end = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SCOPE), SCOPE)
        assert await exchange(run, begin + b"1\r\n \r\n" * 100_000 + end) == b""
        for size in (100, 4000):
            chunks = (b"%x\r\n" % size + b" " * size + b"\r\n") * (900_000 // size)
            assert (await exchange(run, begin + chunks + end)).startswith((b"HTTP/1.1 201", b"HTTP/1.1 409"))

    play(scene, limits=RestLimits(idle_s=1))


def test_many_bodies_that_stop_half_way_take_no_more_than_their_share_and_keep_no_question_out() -> None:
    async def scene(run: Running) -> None:
        begin = head("POST", "/v1/scopes", "content-type: application/json", "content-length: 1000000")
        stuck = []
        try:
            for _ in range(8):
                reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
                stuck.append((reader, writer))
                writer.write(begin + b" " * 300_000)
            bodies = run.server._guard._bodies
            while bodies.held_bytes < 600_000:
                await asyncio.sleep(0.001)
            assert (await run.call("POST", "/v1/scopes", {"scopeName": "s"})).status == 201
            said = sorted([await reader.readline() for reader, _ in stuck])
            assert set(said) == {b"HTTP/1.1 408 Request Timeout\r\n", b"HTTP/1.1 503 Service Unavailable\r\n"}
            # Of 2.4 MB that were sent less than one was kept: most hear that they may try again.
            assert said.count(b"HTTP/1.1 503 Service Unavailable\r\n") >= 5
            assert bodies.held_bytes == 0
        finally:
            for _, writer in stuck:
                writer.close()
        large = SCOPE.replace(b"s", b"t").ljust(900_000).replace(b"tcopeName", b"scopeName")
        assert (await run.call("POST", "/v1/scopes", data=large)).status == 201

    play(scene, limits=RestLimits(bodies_bytes=1_000_000, body_s=1, idle_s=1))


def test_a_body_that_nobody_reads_does_not_keep_the_connection() -> None:
    async def scene(run: Running) -> None:
        got = await exchange(
            run, head("POST", "/nothing", "content-type: application/json", "content-length: 5") + b"x"
        )
        assert got.startswith(b"HTTP/1.1 404")
        assert b"connection: close" in got

    play(scene, limits=RestLimits(body_s=0.2))


def test_a_head_that_does_not_come_ends_the_connection() -> None:
    async def scene(run: Running) -> None:
        pieces = (b"", b"GET /ping", b"GET /ping HTTP/1.1\r\nhost: localhost\r\nx:")
        assert await asyncio.gather(*(exchange(run, sent) for sent in pieces)) == [b"", b"", b""]

    play(scene, limits=RestLimits(head_s=0.2))


def test_a_trickle_does_not_wind_the_clock_up_again() -> None:
    async def scene(run: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
        writer.write(b"GET /ping HTTP/1.1\r\n")
        ended = asyncio.create_task(reader.read())
        sent = 0
        while not ended.done():
            writer.write(b"x: y\r\n")
            sent += 1
            await asyncio.wait({ended}, timeout=0.05)
            assert sent < 200
        assert await ended == b""
        writer.close()

    play(scene, limits=RestLimits(head_s=0.3))


def test_a_second_request_that_trickles_ends_the_connection_too() -> None:
    async def scene(run: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
        writer.write(head("GET", "/ping"))
        first = await reader.readuntil(b"\r\n\r\n")
        assert first.startswith(b"HTTP/1.1 200")
        writer.write(b"GET /ping HTTP/1.1\r\n")
        assert await reader.read() == b""
        writer.close()

    play(scene, limits=RestLimits(head_s=0.3))


def test_a_body_that_does_not_come_is_answered_late_and_closed() -> None:
    async def scene(run: Running) -> None:
        lines = ("content-type: application/json", "content-length: 100")
        got = await exchange(run, head("POST", "/v1/scopes", *lines) + b"{")
        assert got.startswith(b"HTTP/1.1 408")
        assert b"connection: close" in got

    play(scene, limits=RestLimits(body_s=0.2))


def test_a_peer_that_never_reads_is_cut_off() -> None:
    async def scene(run: Running) -> None:
        received = socket.socket()
        received.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        received.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(received, ("127.0.0.1", run.server.port))
        with received:
            # A hundred megabytes of answers: far more than the buffers on the way can hold.
            await loop.sock_sendall(received, head("GET", "/openapi.json") * 2000)
            async with asyncio.timeout(15):
                while not run.server.connections:
                    await asyncio.sleep(0.02)
                while run.server.connections:
                    await asyncio.sleep(0.02)
                got = 0
                with suppress(ConnectionError):
                    while chunk := await loop.sock_recv(received, 1 << 16):
                        got += len(chunk)
        assert got < 50 << 20

    play(scene, limits=RestLimits(reply_s=0.5))


def test_headers_beyond_their_limit_are_refused() -> None:
    async def scene(run: Running) -> None:
        # At once, and in pieces that the parser waits for.
        for size, status in ((20_000, b"431"), (1_000_000, b"431")):
            got = await exchange(run, head("GET", "/ping", "x: " + "y" * size))
            assert got.startswith(b"HTTP/1.1 " + status) or (size == 1_000_000 and got == b"")

    play(scene, limits=RestLimits(idle_s=1))


NOT_HTTP = [
    b"\x00\x01\x02\r\n\r\n",
    b"GET /ping HTTP/9.9\r\n\r\n",
    b"GET /ping HTTP/1.1\r\n\r\n",
    b"POST /v1/scopes HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/scopes HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


def test_what_is_not_http_is_refused_and_closed() -> None:
    async def scene(run: Running) -> None:
        for sent, got in zip(NOT_HTTP, await asyncio.gather(*(exchange(run, sent) for sent in NOT_HTTP)), strict=True):
            assert got == b"" or got.startswith(b"HTTP/1.1 4"), sent
        assert (await run.call("GET", "/ping")).status == 200

    play(scene, limits=RestLimits(idle_s=1))


def test_methods_that_a_path_lacks_are_answered_with_those_it_has() -> None:
    async def scene(run: Running) -> None:
        for method, path, allowed in (
            ("DELETE", "/v1/scopes", {"GET", "HEAD", "POST"}),
            ("POST", "/ping", {"GET", "HEAD"}),
            ("OPTIONS", "/v1/scopes", {"GET", "HEAD", "POST"}),
        ):
            answer = await run.call(method, path)
            assert answer.status == 405
            assert set(answer.headers["allow"].split(", ")) == allowed
            assert answer.json["message"] == "method not allowed"
        assert (await run.call("HEAD", "/v1/scopes")).data == b""

    play(scene)


def test_a_slash_at_the_end_makes_no_difference() -> None:
    async def scene(run: Running) -> None:
        assert (await run.call("POST", "/v1/scopes/", {"scopeName": "s"})).status == 201
        assert (await run.call("GET", "/v1/scopes/s/")).status == 200

    play(scene)


def test_answers_are_neither_kept_nor_guessed_at_by_browsers() -> None:
    async def scene(run: Running) -> None:
        answer = await run.call("GET", "/v1/scopes")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers
        page = await run.call("GET", "/docs")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert b"http://" not in page.data
        assert b"https://" not in page.data

    play(scene)


def test_pulsars_admin_interface_is_on_the_same_port_and_under_the_same_guard() -> None:
    async def scene(run: Running) -> None:
        reply = await exchange(run, head("GET", "/admin/v2/clusters", "connection: close"))
        assert reply.startswith(b"HTTP/1.1 200")
        assert isinstance(json.loads(reply.partition(b"\r\n\r\n")[2]), list)
        reply = await exchange(
            run, head("GET", "/admin/v2/clusters", "origin: http://evil.example", "connection: close")
        )
        assert reply.startswith(b"HTTP/1.1 403")

    play(scene)


def test_one_connection_serves_many_requests() -> None:
    async def scene(run: Running) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
        for _ in range(3):
            writer.write(head("GET", "/v1/scopes"))
            answered = await reader.readuntil(b"\r\n\r\n")
            assert answered.startswith(b"HTTP/1.1 200")
            length = int(answered.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            assert "scopes" in json.loads(await reader.readexactly(length))
        writer.close()

    play(scene)


def test_who_connects_and_says_nothing_gives_way_to_who_asks() -> None:
    async def scene(run: Running) -> None:
        silent = [await asyncio.open_connection("127.0.0.1", run.server.port) for _ in range(2)]
        answer = await exchange(run, head("GET", "/ping", "connection: close"))
        assert answer.startswith(b"HTTP/1.1 200")
        assert await silent[0][0].read() == b""
        for _, writer in silent:
            writer.close()

    play(scene, limits=RestLimits(connections=2))


def test_who_sends_a_body_that_does_not_end_gives_way_to_who_asks() -> None:
    async def scene(run: Running) -> None:
        begin = head("POST", "/v1/scopes", "content-type: application/json", "content-length: 1000")
        stuck = []
        for _ in range(4):
            stuck.append(await asyncio.open_connection("127.0.0.1", run.server.port))
            stuck[-1][1].write(begin + b"{")
        for _ in range(5):
            assert (await run.get("/v1/scopes")).status == 200
        for _, writer in stuck:
            writer.close()

    play(scene, limits=RestLimits(connections=2, body_s=3600))


def test_connections_beyond_the_bound_are_refused_and_then_closed() -> None:
    async def scene(run: Running) -> None:
        held = [await asyncio.open_connection("127.0.0.1", run.server.port) for _ in range(2)]
        for reader, writer in held:
            writer.write(head("GET", "/ping"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        assert (await exchange(run, head("GET", "/ping"))).startswith(b"HTTP/1.1 503")
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", run.server.port)
            writer.write(head("GET", "/ping", "x-filler: 1"))
            assert (await reader.readline()).startswith(b"HTTP/1.1 503")
            held.append((reader, writer))
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(10):
            while run.server.connections:
                await asyncio.sleep(0.02)
        assert (await run.call("GET", "/ping")).status == 200

    play(scene, limits=RestLimits(connections=2))
