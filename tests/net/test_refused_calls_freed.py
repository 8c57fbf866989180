"""A refused call frees its request with its answer: no cycle of error and frames keeps it until the next collection."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from worker_pair import pair

from penstock.codec.wire import commands as c
from penstock.model.errors import ConflictError, InvalidArgumentError, PenstockError, ThrottledError
from penstock.net.grpc.dispatch import service_handler
from penstock.net.proto import Controller_pb2
from penstock.net.wire.calls import _call
from penstock.ports.telemetry import NoTelemetry

SERVICE = Controller_pb2.DESCRIPTOR.services_by_name["ControllerService"]


class Held:
    """What a handler holds when it fails."""


class Failing:
    """A handler that fails with an error, and remembers weakly what its frame held."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error
        self.held: list[weakref.ref[Held]] = []

    async def __call__(self, _request: Any) -> Any:
        held = Held()
        self.held.append(weakref.ref(held))
        await asyncio.sleep(0)
        raise self.error("refused")


class Context:
    """What gRPC gives a handler, as far as ours use it."""

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def set_trailing_metadata(self, _metadata: Any) -> None:
        return

    async def abort(self, *_: Any) -> None:
        raise ConflictError("aborted")


async def over_grpc(handler: Failing, rpc: str) -> None:
    found = service_handler(SERVICE, {rpc: handler}, NoTelemetry()).service(
        SimpleNamespace(method=f"/{SERVICE.full_name}/{rpc}", invocation_metadata=())
    )
    try:
        await found.unary_unary(object(), Context())
    except PenstockError:
        return


async def over_the_line(handler: Failing, rpc: str) -> None:
    await _call(SERVICE.methods_by_name[rpc], handler)(c.CallController(1, rpc, b""))


async def between_processes(handler: Failing, _rpc: str) -> None:
    async with pair({"fail": handler}) as (near, _):
        try:
            await near.call("fail", 1)
        except PenstockError:
            return


@pytest.mark.parametrize("way", [over_grpc, over_the_line, between_processes])
@pytest.mark.parametrize("error", [InvalidArgumentError, ThrottledError])
# The one answers by a status in its reply, the other by a gRPC code.
@pytest.mark.parametrize("rpc", ["createScope", "getURI"])
def test_what_a_refused_call_held_is_freed_with_its_answer(
    way: Callable[[Failing, str], Coroutine[Any, Any, None]], error: type[Exception], rpc: str
) -> None:
    handler = Failing(error)

    async def scene() -> None:
        await way(handler, rpc)

    gc.disable()
    try:
        asyncio.run(scene())
        assert [one() for one in handler.held] == [None]
    finally:
        gc.enable()
