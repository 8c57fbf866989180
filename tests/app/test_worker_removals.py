"""Removals that a worker performs for its clients: the guard's block in the server lasts as long as they do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.app.workers.process import removal_guard
from penstock.app.workers.reports import WorkerRemovals
from penstock.model.errors import NotConnectedError, RetentionHoldError
from penstock.net.workers.link import WorkerLink, open_link


class RemovalLine:
    """Both ends of a line, and what the server's guard has open."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.entering = asyncio.Event()
        self.let_in = asyncio.Event()
        self.let_in.set()
        self.removals = WorkerRemovals()

    @asynccontextmanager
    async def guard(self, segment: str, offset: int | None) -> AsyncIterator[None]:
        self.open.append(segment)
        try:
            self.entering.set()
            await self.let_in.wait()
            if offset is None:
                raise RetentionHoldError("a hold forbids the removal", hold="h", owner="o", reason="r")
            yield
        finally:
            self.open.remove(segment)

    async def none_open(self) -> None:
        async with asyncio.timeout(10):
            while self.open:
                await asyncio.sleep(0)


def run(work) -> None:
    async def main() -> None:
        world = RemovalLine()
        ours, theirs = socket.socketpair()
        server = await open_link(ours, name="server", handlers=world.removals.handlers(world.guard))
        worker = await open_link(theirs, name="worker", handlers={})
        try:
            async with asyncio.timeout(20):
                await work(world, server, worker)
        finally:
            worker.close()
            server.close()
            await asyncio.gather(server.closed, worker.closed)

    asyncio.run(main())


def test_the_block_of_the_server_lasts_as_long_as_that_of_the_worker() -> None:
    async def work(world: RemovalLine, server: WorkerLink, worker: WorkerLink) -> None:
        guard = removal_guard(worker)
        async with guard("a", 1):
            async with guard("b", 2):
                assert world.open == ["a", "b"]
            await asyncio.sleep(0)
            assert "a" in world.open
        await world.none_open()
        with pytest.raises(RetentionHoldError):
            async with guard("c", None):
                pytest.fail("it was let in")
        assert world.open == []

    run(work)


def test_a_worker_that_gives_up_leaves_nothing_open() -> None:
    async def work(world: RemovalLine, server: WorkerLink, worker: WorkerLink) -> None:
        guard = removal_guard(worker)

        async def removal() -> None:
            async with guard("a", 1):
                await asyncio.Event().wait()

        # Before it is let in, and within the block.
        for let_in in (False, True):
            world.entering.clear()
            (world.let_in.set if let_in else world.let_in.clear)()
            task = asyncio.ensure_future(removal())
            await world.entering.wait()
            if let_in:
                async with guard("b", 1):
                    pass
            task.cancel()
            await asyncio.wait([task])
            world.let_in.set()
            await world.none_open()

    run(work)


def test_what_a_dead_worker_has_begun_ends_after_its_process() -> None:
    async def work(world: RemovalLine, server: WorkerLink, worker: WorkerLink) -> None:
        guard = removal_guard(worker)

        async def removal() -> None:
            async with guard("a", 1):
                worker.close()
                await worker.closed

        await removal()
        await server.closed
        assert world.open == ["a"]
        await world.removals.end_all()
        assert world.open == []
        with pytest.raises(NotConnectedError):
            async with guard("b", 1):
                pytest.fail("it was let in")

    run(work)
