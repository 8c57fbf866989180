"""Connections to a host by its name, without the threads of libuv."""

from __future__ import annotations

import asyncio
import os
import socket
from functools import partial
from typing import Any


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
