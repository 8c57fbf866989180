"""Listening sockets."""

from __future__ import annotations

import asyncio
import socket

from penstock.model.errors import AddressInUseError


async def listen_on(
    host: str, port: int, *, what: str, backlog: int = 1, receive_bytes: int | None = None
) -> list[socket.socket]:
    """A listening socket for every address that the host name resolves to, all on one port; 0 picks a free port.

    The caller closes them. ``what`` names the address in the error. ``receive_bytes``: the kernel's receive buffer of
    each accepted connection; None: the system's default. Raises AddressInUseError; then none is left open.
    """
    loop = asyncio.get_running_loop()
    bound: list[socket.socket] = []
    chosen = port
    try:
        found = await loop.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(found):
            item = socket.socket(family, socket.SOCK_STREAM)
            bound.append(item)
            item.setblocking(False)
            item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if receive_bytes is not None:
                item.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            if family == socket.AF_INET6:
                item.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            item.bind((address[0], chosen, *address[2:]))
            item.listen(backlog)
            chosen = int(item.getsockname()[1])
    except OSError as error:
        for item in bound:
            item.close()
        raise AddressInUseError(
            f"the {what} address is taken by another process, or is not one of this host; choose another port",
            host=host,
            port=port,
        ) from error
    return bound
