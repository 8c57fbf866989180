"""Addresses, and connections to a host by name, without libuv's threads."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from functools import partial
from typing import Any

from penstock.model.errors import InvalidArgumentError, NotConnectedError, UnsupportedError
from penstock.model.redaction import redacted_address

DEFAULT_PORT = 9090
REFUSED_S = 1.5
"""How long the first connection of a session is retried if it is refused: the server may still be starting."""

_PAUSE_S = 0.05
_PLAIN_SCHEMES = ("tcp", "penstock", "pravega")
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z]+)://)?(?P<host>\[[0-9a-fA-F:.]+\]|[0-9A-Za-z._-]+)(?::(?P<port>\d{1,5}))?/?"
)


def parse_address(address: str) -> str:
    """Parse ``host:port`` or ``host`` (port 9090), with or without ``tcp://`` or ``penstock://`` in front, to ``host:port``.

    Raises: InvalidArgumentError; UnsupportedError for a scheme that requires encryption.
    """
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or int(match["port"] or DEFAULT_PORT) > 65535:
        raise InvalidArgumentError(
            "the address of a controller must be HOST:PORT", address=repr(redacted_address(address)[:120])
        )
    if match["scheme"] not in (None, *_PLAIN_SCHEMES):
        raise UnsupportedError("connections are not encrypted here; use tcp://", address=address)
    return f"{match['host']}:{match['port'] or DEFAULT_PORT}"


async def check_listens(address: str, *, wait_s: float = REFUSED_S) -> None:
    """Return when a server listens at a controller's address, or if this cannot be determined.

    For the first connection of a session; later connections wait for a server that restarts. Raises NotConnectedError if
    connections are refused for ``wait_s``; InvalidArgumentError and UnsupportedError as ``parse_address``.
    """
    loop = asyncio.get_running_loop()
    target = parse_address(address)
    host, _, port = target.rpartition(":")
    give_up_at = loop.time() + wait_s
    while True:
        try:
            async with asyncio.timeout(max(_PAUSE_S, wait_s)):
                (await connected_socket(host.strip("[]"), int(port))).close()
        except ConnectionRefusedError as error:
            if loop.time() + _PAUSE_S > give_up_at:
                raise NotConnectedError(
                    "connection refused: nothing listens at this address; check the host, the port, and that"
                    " `penstock standalone` runs there",
                    address=target,
                    waited_s=wait_s,
                ) from error
        except (OSError, TimeoutError):
            return  # An unknown name or a lost route may be temporary. If not, the next call reports it.
        else:
            return
        await asyncio.sleep(_PAUSE_S)


def looks_up_in_threads(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop would use threads of libuv to connect.

    A process waits for these threads when it ends. A forked child does not have them, so it crashes there.
    """
    return type(loop).__module__.partition(".")[0] == "uvloop"


async def connected_socket(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket. Raises OSError: the error of the last address that was tried."""
    loop = asyncio.get_running_loop()
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = look_up(flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await loop.run_in_executor(None, look_up)
    failure: OSError = OSError("host has no address")
    for family, kind, protocol, _, address in found:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await _connect(loop, connection, address)
        except OSError as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


async def _connect(loop: asyncio.AbstractEventLoop, connection: socket.socket, address: Any) -> None:
    # uvloop's own ``sock_connect`` resolves even a numeric address in a thread.
    try:
        connection.connect(address)
    except BlockingIOError:
        connected: asyncio.Future[None] = loop.create_future()
        loop.add_writer(connection, _set, connected)
        try:
            await connected
        finally:
            loop.remove_writer(connection)
        code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code)) from None


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)
