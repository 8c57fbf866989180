"""A network in memory: byte streams that are split at random, delayed, silently interrupted, or reset.

Bytes of one direction arrive in order. Addresses are (host, port); any host name works.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any

_HIGH_WATER = 64 * 1024  # bytes on their way before the writer pauses, as in asyncio


class SimNetwork:
    """All listeners and connections of one simulation.

    ``latency_s`` is the mean of one delivery. ``partitioned``: hosts whose bytes do not arrive now. As with TCP, they
    arrive after the partition ends.
    """

    def __init__(self, loop: Any, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.latency_s = 0.0002
        self.partitioned: dict[str, None] = {}
        self._listeners: dict[int, tuple[Callable[[], Any], SimServer, Context]] = {}
        self._transports: dict[SimTransport, None] = {}
        self._next_port = 20_000

    def listen(self, factory: Callable[[], Any], host: str, port: int) -> SimServer:
        """Raises OSError if the port is in use."""
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if port in self._listeners:
            raise OSError(98, "address already in use")
        server = SimServer(self, host, port)
        # Connections belong to the listening process, not to the connecting one.
        self._listeners[port] = (factory, server, copy_context())
        return server

    def close_listener(self, port: int) -> None:
        self._listeners.pop(port, None)

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[SimTransport, Any]:
        """Raises ConnectionRefusedError if nothing listens on the port."""
        await asyncio.sleep(self.delay())
        if port not in self._listeners:
            raise ConnectionRefusedError(111, f"nobody listens on port {port}")
        server_factory, _, listening = self._listeners[port]
        served = listening.copy()
        client_protocol, server_protocol = factory(), served.run(server_factory)
        client = SimTransport(self, client_protocol, host, ("client", 0), (host, port), copy_context())
        server = SimTransport(self, server_protocol, host, (host, port), ("client", 0), served)
        client.peer, server.peer = server, client
        self._transports[client] = self._transports[server] = None
        served.run(server_protocol.connection_made, server)
        client_protocol.connection_made(client)
        return client, client_protocol

    def delay(self) -> float:
        return self.rng.expovariate(1 / self.latency_s)

    def reset_all(self, port: int) -> None:
        """Break every connection to that port, as when its process dies."""
        for transport in [item for item in self._transports if item.local[1] == port]:
            if transport.peer is not None:
                transport.peer.lose(ConnectionResetError(104, "connection reset by peer"))
            transport.drop()

    def break_all(self, port: int) -> None:
        """Break every connection to that port, and notify both ends."""
        for transport in [item for item in self._transports if item.local[1] == port]:
            if transport.peer is not None:
                transport.peer.lose(ConnectionResetError(104, "connection reset by peer"))
            transport.lose(ConnectionResetError(104, "connection reset by peer"))

    def forget(self, transport: SimTransport) -> None:
        self._transports.pop(transport, None)


class SimServer:
    """What ``create_server`` returns."""

    def __init__(self, network: SimNetwork, host: str, port: int) -> None:
        self._network = network
        self._port = port
        self.sockets = [_Socket(host, port)]

    def close(self) -> None:
        self._network.close_listener(self._port)

    async def wait_closed(self) -> None: ...

    def is_serving(self) -> bool:
        return True


class _Socket:
    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name


class SimTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: SimNetwork,
        protocol: Any,
        host: str,
        local: tuple[str, int],
        remote: tuple[str, int],
        context: Context,
    ) -> None:
        super().__init__()
        self._context = context
        self._network = network
        self._protocol = protocol
        self._host = host
        self.local, self.remote = local, remote
        self.peer: SimTransport | None = None
        self._inbox: deque[bytes] = deque()
        self._inbox_bytes = 0
        self._delivering = False
        self._paused = False
        self._writing_paused = False
        self._closing = False
        self._lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.remote, "sockname": self.local}.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return self.peer._inbox_bytes if self.peer is not None else 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: Any) -> None:
        if self._closing or self.peer is None or not len(data):
            return
        self.peer._receive(bytes(data))
        if self.peer._inbox_bytes > _HIGH_WATER and not self._writing_paused:
            self._writing_paused = True
            self._protocol.pause_writing()

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(bytes(part) for part in parts))

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._schedule()

    def is_reading(self) -> bool:
        return not self._paused

    def close(self) -> None:
        """Stop reading; the peer sees the end after what was written before."""
        if self._closing:
            return
        self._closing = True
        peer = self.peer
        if peer is not None:
            peer._receive(b"")
        self._network.loop.call_soon(self._finish, None, context=self._context)

    def abort(self) -> None:
        self.lose(None)
        if self.peer is not None:
            self.peer.lose(ConnectionResetError(104, "connection reset by peer"))

    def lose(self, error: Exception | None) -> None:
        self._closing = True
        self._network.loop.call_soon(self._finish, error, context=self._context)

    def drop(self) -> None:
        """Disappear without notifying the protocol: its process is dead."""
        self._lost = self._closing = True
        self._inbox.clear()
        self._network.forget(self)

    def _finish(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._inbox.clear()
        self._network.forget(self)
        self._protocol.connection_lost(error)

    def _receive(self, data: bytes) -> None:
        if self._lost:
            return
        self._inbox.append(data)
        self._inbox_bytes += len(data)
        self._schedule()

    def _schedule(self) -> None:
        if not self._delivering and self._inbox and not self._paused and not self._lost:
            self._delivering = True
            self._network.loop.call_later(self._network.delay(), self._deliver, context=self._context)

    def _deliver(self) -> None:
        self._delivering = False
        if self._lost or self._paused or not self._inbox:
            return
        if self._host in self._network.partitioned:
            self._delivering = True
            self._network.loop.call_later(0.2, self._deliver, context=self._context)
            return
        data = self._inbox.popleft()
        if not data:
            self._protocol.eof_received()
            self.lose(None)
            return
        # Pieces of any size, as with TCP. Usually whole messages, or the run would take too long.
        if len(data) > 1 and self._network.rng.random() < 0.2:
            cut = self._network.rng.randrange(1, len(data))
            self._inbox.appendleft(data[cut:])
            data = data[:cut]
        self._inbox_bytes -= len(data)
        self._hand_over(data)
        peer = self.peer
        if peer is not None and peer._writing_paused and self._inbox_bytes <= _HIGH_WATER // 4:
            peer._writing_paused = False
            self._network.loop.call_soon(peer._resume, context=peer._context)
        self._schedule()

    def _resume(self) -> None:
        if not self._lost and not self._writing_paused:
            self._protocol.resume_writing()

    def _hand_over(self, data: bytes) -> None:
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        view = memoryview(data)
        while view and not self._lost:
            room = memoryview(self._protocol.get_buffer(len(view)))
            taken = min(len(room), len(view))
            room[:taken] = view[:taken]
            self._protocol.buffer_updated(taken)
            view = view[taken:]
