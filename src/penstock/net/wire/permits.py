"""The tokens of one connection: every command is checked against its own, and writers end with theirs."""

from __future__ import annotations

from asyncio import AbstractEventLoop, BaseTransport, TimerHandle
from collections.abc import Callable
from typing import Any, Protocol

from penstock.codec.wire import commands as c
from penstock.codec.wire.frames import Command
from penstock.core.access.commands import WITHOUT_TOKEN, permits
from penstock.core.access.refusals import Reason, Refusal
from penstock.model.errors import PermissionDeniedError, UnauthenticatedError
from penstock.net.wire.wire_errors import plain_token
from penstock.ports.access.tokens import Delegated, TokenVerifier
from penstock.ports.telemetry import Telemetry

GRACE_S = 5.0
"""How long appends are taken after the token of their setup has expired: clients refresh it about then."""
AGAIN_S = 1.0
"""Until a setup is looked at again that was still in progress when its token expired."""
_LATE_S_MAX = 86_400.0
_READABLE_MAX = 64  # segments
_READABLE_CHARACTERS = 256  # a longer name is not kept


class Permits:
    """Checks commands, and ends writers by ``expire(writer, rid)``, which returns False while the writer is being set up.
    The verifier is borrowed."""

    def __init__(
        self,
        verifier: TokenVerifier,
        loop: AbstractEventLoop,
        telemetry: Telemetry,
        expire: Callable[[bytes, int], bool],
        refused: Callable[[Refusal], None] | None = None,
        peer_of: Callable[[], str] = str,
    ) -> None:
        """``peer_of`` returns the address of the peer; empty: it has none."""
        self.telemetry = telemetry
        self._peer_of = peer_of
        self._refused = refused
        self._verifier = verifier
        self._loop = loop
        self._expire = expire
        self._timers: dict[bytes, TimerHandle] = {}
        self._readable: dict[str, Delegated] = {}
        """By segment: the verified token that allowed its last read. The verifier still checks when each token expires."""

    def admit(self, command: Command) -> Command:
        """The command if its token allows it. A read comes back with the time at which its token ends in place of the
        token: it may wait for long. Raises UnauthenticatedError, PermissionDeniedError."""
        if type(command) in WITHOUT_TOKEN:
            return command
        token: str | None = getattr(command, "token", None)
        if token is None:
            raise UnauthenticatedError("this command has no token, so it needs a connection to the controller")
        found = self._verifier.verify(plain_token(token))
        if isinstance(command, c.ReadSegment):
            segment, offset, suggested_bytes, _, rid = command
            if self._readable.get(segment) is not found:
                self._check(command, found)
                self._note_readable(segment, found)
            return c.ReadSegment(segment, offset, suggested_bytes, str(found.expires_ms), rid)
        self._check(command, found)
        if isinstance(command, c.SetupAppend):
            self._watch(command, found.expires_ms)
        return command

    @staticmethod
    def _check(command: Command, found: Delegated) -> None:
        if not permits(command, found.on):
            raise PermissionDeniedError("the token does not allow this command", identity=found.subject)

    def _note_readable(self, segment: str, found: Delegated) -> None:
        if len(self._readable) >= _READABLE_MAX:
            self._readable.clear()
        if len(segment) <= _READABLE_CHARACTERS:
            self._readable[segment] = found

    def note(self, error: UnauthenticatedError | PermissionDeniedError, command: Command) -> None:
        """Report a refusal."""
        if self._refused is None:
            return
        reason = Reason.RIGHT if isinstance(error, PermissionDeniedError) else Reason.CREDENTIALS
        self._refused(
            Refusal(
                reason=Reason.EXPIRED if error.fields.get("expired") else reason,
                identity=str(error.fields.get("identity", "")),
                peer=self._peer_of(),
                via="wire",
                call=type(command).__name__,
            )
        )

    def check_in_time(self, command: c.ReadSegment) -> None:
        """Raises UnauthenticatedError: the token of the read, which ``admit`` returned, has expired since."""
        if self._verifier.now_ms() >= int(command.token):
            raise UnauthenticatedError("the token has expired", expired=True)

    def close(self) -> None:
        """Watch no writer any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _watch(self, command: c.SetupAppend, expires_ms: int) -> None:
        before = self._timers.pop(command.writer, None)
        if before is not None:
            before.cancel()
        left_s = min(_LATE_S_MAX, (expires_ms - self._verifier.now_ms()) / 1000 + GRACE_S)

        def end() -> None:
            if self._expire(command.writer, command.rid):
                self._timers.pop(command.writer, None)
            else:
                self._timers[command.writer] = self._loop.call_later(AGAIN_S, end)

        self._timers[command.writer] = self._loop.call_later(left_s, end)


class Shared(Protocol):
    """What the connections of a server share, as far as tokens need it. ``tokens``: None where none are needed."""

    tokens: TokenVerifier | None
    loop: AbstractEventLoop
    telemetry: Telemetry
    refused: Callable[[Refusal], None] | None


def permits_of(
    share: Shared, expire: Callable[[bytes, int], bool], transport: Callable[[], BaseTransport | None]
) -> Permits | None:
    """The check of a new connection; None where commands need no tokens."""
    if share.tokens is None:
        return None
    return Permits(share.tokens, share.loop, share.telemetry, expire, share.refused, lambda: address_of(transport()))


def address_of(transport: BaseTransport | None) -> str:
    """The peer's address without its port. Empty: there is none, as with a pair of sockets."""
    peer = None if transport is None else transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) and peer else ""


def admitted(permits: Permits, command: Command, refuse: Callable[[Any, Command], None]) -> Command | None:
    """The command if it may be served; None: it was refused."""
    try:
        return permits.admit(command)
    except (UnauthenticatedError, PermissionDeniedError) as error:
        permits.telemetry.add("refusals", 1, ("wire", type(error).__name__))
        permits.note(error, command)
        refuse(error, command)
        return None
