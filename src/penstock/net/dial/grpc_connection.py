"""A gRPC connection to one server that rides over restarts and raises the server's own typed errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from penstock.model.errors import (
    ForkedError,
    InternalError,
    NotConnectedError,
    PenstockError,
)
from penstock.net.dial.addresses import parse_address
from penstock.net.grpc.dispatch import caller_metadata, status_field
from penstock.net.grpc.grpc_errors import ERROR_KEY, class_of_code, class_of_status, decode_error
from penstock.net.proto import Controller_pb2_grpc, native_pb2_grpc
from penstock.ports import forks

PATIENCE_S = 30.0
CALL_S = 120.0

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
# The ranges of a segment's chunks come in one message, see docs/formats/native-api.md.
_MESSAGE_BYTES_MAX = 64 << 20

# Pings find out within a minute that a host has vanished without a word.
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Two connections of one process must not share a socket: each is closed by its owner.
    ("grpc.use_local_subchannel_pool", 1),
)


class Rpc(Protocol):
    """One call of a generated stub."""

    def __call__(
        self, request: Any, /, *, timeout: float, metadata: Sequence[tuple[str, str | bytes]] | None
    ) -> Any: ...


class GrpcConnection:
    """Calls over one channel, which connects by itself at the first call and again after every loss.

    A call that finds no server is repeated, after pauses of 50 ms growing to 1 s, for ``patience_s``: every call of the
    ports is safe to repeat. What cannot be known is whether a call that was lost on its way had happened; creating or
    deleting twice then raises AlreadyExistsError or a NotFoundError, as it would for two callers.
    """

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S, call_s: float = CALL_S) -> None:
        self.address = parse_address(address)
        self.patience_s = patience_s
        self._call_s = call_s
        self._channel: grpc.aio.Channel | None = None
        self._controller: Any = None
        self._native: Any = None
        self._owner = forks.current()
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. A collected channel would close the parent's connection, so it is kept."""

    async def __aenter__(self) -> Self:
        """Open, without waiting for the server. Raises ForkedError if gRPC was used in a process before a fork."""
        _check_grpc()
        self._channel = grpc.aio.insecure_channel(self.address, options=_OPTIONS)
        self._controller = Controller_pb2_grpc.ControllerServiceStub(self._channel)  # type: ignore[no-untyped-call]
        self._native = native_pb2_grpc.NativeStub(self._channel)  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; calls in flight are cancelled. Does nothing in a forked child."""
        if self._owner is not forks.current():
            return
        if self._channel is not None:
            channel, self._channel = self._channel, None
            await channel.close()

    async def controller(self, rpc: str, request: Any, *, accept: Iterable[int] = ()) -> Any:
        """Call Pravega's controller service. A status that is neither success (0) nor in ``accept`` raises."""
        return (await self._call(rpc, self._stub_call(self._controller, rpc), request, frozenset(accept)))[0]

    async def annotated(
        self, rpc: str, request: Any, *, accept: Iterable[int] = ()
    ) -> tuple[Any, Sequence[tuple[str, str | bytes]]]:
        """As ``controller``, with what a server of ours says beside the reply."""
        return await self._call(rpc, self._stub_call(self._controller, rpc), request, frozenset(accept))

    async def native(self, rpc: str, request: Any) -> Any:
        """Call the native service."""
        return (await self._call(rpc, self._stub_call(self._native, rpc), request, frozenset()))[0]

    def _stub_call(self, stub: Any, rpc: str) -> Rpc:
        if self._channel is None:
            raise NotConnectedError("the connection is not open", address=self.address)
        call: Rpc = getattr(stub, rpc)
        return call

    async def _call(
        self, rpc: str, method: Rpc, request: Any, accept: frozenset[int]
    ) -> tuple[Any, Sequence[tuple[str, str | bytes]]]:
        forks.check(self._owner)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        pause = _FIRST_PAUSE_S
        while True:
            call = method(request, timeout=self._call_s, metadata=caller_metadata())
            try:
                reply = await call
            except grpc.aio.AioRpcError as error:
                again = error.code() is grpc.StatusCode.UNAVAILABLE and loop.time() + pause < deadline
                if not again or self._channel is None:
                    raise self._error(rpc, error) from error
            else:
                metadata = [(key, value) for key, value in await call.trailing_metadata() or ()]
                failure = _typed(metadata) or _refusal(rpc, reply, accept)
                if failure is not None:
                    raise failure
                return reply, metadata
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _error(self, rpc: str, error: grpc.aio.AioRpcError) -> PenstockError:
        typed = _typed(error.trailing_metadata())
        if typed is not None:
            return typed
        details = str(error.details())[:500]
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return NotConnectedError(
                "no store answers at this address; is `penstock standalone` running there?",
                address=self.address,
                waited_s=self.patience_s,
                rpc=rpc,
                details=details,
            )
        if error.code() is grpc.StatusCode.UNKNOWN:
            return InternalError("the server failed", address=self.address, rpc=rpc, details=details)
        return class_of_code(error.code())(
            "the server refused the call", address=self.address, rpc=rpc, code=error.code().name, details=details
        )


class _Started:
    """The process in which gRPC's threads were started."""

    process: object = None


def _check_grpc() -> None:
    # The child does not have gRPC's threads, and gRPC does not notice: a call would wait forever.
    if _Started.process is None:
        _Started.process = forks.current()
    elif _Started.process is not forks.current():
        raise ForkedError(
            "gRPC was used before the fork and does not work in the forked child: connect for the first time after the"
            " fork, or start the process with multiprocessing's spawn or forkserver",
            pid=os.getpid(),
            parent_pid=os.getppid(),
        )


def _typed(metadata: Any) -> PenstockError | None:
    """The error that a server of ours attached, if it did and this version knows its class."""
    for key, value in metadata or ():
        if key == ERROR_KEY:
            return decode_error(value if isinstance(value, bytes) else str(value).encode())
    return None


def _refusal(rpc: str, reply: Any, accept: frozenset[int]) -> PenstockError | None:
    """What the status of a reply means that came without an error: the server is not ours, or is newer."""
    field = status_field(reply)
    if field is None:
        return None
    status = int(getattr(reply, field))
    if status == 0 or status in accept:
        return None
    name = reply.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(status)
    return class_of_status(rpc, status)(
        "the server refused the call", rpc=rpc, status=name.name if name is not None else status
    )
