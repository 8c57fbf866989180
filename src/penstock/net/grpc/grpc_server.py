"""The gRPC port: Pravega's controller service and the native one, over a ``ControlPlane`` and a ``SegmentService``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

import grpc

from penstock.codec.wire.http2_frames import PAYLOAD_MAX_BYTES
from penstock.model.callers import Caller
from penstock.model.errors import InternalError, InvalidArgumentError
from penstock.net.access.doors import TokenDesk, identified
from penstock.net.access.refusals import Refusals
from penstock.net.grpc.dispatch import authorization_of, own_handler, service_handler, unverified
from penstock.net.grpc.gate import GateLimits, GrpcGate
from penstock.net.grpc.groups import ReaderGroupCalls, TransactionCalls
from penstock.net.grpc.scopes import ScopeCalls
from penstock.net.grpc.streams import SegmentCalls, StreamCalls
from penstock.net.grpc.tables import KeyValueTableCalls
from penstock.net.native.calls import REPLY_BYTES_MAX, REQUEST_BYTES_MAX, SERVICE, TOKENS_CAPABILITY
from penstock.net.native.serve import answers
from penstock.net.proto import Controller_pb2
from penstock.net.security import OPEN, Security
from penstock.net.tls.certificates import GRPC_ALPN
from penstock.net.tls.door import TlsDoor
from penstock.net.wire.requests import CALLS_CAPABILITY
from penstock.ports.control.layout import Endpoint
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.telemetry import NoTelemetry, Telemetry

DEFAULT_PORT = 9090
_CALLS_MAX = 4096  # concurrent calls; further ones are refused
_HANDSHAKE_MS = 4_000
_STREAMS_MAX = 1_024
"""Calls of one connection at the same time."""
_METADATA_BYTES_MAX = 16 << 10
_STOP_S = 2.0
_ANY_HOST = ("", "0.0.0.0", "::", "[::]")

_OPTIONS = (
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    # Otherwise a peer that connects and sends nothing stays for two minutes.
    ("grpc.server_handshake_timeout_ms", _HANDSHAKE_MS),
    ("grpc.max_concurrent_streams", _STREAMS_MAX),
    ("grpc.max_metadata_size", _METADATA_BYTES_MAX),
    # The gate relies on these. With the bandwidth probe, gRPC would allow larger frames and buffer more of a request.
    ("grpc.http2.max_frame_size", PAYLOAD_MAX_BYTES),
    ("grpc.http2.bdp_probe", 0),
    # Java clients ping an idle connection; by default gRPC closes the connection for that.
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)


class GrpcServer:
    """Serves from ``__aenter__`` to ``__aexit__``; the services are borrowed.

    Args:
        server_address: The address reported to clients that ask where this server is (``pravega://`` addresses). A
        string is a host, with the port that is bound. None: ``host``, which clients must then be able to reach.
        store_id: The id of the store, which ``store.info`` returns. line: Whether the port of the segment store also
        accepts calls of the controller (``net.wire.calls``).
    """

    def __init__(
        self,
        controller: ControlPlane,
        segments: SegmentService,
        *,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        server_address: Endpoint | str | Callable[[], Endpoint] | None = None,
        store_id: str = "",
        line: bool = False,
        limits: GateLimits | None = None,
        telemetry: Telemetry | None = None,
        security: Security = OPEN,
    ) -> None:
        """Raises InvalidArgumentError: the port is invalid, or the host is "any address" and ``server_address`` is
        missing."""
        if not 0 <= port < 1 << 16:
            raise InvalidArgumentError("a port must be 0 to 65535", port=port)
        if server_address is None and host in _ANY_HOST:
            raise InvalidArgumentError(
                "listening on every address needs a server address to report to clients", host=host
            )
        self._controller = controller
        self._segments = segments
        self._host = host
        self._server_address = server_address
        self._store_id = store_id
        self._line = line
        self._telemetry = telemetry or NoTelemetry()
        self._authenticator = security.authenticator
        self._refusals = Refusals(self._telemetry, self._telemetry.steady_s)
        self._tokens = TokenDesk(security.issuer)
        tls = security.tls
        door = None if tls is None else TlsDoor(tls, GRPC_ALPN, telemetry=self._telemetry)
        self.gate = GrpcGate(host=host, port=port, limits=limits or GateLimits(), door=door)
        self._server: grpc.aio.Server | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        """The port bound. Raises InternalError before the server was entered."""
        if self._port is None:
            raise InternalError("the gRPC server is not started")
        return self._port

    def _own_address(self) -> Endpoint:
        if callable(self._server_address):
            return self._server_address()
        if isinstance(self._server_address, Endpoint):
            return self._server_address
        return Endpoint(host=self._server_address or self._host, port=self.port)

    async def __aenter__(self) -> Self:
        """Raises AddressInUseError."""
        server = grpc.aio.server(options=_OPTIONS, maximum_concurrent_rpcs=_CALLS_MAX)
        server.add_generic_rpc_handlers(self._handlers())
        async with AsyncExitStack() as stack:
            gate = await stack.enter_async_context(self.gate)
            server.add_insecure_port(f"unix:{gate.inner}")
            await server.start()
            await gate.serve()
            self._port = gate.port
            stack.pop_all()
        self._server = server
        return self

    async def _identify(self, caller: Caller, context: Any) -> Caller:
        """Verify who makes a call: by its metadata, else by the certificate of its connection."""
        certificate = self.gate.certificate_of(unquote(context.peer() or ""))
        return await identified(caller, self._authenticator, authorization_of(context), certificate, self._refusals)

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, grpc.GenericRpcHandler]:
        parts = (
            ScopeCalls(self._controller, self._own_address),
            StreamCalls(self._controller, self._tokens),
            SegmentCalls(self._controller, self._tokens),
            TransactionCalls(self._controller, self._tokens),
            ReaderGroupCalls(self._controller),
            KeyValueTableCalls(self._controller, self._tokens),
        )
        controller = {name: handler for part in parts for name, handler in part.handlers().items()}
        more = ((CALLS_CAPABILITY,) if self._line else ()) + ((TOKENS_CAPABILITY,) if self._tokens.is_open else ())
        own = answers(self._controller, self._segments, store_id=self._store_id, more=more, desk=self._tokens)
        identify = unverified if self._authenticator is None else self._identify
        return (
            service_handler(
                Controller_pb2.DESCRIPTOR.services_by_name["ControllerService"], controller, self._telemetry, identify
            ),
            own_handler(SERVICE, own, self._telemetry, reply_bytes_max=REPLY_BYTES_MAX, identify=identify),
        )

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Accept no more calls, and end those in flight after at most two seconds."""
        if self._server is not None:
            server, self._server = self._server, None
            try:
                await server.stop(_STOP_S)
            finally:
                await self.gate.__aexit__(None, None, None)
