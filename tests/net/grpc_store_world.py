"""A gRPC server over a real controller and store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from penstock.controller.controller import Controller
from penstock.controller.settings import ControllerSettings
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.store import SegmentStore
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.rng import RealRng
from penstock.testing.world import World

WRITER = UUID(int=77)


@dataclass(frozen=True)
class Running:
    controller: Controller
    store: SegmentStore
    remote: RemoteController
    port: int

    async def append(self, segment: str, data: bytes) -> int:
        last = await self.store.setup_append(segment, WRITER)
        number = 1 if last == NO_EVENT else last + 1
        request = Append(segment=segment, writer=WRITER, data=data, event_number=number, previous=last)
        return (await self.store.append(request)).end_offset


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    memory = World(clock=RealClock(), rng=RealRng(), controller=ControllerSettings())
    async with AsyncExitStack() as stack:
        store, controller = await stack.enter_async_context(memory.serving())
        server = await stack.enter_async_context(GrpcServer(controller, store, port=0))
        remote = await stack.enter_async_context(dial_controller(f"127.0.0.1:{server.port}"))
        yield Running(controller=controller, store=store, remote=remote, port=server.port)
