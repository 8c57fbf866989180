"""Bounds of a wire server."""

from __future__ import annotations

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WireLimits:
    """How much of the server connections may use. At a bound a socket is not read further; nothing is lost."""

    held_bytes: int = 16 << 20
    """Received and unanswered bytes of one connection."""
    held_bytes_total: int = 256 << 20
    """The same of all connections together."""
    requests: int = 64
    """Requests of one connection served at the same time, except appends and waiting reads."""
    parked_reads: int = 4096
    """Reads of one connection that wait at a tail. Further reads are answered at once, with an empty reply if there is
    no data."""
    reading: int = 8
    """Reads of one connection that gather data at the same time. This bounds the replies that nobody reads."""
    writers: int = 16_384
    """Writers set up on one connection."""
    writers_total: int = 65_536
    """The same of all connections together; each takes a kilobyte."""
    connections: int = 4096
    write_buffer_bytes: int = 4 << 20
    """Bytes of replies that may wait for a slow peer before its socket is no longer read."""
    replies_bytes: int = 16 << 20
    """Data being sent to peers that are slow to read it, over all connections: the more such peers, the smaller the
    buffer and the reads of each."""
    arena_bytes: int = 256 << 20
    """Receive memory that is kept and recycled."""
    receiving_bytes: int = 64 << 20
    """Bytes of incomplete frames of all connections together. Above half of it, the rest of a large frame needs a turn
    (``core.segments.receive_turns``): fast connections share it, and one connection at a time may exceed it."""
    hello_s: float = 3.0
    """From the connection to its first frame. A server full of connections closes the oldest silent one."""
    frame_s: float = 120.0
    """From the first byte of a frame to its last: 16 MiB at 1.2 Mbit/s."""
    frame_crowded_s: float = 10.0
    """The same while others wait for receive memory."""
    turn_s: float = 0.25
    """Length of a turn while others wait for receive memory. A connection that needs more counts as slow, and takes
    turns with the other slow ones. One that is silent for four turns, or sends less than 64 KiB in one, is closed if
    others need memory."""
    sweep_s: float = 1.0
    """How often connections are checked: late ones are closed, and quiet ones release their memory."""
    errors_per_s: int = 20
    """Connections that are closed at once for breaking the protocol. Further ones are kept for ``penalty_s`` without
    being read. This bounds the cost of a peer that sends garbage and reconnects."""
    penalty_s: float = 2.0
    throttle_pause_s: float = 0.02
    """Pause before a request that the store throttled is retried; its bytes stay counted meanwhile."""
    throttle_s: float = 20.0
    """How long a request other than an append is retried before its connection is closed."""
    drain_s: float = 5.0
    """How long closing waits for appends and requests in flight, and for peers to collect their replies."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidArgumentError("limit is not positive", limit=name, value=getattr(self, name))
