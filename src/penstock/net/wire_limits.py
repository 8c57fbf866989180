"""Bounds of a wire server."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """What connections may hold of the server. At a bound a socket is not read further; nothing is lost."""

    held_bytes: int = 16 << 20
    """Received and unanswered bytes of one connection."""
    held_bytes_total: int = 256 << 20
    """The same of all connections together."""
    requests: int = 64
    """Requests of one connection served at the same time, appends and waiting reads aside."""
    parked_reads: int = 4096
    """Reads of one connection that wait at a tail. Further ones are answered at once, empty if need be."""
    reading: int = 8
    """Reads of one connection that gather data at the same time: replies that no one collects stay few."""
    writers: int = 16_384
    """Writers set up on one connection."""
    connections: int = 4096
    write_buffer_bytes: int = 4 << 20
    """Replies that may wait for a slow peer before its socket is no longer read."""
    replies_bytes: int = 16 << 20
    """Read data on its way to peers that are slow to collect it, all connections together: the more of them, the smaller
    the buffer and the reads of each."""
    arena_bytes: int = 256 << 20
    """Receive memory that is kept and recycled."""
    throttle_pause_s: float = 0.02
    """Pause before what the store refused as too much for now is offered to it again; its bytes stay held meanwhile."""
    throttle_s: float = 20.0
    """How long a request, appends aside, is offered again before its connection is closed."""
    drain_s: float = 5.0
    """How long closing waits for appends and requests in flight, and for peers to collect their replies."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("limit is not positive", limit=name, value=getattr(self, name))
