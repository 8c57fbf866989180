"""Addresses, and connections to a host by name, without libuv's threads."""

from __future__ import annotations

import os
import re
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.model.errors import InvalidArgumentError
from penstock.model.redaction import redacted_address

if TYPE_CHECKING:
    import asyncio

DEFAULT_PORT = 9090

_PLAIN_SCHEMES = ("tcp", "penstock", "pravega")
_TLS_SCHEMES = ("tls", "ssl", "tcps", "pravegas", "pravega+tls", "penstock+tls")
_ADDRESS = re.compile(
    r"(?:(?P<scheme>[a-z+]+)://)?(?P<host>\[[0-9a-fA-F:.]+\]|[0-9A-Za-z._-]+)(?::(?P<port>\d{1,5}))?/?"
)


def parse_address(address: str) -> str:
    """Parse ``host:port`` or ``host`` (port 9090), with or without a scheme in front, to ``host:port``.

    Raises InvalidArgumentError.
    """
    match = _parsed(address)
    return f"{match['host']}:{match['port'] or DEFAULT_PORT}"


def parse_addresses(addresses: str) -> tuple[str, ...]:
    """Parse addresses separated by commas, each as ``parse_address``: the controllers of one cluster. Raises
    InvalidArgumentError, also if only some ask for TLS."""
    found = addresses.split(",")
    if len({bool(tls_of(one)) for one in found}) > 1:
        raise InvalidArgumentError(
            "either all controllers have TLS or none: write the same scheme in front of each",
            address=",".join(redacted_address(one)[:120] for one in found),
        )
    return tuple(map(parse_address, found))


def tls_of(address: str) -> bool | None:
    """Whether the scheme of the address asks for TLS; None if it has no scheme. Raises InvalidArgumentError."""
    scheme = _parsed(address)["scheme"]
    return None if scheme is None else scheme in _TLS_SCHEMES


def host_of(address: str) -> str:
    """The host of an address, without brackets. Raises InvalidArgumentError."""
    return str(_parsed(address)["host"]).strip("[]")


def is_host(host: str) -> bool:
    """Whether the text can be the name or the numeric address of a host."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return host != "" and "\0" not in host


def is_local(host: str) -> bool:
    """Whether the host is this machine, by its name alone."""
    return host == "localhost" or host == "::1" or (host.startswith("127.") and host.replace(".", "").isdecimal())


def _parsed(address: str) -> re.Match[str]:
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or int(match["port"] or DEFAULT_PORT) > 65535:
        raise InvalidArgumentError(
            "the address of a controller must be HOST:PORT", address=repr(redacted_address(address)[:120])
        )
    if match["scheme"] not in (None, *_PLAIN_SCHEMES, *_TLS_SCHEMES):
        raise InvalidArgumentError(
            "an address begins with tcp:// for plain connections or tls:// for encrypted ones",
            address=redacted_address(address)[:120],
        )
    return match


def looks_up_in_threads(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the loop would use threads of libuv to connect.

    A process waits for these threads when it ends. A forked child does not have them, so it crashes there.
    """
    return type(loop).__module__.partition(".")[0] == "uvloop"


async def connected_socket(host: str, port: int) -> socket.socket:
    """A connected, non-blocking socket. Raises OSError: the error of the last address that was tried, or the host can be no
    name of DNS."""
    import asyncio  # not above: settings parse addresses, and `penstock --help` must start fast

    loop = asyncio.get_running_loop()
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    if not is_host(host):
        # ``getaddrinfo`` raises UnicodeError for it, which callers that retry after an OSError do not expect.
        raise OSError("not the name of a host: a part of it is empty or longer than 63 characters")
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
