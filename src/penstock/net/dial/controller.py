"""A remote control plane that is used like a local one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from penstock.codec.values import Call
from penstock.model.errors import NotConnectedError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyTarget
from penstock.net.dial.checking import REFUSED_S, check_listens
from penstock.net.dial.grpc_connection import CALL_S, PATIENCE_S, GrpcConnection
from penstock.net.dial.line_calls import LineCalls
from penstock.net.dial.security import PLAIN, DialSecurity
from penstock.net.native.calls import MADE_ONCE, OVER_THE_WIRE, TOKENS_CAPABILITY
from penstock.net.native.remote import RemoteControl
from penstock.net.wire.requests import CALLS_CAPABILITY


class RemoteController(RemoteControl):
    """A ``ControlPlane`` in another process. Every call raises what the remote one raised; NotConnectedError if no
    server answers for the ``patience_s`` of the connection; DeadlineExceededError if an answer does not come in time.

    Calls that every small transaction needs are made over a connection to the store, if one is known that accepts them.
    """

    def __init__(self, connection: GrpcConnection) -> None:
        """The connection is borrowed."""
        super().__init__(self._send)
        self._connection = connection
        self._line: LineCalls | None = None
        self._line_taken: bool | None = None
        self._needs_tokens: bool | None = None

    async def segment_token(self, stream: StreamName) -> str:
        """The caller's token for the segments of the stream; empty if they need none. Raises PermissionDeniedError."""
        if self._needs_tokens is None:
            await self.greet()
        return await self.about.token(stream) if self._needs_tokens else ""

    async def plan_token(self, targets: Sequence[PolicyTarget], action: str, valid_s: int) -> str:
        """A token for the tasks of a plan; see ``About.plan``. Empty: tasks need none, or the server issues none."""
        if self._needs_tokens is None:
            await self.greet()
        try:
            return await self.about.plan(targets, action, valid_s) if self._needs_tokens else ""
        except UnsupportedError:
            return ""  # An earlier version: tasks present what their environment names.

    def use_line(self, calls: LineCalls) -> None:
        """Make calls over connections to the store if the server accepts them there. ``calls`` is borrowed."""
        self._line = calls

    async def greet(self) -> None:
        """Check which server answers. Raises NotConnectedError, UnsupportedError (not a Penstock server)."""
        try:
            calls = (await self.about.info()).calls
            self._line_taken, self._needs_tokens = CALLS_CAPABILITY in calls, TOKENS_CAPABILITY in calls
        except UnsupportedError as error:
            address = self._connection.address
            raise UnsupportedError("the server at this address is not a Penstock server", address=address) from error

    async def _send(self, call: Call, request: bytes) -> bytes:
        if call.name in MADE_ONCE:
            await self.about.info()  # Waits until the server is there.
            return await self._connection.call(call.name, request, repeat=False)
        if self._line is None or call.name not in OVER_THE_WIRE:
            return await self._connection.call(call.name, request)
        if self._line_taken is None:
            await self.greet()
        if self._line_taken:
            try:
                return await self._line.call(call.name, request)
            except (NotConnectedError, UnsupportedError):
                # Over gRPC it is repeated until the server is up again, or reports what is wrong.
                self._line_taken = None
        return await self._connection.call(call.name, request)


@asynccontextmanager
async def dial_controller(
    address: str,
    *,
    patience_s: float = PATIENCE_S,
    dial_s: float | None = None,
    call_s: float = CALL_S,
    security: DialSecurity = PLAIN,
) -> AsyncIterator[RemoteController]:
    """Connect to the controller at ``host:port``, with or without a scheme in front. The port defaults to 9090.

    Args:
        patience_s: How long a call is retried while no server answers, in seconds. It covers a restart, and a server
        that starts a little later. dial_s: The same for the very first call; default ``patience_s``. If it is given and
        the first connection is
            refused, the error comes after at most ``REFUSED_S``, because people prefer to know at once.
        call_s: How long a server may take for one call, in seconds. security: From ``security_for`` the same address.
    Raises:
        InvalidArgumentError: The address is invalid. TlsError: the server is not the one that it claims to be, or only
            one side speaks TLS.
        UnsupportedError: The server there is not a Penstock server.
        UnauthenticatedError: The credentials are missing or wrong.
        NotConnectedError: No server answers there.
    """
    first_s = patience_s if dial_s is None else dial_s
    if dial_s is not None:
        await check_listens(address, wait_s=min(dial_s, REFUSED_S), security=security)
    async with GrpcConnection(address, patience_s=first_s, call_s=call_s, security=security) as connection:
        controller = RemoteController(connection)
        await controller.greet()
        connection.patience_s = patience_s
        yield controller
