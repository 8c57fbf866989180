"""A proxy before an S3 server that does to single requests what networks and busy servers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_BODY = b"<Error><Code>%s</Code><Message>on purpose</Message></Error>"


def answer(status: str, code: str) -> bytes:
    """An error as S3 words it."""
    body = _BODY % code.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass(frozen=True)
class Fault:
    """What happens to a request.

    "flip sent" changes a bit of its body on the way. "answer" with ``data``, "drop" and "hold" (no answer until the proxy ends) happen before the server sees it; "lose answer", "replace" (the answer by ``data``), "cut
    body", "stall" (inside the body, until the proxy ends) and "flip" (a bit of the body) after.
    """

    kind: str
    data: bytes = b""


@dataclass
class FaultProxy:
    """``decide`` is asked for each request, by verb and path, and tells what happens to it; None lets it pass."""

    endpoint: str = ""
    decide: Callable[[str, str], Fault | None] = lambda verb, path: None
    seen: list[tuple[str, str]] = field(default_factory=list)
    upstream: tuple[str, int] = ("127.0.0.1", 0)
    held: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while request := await _message(reader):
                    verb, path = request[0].split(b" ", 2)[:2]
                    self.seen.append((verb.decode(), path.decode()))
                    fault = self.decide(verb.decode(), path.decode())
                    if not await self._answer(fault or Fault("pass"), b"".join(request), writer, verb == b"HEAD"):
                        break
        finally:
            writer.transport.abort()

    async def _answer(self, fault: Fault, request: bytes, writer: asyncio.StreamWriter, head_only: bool) -> bool:
        """Returns whether the connection goes on."""
        if fault.kind == "answer":
            writer.write(fault.data)
            await writer.drain()
            return True
        if fault.kind == "drop":
            return False
        if fault.kind == "hold":
            await self.held.wait()
            return False
        if fault.kind == "flip sent":
            request = request[:-1] + bytes((request[-1] ^ 1,))
        head, body = await self._forward(request, head_only)
        if fault.kind == "lose answer":
            return False
        if fault.kind == "cut body":
            writer.write(head + body[: len(body) // 2])
            await writer.drain()
            return False
        if fault.kind == "stall":
            writer.write(head + body[: len(body) // 2])
            await writer.drain()
            await self.held.wait()
            return False
        if fault.kind == "flip":
            body = bytes((body[0] ^ 1,)) + body[1:]
        if fault.kind == "replace":
            writer.write(fault.data)
        else:
            writer.write(head + body)
        await writer.drain()
        return True

    async def _forward(self, request: bytes, head_only: bool) -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection(*self.upstream)
        try:
            writer.write(request)
            await writer.drain()
            found = await _message(reader, head_only=head_only)
            assert found is not None
            return found[0], found[1]
        finally:
            writer.close()


@asynccontextmanager
async def fault_proxy(endpoint: str) -> AsyncIterator[FaultProxy]:
    """A proxy before the server at ``endpoint``, on a port of its own."""
    proxy = FaultProxy()
    parts = urlsplit(endpoint)
    proxy.upstream = (parts.hostname or "", parts.port or 0)
    open_now: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now[task] = writer
        try:
            await proxy.serve(reader, writer)
        finally:
            del open_now[task]

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    proxy.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        proxy.held.set()
        tasks = list(open_now)
        for writer in open_now.values():
            writer.transport.abort()  # its handler meets the end of the connection
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
        # An aborted connection is closed in the next pass.
        await asyncio.sleep(0)


async def _message(reader: asyncio.StreamReader, *, head_only: bool = False) -> tuple[bytes, bytes] | None:
    """Head and body of a request or an answer; None at the end of the connection."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length, chunked = 0, False
    for line in head.lower().split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name == b"content-length":
            length = int(value)
        chunked |= name == b"transfer-encoding" and b"chunked" in value
    if head_only or head.startswith((b"HTTP/1.1 204", b"HTTP/1.1 100")):
        return head, b""
    if not chunked:
        return head, await reader.readexactly(length)
    body = b""
    while True:
        size = await reader.readuntil(b"\r\n")
        part = await reader.readexactly(int(size, 16) + 2)
        body += size + part
        if int(size, 16) == 0:
            return head, body
