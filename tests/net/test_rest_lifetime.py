"""How the HTTP port starts and ends, and what it says of errors that are its own."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket

import pytest
from rest_support import Running, exchange, head, play
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from penstock.model.errors import AddressInUseError, InternalError, InvalidArgumentError
from penstock.net.http.http_limits import RestLimits
from penstock.net.http.http_server import RestServer
from penstock.storage.machine.clock import RealClock


class Slow:
    """A route that takes as long as the test wants."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go_on = asyncio.Event()
        self.cancelled = False

    async def __call__(self, request: Request) -> Response:
        self.entered.set()
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return PlainTextResponse("done")


def routed(run: Running, *routes: Route, limits: RestLimits | None = None) -> RestServer:
    return RestServer(
        run.controller,
        run.store,
        clock=RealClock(),
        port=0,
        routes=routes,
        limits=limits or RestLimits(),
    )


def through(run: Running, server: RestServer) -> Running:
    return Running(store=run.store, controller=run.controller, server=server)


async def raise_unexpectedly(_request: Request) -> Response:
    raise ZeroDivisionError("a secret of the server")


async def raise_an_invariant(_request: Request) -> Response:
    raise InternalError("an invariant is broken", which=7)


async def raise_its_own_timeout(_request: Request) -> Response:
    raise TimeoutError


def test_errors_of_ours_are_logged_and_told_without_their_secrets(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(run: Running) -> None:
        routes = (Route("/a", raise_unexpectedly), Route("/b", raise_an_invariant), Route("/c", raise_its_own_timeout))
        async with routed(run, *routes) as server:
            got = await exchange(through(run, server), head("GET", "/a", "connection: close"))
            assert got.startswith(b"HTTP/1.1 500")
            assert b"secret" not in got
            assert b"InternalError" in got
            got = await exchange(through(run, server), head("GET", "/b", "connection: close"))
            assert b'"which":7' in got
            assert got.startswith(b"HTTP/1.1 500")
            got = await exchange(through(run, server), head("GET", "/c", "connection: close"))
            assert got.startswith(b"HTTP/1.1 500")

    with caplog.at_level(logging.INFO):
        play(scene)
    failed = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert {record.name for record in failed} == {"penstock.net.http.guard"}
    assert len(failed) == 3
    assert all(record.exc_info for record in failed)


def test_a_request_that_takes_too_long_is_answered_and_stopped() -> None:
    async def scene(run: Running) -> None:
        slow = Slow()
        async with routed(run, Route("/slow", slow.__call__), limits=RestLimits(request_s=0.2)) as server:
            got = await exchange(through(run, server), head("GET", "/slow", "connection: close"))
            assert got.startswith(b"HTTP/1.1 504")
            assert b"DeadlineExceededError" in got
            assert slow.cancelled

    play(scene)


def test_closing_waits_for_requests_in_flight() -> None:
    async def scene(run: Running) -> None:
        slow = Slow()
        async with routed(run, Route("/slow", slow.__call__)) as server:
            answer = asyncio.create_task(exchange(through(run, server), head("GET", "/slow")))
            await slow.entered.wait()
            asyncio.get_running_loop().call_later(0.3, slow.go_on.set)
        assert (await answer).endswith(b"done")

    play(scene)


def test_closing_does_not_wait_for_ever() -> None:
    async def scene(run: Running) -> None:
        slow = Slow()
        async with routed(run, Route("/slow", slow.__call__), limits=RestLimits(drain_s=1)) as server:
            idle = await asyncio.open_connection("127.0.0.1", server.port)
            answer = asyncio.create_task(exchange(through(run, server), head("GET", "/slow")))
            await slow.entered.wait()
            started = asyncio.get_running_loop().time()
        assert asyncio.get_running_loop().time() - started < 5
        assert slow.cancelled
        await answer
        assert await idle[0].read() == b""
        idle[1].close()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", server.port)

    play(scene)


def test_a_taken_address_is_named() -> None:
    async def scene(run: Running) -> None:
        for host, port in (("127.0.0.1", run.server.port), ("192.0.2.1", 0), ("no.such.host.invalid", 0)):
            with pytest.raises(AddressInUseError) as caught:
                async with RestServer(run.controller, run.store, clock=RealClock(), host=host, port=port):
                    pass
            assert caught.value.fields == {"host": host, "port": port}

    play(scene)


def test_a_host_of_two_addresses_is_served_on_both() -> None:
    async def scene(run: Running) -> None:
        async with RestServer(run.controller, run.store, clock=RealClock(), host="localhost", port=0) as server:
            found = await asyncio.get_running_loop().getaddrinfo("localhost", server.port, type=socket.SOCK_STREAM)
            for family, _, _, _, address in found:
                _, writer = await asyncio.open_connection(address[0], server.port, family=family)
                writer.close()

    play(scene)


def test_the_port_is_known_only_while_it_is_bound() -> None:
    async def scene(run: Running) -> None:
        with pytest.raises(InvalidArgumentError):
            RestServer(run.controller, run.store, clock=RealClock(), port=1 << 16)
        with pytest.raises(InternalError):
            _ = RestServer(run.controller, run.store, clock=RealClock(), port=0).port
        assert run.server.port > 0

    play(scene)


def test_signals_stay_with_the_process() -> None:
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    async def scene(run: Running) -> None:
        before = handlers()
        async with routed(run):
            assert handlers() == before
        assert handlers() == before

    play(scene)


def test_starts_and_refused_calls_write_nothing_else_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(run: Running) -> None:
        await run.call("GET", "/nothing")

    with caplog.at_level(logging.INFO):
        play(scene)
    ours = {record.message for record in caplog.records if record.name.startswith(("penstock.net", "uvicorn"))}
    assert ours == {"HTTP server listens", "HTTP server closed"}


def test_limits_are_positive() -> None:
    with pytest.raises(InvalidArgumentError):
        RestLimits(body_bytes=0)
