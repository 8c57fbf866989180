"""Bounds of the HTTP port."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class RestLimits:
    """What a client of the HTTP port may cost. Bytes, seconds."""

    body_bytes: int = 1 << 20
    bodies_bytes: int = 16 << 20
    """Of all requests at a time. Beyond, one that has sent more than 64 KiB is answered 503."""
    drained_bytes: int = 8 << 20
    """Of a body that is refused for its size, so much is read and forgotten, that its sender can hear why."""
    head_bytes: int = 16 << 10
    """Request line and headers together."""
    head_s: float = 3.0
    """From the first byte, or the connection, to the last header."""
    body_s: float = 20.0
    request_s: float = 60.0
    """From the last header to the answer."""
    reply_s: float = 30.0
    """How long a reply may wait for its reader before the connection is cut."""
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
