"""Calls of clients, which find the store that serves a container, and stay with it until it fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from penstock.core.segments.placement import container_of
from penstock.model.errors import ContainerOfflineError, NotConnectedError, SegmentNotFoundError
from penstock.ports.data.imports import ImportGrant
from penstock.ports.files import Buffer
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.testing.simulation.cluster.machine import Machine, StoreLife
from penstock.testing.simulation.cluster.shared import SharedWorld

_HOP_S = (0.0005, 0.005)
_PATIENCE_S = (2.0, 8.0)
"""How long a client waits for an answer before it gives the connection up, drawn for each call."""


class _Connection:
    """A connection of a client to one life of a store. ``may_answer``: the check that the store made when it accepted it."""

    def __init__(self, life: StoreLife) -> None:
        self.life = life
        self.may_answer: Callable[[], bool] = lambda: False
        if life.node is not None:
            self.may_answer = life.node.answer_check()


class ClientPort:
    """The segments of a cluster, as one client reaches them: any method of the store that serves the segment."""

    withdraw_appends = None
    open_direct = None

    def __init__(self, world: SharedWorld, machines: Sequence[Machine], label: str) -> None:
        self._world = world
        self._machines = {one.name: one for one in machines}
        self._rng = world.loop.fork(f"client/{label}")
        self._connections: dict[int, _Connection] = {}
        self.grants: dict[str, int] = {}
        """Containers of the prefixes under which chunks may be written."""

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if isinstance(args[0], UUID):
                for number in range(self._world.containers):
                    await self._call(number, method, args, kwargs)
                return None
            named = args[0] if isinstance(args[0], str) else getattr(args[0], "segment", None) or args[0][0]
            number = container_of(named, self._world.containers)
            found = await self._call(number, method, args, kwargs)
            if isinstance(found, ImportGrant):
                self.grants[found.prefix] = number
            return found

        return call

    async def _call(self, number: int, method: str, args: Any, kwargs: Any) -> Any:
        await asyncio.sleep(self._rng.uniform(*_HOP_S))
        connection = self._connections.get(number) or self._connect(number)
        try:
            async with asyncio.timeout(self._rng.uniform(*_PATIENCE_S)):
                found = await self._ask(connection, number, method, args, kwargs)
        except (ContainerOfflineError, NotConnectedError):
            self._connections.pop(number, None)
            raise
        except TimeoutError:
            self._connections.pop(number, None)
            raise NotConnectedError("the store does not answer") from None
        await asyncio.sleep(self._rng.uniform(*_HOP_S))
        self._world.answered(number, method)
        return found

    def _connect(self, number: int) -> _Connection:
        held = self._world.held().get(number)
        life = None if held is None or not held.serving else self._machines[held.store].life
        if life is None or not life.process.alive:
            raise NotConnectedError("no store serves the container", container=number)
        if life.process.paused:
            raise NotConnectedError("the store does not accept a connection", container=number)
        made = self._connections[number] = _Connection(life)
        return made

    async def _ask(self, connection: _Connection, number: int, method: str, args: Any, kwargs: Any) -> Any:
        """The answer of the store, if it may still answer. A request that the client has given up may still happen."""
        world, life = self._world, connection.life
        answer: asyncio.Future[Any] = world.loop.create_future()
        asked: list[Any] = []

        async def work() -> Any:
            unit = life.units().get(number)
            if unit is None:
                raise ContainerOfflineError("container is not open in this store", container=number)
            asked.append(unit)
            return await getattr(unit, method)(*args, **kwargs)

        def ended(done: asyncio.Task[Any]) -> None:
            error = None if done.cancelled() else done.exception()
            if answer.done():
                return
            if done.cancelled() or not life.process.alive or not connection.may_answer():
                answer.set_exception(NotConnectedError("the connection is lost"))
            elif error is not None:
                answer.set_exception(error)
            else:
                if asked and world.is_outdated(number, asked[0]):
                    world.history.violation("outdated answer", f"{method} of container {number} by {life.process.name}")
                answer.set_result(done.result())

        if not life.process.alive:
            raise NotConnectedError("the process is gone")
        # The error of an answer that nobody waits for any more is not a failure of the run.
        answer.add_done_callback(lambda done: None if done.cancelled() else done.exception())
        task = world.loop.create_task(work(), context=life.process.context)
        task.add_done_callback(ended, context=life.process.context)
        died = asyncio.ensure_future(life.died.wait())
        try:
            await asyncio.wait({answer, died}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            died.cancel()
        if not answer.done():
            raise NotConnectedError("the process is gone")
        return answer.result()


class TierPort:
    """Tier 2 as executors reach it, which write and read chunks of any container."""

    def __init__(self, world: SharedWorld, clients: Sequence[ClientPort]) -> None:
        self._world = world
        self._clients = clients
        self._chunks = [
            ObjectChunks(world.tier.open(f"{world.cluster_config.tier2}/container-{number}"))
            for number in range(world.containers)
        ]

    async def append(self, name: str, offset: int, parts: Sequence[Buffer]) -> None:
        await self._of(name).append(name, offset, parts)

    async def sync(self, name: str) -> None:
        await self._of(name).sync(name)

    async def read(self, name: str, offset: int, length: int) -> bytes:
        for chunks in self._chunks:
            try:
                return await chunks.read(name, offset, length)
            except SegmentNotFoundError:
                continue
        raise SegmentNotFoundError("no such chunk", chunk=name)

    def _of(self, name: str) -> ObjectChunks:
        for client in self._clients:
            for prefix, number in client.grants.items():
                if name.startswith(prefix):
                    return self._chunks[number]
        raise SegmentNotFoundError("no grant has this prefix", chunk=name)
