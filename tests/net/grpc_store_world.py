"""A gRPC server over a real controller and store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

from penstock.controller.controller import Controller, open_controller
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.store import SegmentStore, open_segment_store
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng
from penstock.storage.memory.memory_chunks import MemoryChunks
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.memory.memory_log import MemoryLog

WRITER = UUID(int=77)


class Silence:
    def add(self, name: str, amount: int = 1) -> None:
        return

    def gauge(self, name: str, value: float) -> None:
        return


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
    clock, rng, telemetry = RealClock(), RealRng(), Silence()
    async with AsyncExitStack() as stack:
        offload = await stack.enter_async_context(ThreadOffload())
        store = await stack.enter_async_context(
            open_segment_store(
                MemoryLog(),
                StoreParts(
                    keyvalue=MemoryKeyValue(),
                    chunks=MemoryChunks(),
                    clock=clock,
                    rng=rng,
                    offload=offload,
                    telemetry=telemetry,
                ),
            )
        )
        controller = await stack.enter_async_context(
            open_controller(
                store,
                clock=clock,
                rng=rng,
                endpoint_of=lambda _segment: Endpoint(host="127.0.0.1", port=12345),
                telemetry=telemetry,
            )
        )
        server = await stack.enter_async_context(GrpcServer(controller, store, port=0))
        remote = await stack.enter_async_context(dial_controller(f"127.0.0.1:{server.port}"))
        yield Running(controller=controller, store=store, remote=remote, port=server.port)
