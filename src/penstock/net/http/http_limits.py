"""Bounds of the HTTP port."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RestLimits:
    """Limits for clients of the HTTP port, in bytes and seconds."""

    body_bytes: int = 1 << 20
    bodies_bytes: int = 16 << 20
    """Bodies of all requests in progress. Beyond this, a request that has sent more than 64 KiB is answered 503."""
    drained_bytes: int = 8 << 20
    """How much of a body that is too large is read and discarded, so that its sender reads the answer."""
    head_bytes: int = 16 << 10
    """Request line and headers together."""
    head_s: float = 3.0
    """From the connection, or the first byte of a later request, to the last header."""
    body_s: float = 20.0
    request_s: float = 60.0
    """From the last header to the answer."""
    reply_s: float = 30.0
    """How long a reply may wait for its peer to read before the connection is closed."""
    idle_s: int = 30
    """Between two requests of one connection."""
    connections: int = 256
    """At the limit, a new connection replaces the one whose request has been incomplete for longest. If there is none,
    its request is answered with 503. At twice the limit, the new connection is closed at once."""
    drain_s: int = 2
    """How long closing waits for requests in flight."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("limit is not positive", limit=name, value=getattr(self, name))
