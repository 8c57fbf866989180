"""TCP relays between processes of this machine. They can be cut as a network is: silently, and nothing is lost.

    python -m tests.cluster.relays PORTS MODULE [ARGUMENT ...]

runs a module whose connections to some ports of 127.0.0.1 go to other ports instead. ``PORTS`` is a JSON file of pairs
of ports, which is read at each connection: ports can be added while the module runs.
"""

from __future__ import annotations

import asyncio
import json
import runpy
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Self

HOST = "127.0.0.1"
_CHUNK = 1 << 16


class Relay:
    """Passes bytes between those who connect to it and one port. While it is cut, it still accepts, and nothing passes."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> int:
        """Returns the port on which it listens."""
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def cut(self) -> None:
        self._whole.clear()

    def heal(self) -> None:
        self._whole.set()

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0)  # transports close their sockets one step after they were aborted

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._whole.wait()
            above_reader, above_writer = await asyncio.open_connection(HOST, self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._copy(reader, above_writer))
                    group.create_task(self._copy(above_reader, writer))
            finally:
                above_writer.transport.abort()
        except (OSError, ExceptionGroup):
            pass  # One of both ends has closed the connection, which closes the other.
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _copy(self, source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        """Raises OSError at the end, so that the other direction ends too."""
        while True:
            try:
                data = await source.read(_CHUNK)
            except OSError:
                data = b""
            await self._whole.wait()
            if not data:
                raise ConnectionResetError
            to.write(data)
            await to.drain()


class Relays:
    """Relays in a thread of their own, one for each pair of a process and a port. Use it in a ``with`` block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._relays: dict[tuple[str, int], Relay] = {}
        self._ports: dict[str, dict[int, int]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for relay in self._relays.values():
            self._wait(relay.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def command(self, name: str, *module: str) -> Sequence[str]:
        """How to run a module so that its connections to the ports of ``between`` are relayed."""
        return ("tests.cluster.relays", str(self._path(name)), *module)

    def between(self, name: str, *ports: int) -> None:
        """From now on, connections of this process to the ports are relayed."""
        known = self._ports.setdefault(name, {})
        for port in ports:
            if port not in known:
                relay = self._wait(self._new(port))
                known[port] = self._wait(relay.open())
                self._relays[name, port] = relay
        path = self._path(name)
        (path.with_suffix(".new")).write_text(json.dumps(list(known.items())))
        path.with_suffix(".new").replace(path)

    def cut(self, name: str, ports: Collection[int]) -> None:
        self._each(name, ports, Relay.cut)

    def heal(self, name: str, ports: Collection[int]) -> None:
        self._each(name, ports, Relay.heal)

    def _each(self, name: str, ports: Collection[int], act: Callable[[Relay], None]) -> None:
        """Returns once it is done for all of them."""
        for port in ports:
            self._call(lambda relay=self._relays[name, port]: act(relay))  # type: ignore[misc]
        self._wait(asyncio.sleep(0))

    def _path(self, name: str) -> Path:
        return self._directory / f"{name}.ports"

    async def _new(self, port: int) -> Relay:
        return Relay(port)

    def _call(self, act: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(act)

    def _wait(self, work: Awaitable[Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(_value(work), self._loop).result()


async def _value(work: Awaitable[Any]) -> Any:
    return await work


def redirect(path: Path) -> None:
    """From now on, sockets of this process connect to the relays that the file lists."""
    import uvloop

    plain_connect, plain_create = socket.socket.connect, uvloop.Loop.create_connection

    def relayed(port: Any) -> Any:
        return dict(json.loads(path.read_text())).get(port, port)

    def connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] == HOST:
            address = (HOST, relayed(address[1]))
        plain_connect(self, address)

    async def create_connection(loop: Any, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        if host == HOST:
            port = relayed(port)
        return await plain_create(loop, factory, host, port, **options)

    setattr(socket.socket, "connect", connect)  # noqa: B010  (an assignment would need the type of a builtin)
    setattr(uvloop.Loop, "create_connection", create_connection)  # noqa: B010


if __name__ == "__main__":
    ports, module, *_ = sys.argv[1:]
    redirect(Path(ports))
    sys.argv = sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
