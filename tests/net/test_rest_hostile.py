"""Whatever bytes a peer sends to the HTTP port: never a traceback, the connection is closed, and the server goes on."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from rest_support import Running, exchange, head, play

from penstock.net.http.http_limits import RestLimits

HEAD_BYTES = 16 << 10
CHUNKED = "transfer-encoding: chunked"
PIECES = [
    head("GET", "/ping"),
    head("GET", "/v1/health", "connection: keep-alive"),
    head("POST", "/v1/scopes", CHUNKED),
    head("POST", "/v1/scopes", "content-length: 9", "expect: 100-continue"),
    head("CONNECT", "localhost:1"),
    head("GET", "/ping", "connection: upgrade", "upgrade: websocket"),
    head("OPTIONS", "*"),
    b"GET /ping HTTP/1.1\r\nhost: localhost\r\n",
    b"x: " + b"y" * 6000 + b"\r\n",
    b" folded\r\n",
    b"\r\n\r\n",
    b"0\r\n\r\n",
    b"5\r\nhello\r\n",
    b"zz\r\n",
    b"ffffffffffffffffffffff\r\n",
    b"content-length: 1\r\ncontent-length: 2\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00" * 5000,
    b"GET " + b"/\xff\x80" * 2000,
    b"HTTP/1.1 200 OK\r\n\r\n",
]


def hostile(chance: random.Random) -> bytes:
    """Some pieces in a row, with some of their bytes changed, missing or added."""
    sent = bytearray(b"".join(chance.choices(PIECES, k=chance.randrange(1, 6))))
    for _ in range(chance.choice([0, 0, 1, 3])):
        place = chance.randrange(len(sent))
        sent[place : place + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    return bytes(sent)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


def test_no_bytes_of_a_peer_cause_a_traceback_or_stop_the_server(caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(1)

    async def scene(run: Running) -> None:
        for _ in range(2):
            sent = [hostile(chance) for _ in range(150)]
            # It returns once the server has closed the connection.
            await asyncio.gather(*(exchange(run, item, end=chance.random() < 0.3) for item in sent))
            assert failures(caplog) == []
        assert (await run.call("GET", "/ping")).status == 200
        async with asyncio.timeout(5):
            while run.server.connections:
                await asyncio.sleep(0.01)

    play(scene, limits=RestLimits(idle_s=1, head_s=0.3, body_s=0.3))
    assert failures(caplog) == []


@pytest.mark.parametrize("size_bytes", [HEAD_BYTES + 500, 20_000, 22_000, 40_000])
def test_a_head_that_is_too_large_is_answered_with_431_and_logged_in_one_line(
    size_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(run: Running) -> None:
        for _ in range(5):
            # Without its last line: the parser waits for more of it.
            got = await exchange(run, head("GET", "/ping", "x: " + "y" * size_bytes)[:-2])
            assert got.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n"), got
            assert b'"not a valid HTTP request"' in got

    play(scene)
    assert failures(caplog) == []
    (line,) = [record for record in caplog.records if record.message == "HTTP request is malformed"]
    assert (line.levelno, line.peer, line.status) == (logging.WARNING, "127.0.0.1", 431)


@pytest.mark.parametrize("body", [b"zz\r\n" * 3000, b"5\r\nhelloxx" * 2000])
def test_a_malformed_body_is_answered_once(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(run: Running) -> None:
        got = await exchange(run, head("POST", "/v1/scopes", CHUNKED) + body)
        assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert got.count(b"HTTP/1.1 ") == 1

    play(scene)
    assert failures(caplog) == []


SECRET = b"QWxhZGRpbjpvcGVuIHNlc2FtZQ"


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nAuthorization : Basic %s\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic %s\0\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nx: 1\rAuthorization: Basic %s\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nAuthorization Basic %s\r\n\r\n",
        b"Authorization: Basic %s\r\n\r\n",
        b"GET /ping?token=%s HTTP/9\0\r\n\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{%s\r\n\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s\r\n\r\n",
        b"POST /v1/scopes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: %s\r\n\r\n",
    ],
)
def test_a_malformed_request_is_not_quoted_in_the_log_or_the_answer(
    sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(run: Running) -> None:
        got = await exchange(run, sent % SECRET)
        assert got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), got
        # An excerpt may begin or end anywhere in the secret.
        assert SECRET[:8] not in got
        assert SECRET[-8:] not in got

    play(scene)
    (line,) = [record for record in caplog.records if record.message == "HTTP request is malformed"]
    assert line.reason  # It still has the kind of the error.
    assert not any(SECRET[:8].decode() in str(vars(record)) for record in caplog.records)


@pytest.mark.parametrize("length_bytes", [0, 5, 60])
def test_a_request_with_a_length_and_chunks_is_refused_with_all_that_follows(length_bytes: int) -> None:
    async def scene(run: Running) -> None:
        both = head("POST", "/v1/scopes", CHUNKED, f"content-length: {length_bytes}")
        got = await exchange(run, both + b"0\r\n\r\n" + head("GET", "/ping"))
        assert got.startswith(b"HTTP/1.1 400 Bad Request\r\n"), got
        assert got.count(b"HTTP/1.1 ") == 1
        assert b"connection: close" in got.lower()

    play(scene)
