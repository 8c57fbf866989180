"""A gRPC connection to one server, or to the active one of several. It survives the server's restarts and raises the
server's own typed errors."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, Self

import grpc

from penstock.model.errors import (
    ForkedError,
    InternalError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
    TlsError,
    UnauthenticatedError,
)
from penstock.model.traces.spans import Kind, current_headers, spanning
from penstock.net.dial.addresses import parse_addresses, tls_of
from penstock.net.dial.security import PLAIN, DialSecurity
from penstock.net.grpc.dispatch import caller_metadata
from penstock.net.grpc.grpc_errors import ERROR_KEY, class_of_code, decode_error
from penstock.net.native.calls import REPLY_BYTES_MAX, REQUEST_BYTES_MAX, SERVICE
from penstock.ports import forks

PATIENCE_S = 30.0
CALL_S = 120.0

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_AUTHORIZATION = "authorization"
_DISTRUST = ("CERTIFICATE_VERIFY_FAILED", "is not in peer certificate", "ostname Verification Check failed")
"""Texts of gRPC about a server's certificate."""

_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
"""What gRPC reports if the server or the connection was lost; the second one rarely, for a call that was just starting. A
call that is cancelled here raises CancelledError instead."""

# Pings detect within a minute that a host has disappeared without closing its connections.
_OPTIONS = (
    ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
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
    """One call of the channel."""

    def __call__(
        self, request: Any, /, *, timeout: float, metadata: Sequence[tuple[str, str | bytes]] | None
    ) -> Any: ...


class GrpcConnection:
    """Calls over a channel, which connects by itself at the first call and again after every loss.

    With several addresses, calls go to the last one that answered. If it stops answering, the others are tried.

    A call that finds no server is repeated, after pauses of 50 ms growing to 1 s, for ``patience_s``: nearly every call
    of the ports is safe to repeat. A call whose connection was lost may have happened. Creating or deleting again then
    raises AlreadyExistsError or a NotFoundError, as it would for two callers.
    """

    def __init__(
        self,
        address: str,
        *,
        patience_s: float = PATIENCE_S,
        call_s: float = CALL_S,
        security: DialSecurity = PLAIN,
    ) -> None:
        """Raises InvalidArgumentError: an invalid address, or one that asks for TLS without ``security`` for it."""
        self._targets = parse_addresses(address)
        self.address = ",".join(self._targets)
        if tls_of(address.partition(",")[0]) and security.tls is None:
            raise InvalidArgumentError("the address asks for TLS, and the connection would be plain", address=address)
        self._security = security
        self.patience_s = patience_s
        self._call_s = call_s
        self._channels: list[grpc.aio.Channel] = []
        self._at = 0  # index of the address that calls go to
        self._rpcs: dict[tuple[int, str], Rpc] = {}
        self._owner = forks.current()
        forks.register(self)

    def abandon_in_child(self) -> None:
        """See ``ports.forks.Handle``. A collected channel would close the parent's connection, so it is kept."""

    async def __aenter__(self) -> Self:
        """Open, without waiting for the server. Raises ForkedError if gRPC was used in a process before a fork."""
        _check_grpc()
        tls = self._security.tls
        if tls is None:
            self._channels = [grpc.aio.insecure_channel(target, options=_OPTIONS) for target in self._targets]
        else:
            chain, key = tls.own() or (None, None)
            trusted = grpc.ssl_channel_credentials(tls.authorities() or None, key, chain)
            self._channels = [grpc.aio.secure_channel(target, trusted, options=_OPTIONS) for target in self._targets]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; calls in flight are cancelled. Does nothing in a forked child."""
        if self._owner is not forks.current():
            return
        channels, self._channels = self._channels, []
        self._rpcs.clear()
        for channel in channels:
            await channel.close()

    async def call(self, name: str, request: bytes, *, repeat: bool = True) -> bytes:
        """Make one of our own calls and return its reply. Raises what the call raises; NotConnectedError,
        DeadlineExceededError; InvalidArgumentError for a request or reply that is too large.

        ``repeat``: whether to make the call again while no server answers. If not, a failed call may or may not have
        happened.
        """
        forks.check(self._owner)
        if len(request) > REQUEST_BYTES_MAX:
            raise InvalidArgumentError(
                "the request is too large", call=name, size_bytes=len(request), limit_bytes=REQUEST_BYTES_MAX
            )
        with spanning(name, Kind.CLIENT, {"rpc.system": "grpc", "rpc.method": name}):
            return await self._call(name, request, repeat=repeat)

    async def _call(self, name: str, request: bytes, *, repeat: bool) -> bytes:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.patience_s
        pause, failed = _FIRST_PAUSE_S, 0
        presenting, asked_again = self._security.presenting, False
        while True:
            header = "" if presenting is None else await presenting.header()
            shown: tuple[tuple[str, str | bytes], ...] = ((_AUTHORIZATION, header),) if header else ()
            at = self._at
            try:
                reply: bytes = await self._rpc(name)(
                    request,
                    timeout=self._call_s,
                    metadata=(*(caller_metadata() or ()), *current_headers(), *shown) or None,
                )
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.UNAUTHENTICATED and presenting is not None and not asked_again:
                    # Refused before anything was done: a token may have expired earlier than it says.
                    asked_again = True
                    if presenting.refused(header):
                        continue
                lost = error.code() in _LOST
                again = repeat and lost and loop.time() + pause < deadline
                again = again and not (self._security.tls is not None and _is_distrust(str(error.details())))
                if lost and at == self._at:
                    self._at = (at + 1) % len(self._targets)
                if not again or not self._channels:
                    raise self._error(name, error) from error
            else:
                return reply
            failed += 1
            if failed % len(self._targets):
                continue  # with another address, without a pause
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    def _rpc(self, name: str) -> Rpc:
        if not self._channels:
            raise NotConnectedError("the connection is not open", address=self.address)
        known = self._rpcs.get((self._at, name))
        if known is None:
            known = self._rpcs[self._at, name] = self._channels[self._at].unary_unary(f"/{SERVICE}/{name}")
        return known

    def _error(self, rpc: str, error: grpc.aio.AioRpcError) -> PenstockError:
        typed = _typed(error.trailing_metadata())
        file = None if self._security.presenting is None else self._security.presenting.file
        if isinstance(typed, UnauthenticatedError) and file is not None:
            return UnauthenticatedError(typed.message, **{**typed.fields, "path": str(file)})
        if typed is not None:
            return typed
        details = str(error.details())[:500]
        if error.code() in _LOST:
            if self._security.tls is not None and _is_distrust(details):
                return TlsError("the server's certificate cannot be trusted", address=self.address, details=details)
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


def _is_distrust(details: str) -> bool:
    """Whether a connection failed because of the server's certificate: no retry helps."""
    return any(text in details for text in _DISTRUST)


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
