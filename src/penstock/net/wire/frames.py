"""Both ends of a connection: frames parsed in place where they were received, and frames written once per loop pass."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from penstock.codec.wire.frames import (
    BLOCK_END_LEAST_BYTES,
    FRAME_MAX_BYTES,
    HEADER,
    BlockRun,
    check_header,
    decode_block_ends,
)
from penstock.net.wire.arena import LARGE_BYTES, MEDIUM_BYTES, SMALL_BYTES, Arena, ArenaPool
from penstock.ports.files import Buffer

_ROOM_MIN = 2048  # bytes; with less free space after the bytes held, the buffer is replaced
_HEADER_BYTES, _header_at = HEADER.size, HEADER.unpack_from
_BUSY_BYTES = 64 << 10
_BIG_FRAME_BYTES = 256 << 10
_REWIND_BYTES = 16 << 10
_UNPACED = (b"cubic", b"reno")
_LOCAL = ("127.", "::1", "::ffff:127.")
_JOIN_BYTES = 64 << 10
_ENCRYPT_BYTES = 256 << 10
"""At least this much is encrypted in one call. Each call releases the interpreter's lock, and takes it back from threads
that run Python code; the copy is cheaper. Larger pieces leave the processor's cache."""


class FrameReceiver:
    """Splits the bytes that a socket delivers into frames, without copying.

    ``advance`` moves to the next whole frame and sets ``code``, ``at`` (where its payload begins in the arena) and
    ``payload`` (a view, which keeps its arena from being recycled). Received bytes are never overwritten, except by the
    owner through ``view``.
    """

    __slots__ = ("_allowed", "_arena", "_pool", "_wanted", "at", "code", "end", "payload", "start", "view")

    def __init__(self, pool: ArenaPool, allowed: frozenset[int]) -> None:
        self._pool = pool
        self._allowed = allowed
        self._wanted = SMALL_BYTES
        self._arena: Arena | None = None
        self.start = 0
        """Position in the arena of the bytes that are not parsed yet."""
        self.end = 0
        """Position in the arena where the received bytes end."""
        self.view = memoryview(b"")
        self.code = 0
        self.at = 0
        self.payload = self.view

    def buffer(self, most_bytes: int = LARGE_BYTES) -> memoryview:
        """The buffer to receive into next, of at most ``most_bytes``. A frame that would cross the arena's end is moved
        to a new arena that holds it whole."""
        start, end = self.start, self.end
        if start == end:
            if start > _REWIND_BYTES:
                self._rewind()
            if self.end + _ROOM_MIN > len(self.view):
                self._turn(0, _ROOM_MIN)
        else:
            held = end - start
            need = self._frame_bytes(held)
            if start + need > len(self.view) or len(self.view) - end < min(_ROOM_MIN, need):
                self._turn(held, max(need, held + _ROOM_MIN))
        end = self.end
        return self.view[end : end + most_bytes]

    def _frame_bytes(self, held: int) -> int:
        if held < HEADER.size:
            return _ROOM_MIN
        # A header that is not checked yet may claim any size.
        length = int(HEADER.unpack_from(self.view, self.start)[1])
        return HEADER.size + min(max(length, 0), FRAME_MAX_BYTES)

    def _rewind(self) -> None:
        """Reuse the arena from its beginning if no views are left. Small frames then always use its first pages, and a
        mostly idle connection holds no more than those."""
        if self._arena is not None and self._arena.size == SMALL_BYTES:
            self.view = self.payload = memoryview(b"")
            if self._arena.idle:
                self.start = self.end = 0
            self.view = self._arena.open()

    def _turn(self, held: int, need: int) -> None:
        if need > _BIG_FRAME_BYTES:
            # An arena holds four frames of this size, so that three of four are received without a move.
            wanted = LARGE_BYTES if 4 * need > MEDIUM_BYTES else MEDIUM_BYTES
        else:
            wanted = self._wanted
        arena = self._pool.acquire(need, wanted)
        view = arena.open()
        view[:held] = self.view[self.start : self.end]
        self.payload = view[:0]
        self._let_go()
        self._arena, self.view, self.start, self.end = arena, view, 0, held

    def received(self, size: int) -> None:
        """Count ``size`` bytes that were written at the beginning of ``buffer()``."""
        # A connection that fills its buffer gets a larger one; idle connections keep the smallest.
        self._wanted = MEDIUM_BYTES if size >= _BUSY_BYTES else self._wanted
        self.end += size

    def advance(self) -> bool:
        """Move to the next frame; False until it has arrived in full. Raises ProtocolError if its header is invalid."""
        view, start, end = self.view, self.start, self.end
        at = start + _HEADER_BYTES
        if at > end:
            return False
        code, length = _header_at(view, start)
        if code not in self._allowed or not 0 <= length <= FRAME_MAX_BYTES:
            check_header(code, length, self._allowed)
        behind = at + length
        if behind > end:
            return False
        self.start = behind
        self.code = code
        self.at = at
        self.payload = view[at:behind]
        return True

    def block_ends(self, writer: bytes, last_number: int, most_bytes: int, extra_bytes: int) -> BlockRun | None:
        """Take the AppendBlockEnds that follow this frame, as ``decode_block_ends`` does; None: there are none."""
        if self.end - self.start < BLOCK_END_LEAST_BYTES:
            return None
        run, self.start = decode_block_ends(
            self.view,
            self.start,
            self.end,
            writer=writer,
            last_number=last_number,
            most_bytes=most_bytes,
            extra_bytes=extra_bytes,
        )
        return run if run.data else None

    @property
    def partial_bytes(self) -> int:
        """Bytes received that do not make up a whole frame yet."""
        return self.end - self.start

    @property
    def missing_bytes(self) -> int:
        """Number of bytes that the incomplete frame still needs."""
        held = self.end - self.start
        return max(0, self._frame_bytes(held) - held) if held >= HEADER.size else 0

    @property
    def place(self) -> tuple[int, int]:
        """A value that differs for each frame that is awaited."""
        return id(self._arena), self.start

    def rest(self, place: tuple[int, int]) -> None:
        """Hold no memory while nothing arrives: return the arena if all is parsed and ``place`` has not changed since
        the last check."""
        if self._arena is not None and self.start == self.end and place == self.place:
            self.close()

    def close(self) -> None:
        """Return the arena to the pool. Views of it stay valid."""
        self.payload = memoryview(b"")
        self._let_go()
        self.start = self.end = 0

    def _let_go(self) -> None:
        self.view = memoryview(b"")
        if self._arena is not None:
            self._pool.retire(self._arena)
            self._arena = None


def tune(transport: asyncio.Transport) -> None:
    """Send to peers on this host without pacing: it halves the rate of large transfers over loopback.

    Does nothing if the transport has no socket or the system lacks the algorithm.
    """
    peer = transport.get_extra_info("peername")
    held = transport.get_extra_info("socket")
    if held is None or not isinstance(peer, tuple) or not str(peer[0]).startswith(_LOCAL):
        return
    for algorithm in _UNPACED:
        with suppress(OSError):  # missing or not allowed: the system's default stays, which is only slower
            held.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm)
            return


class Sending:
    """Flushes outboxes once per pass of the event loop, with one callback for all of them."""

    __slots__ = ("_due", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[Outbox] = []

    def add(self, outbox: Outbox) -> None:
        if not self._due:
            self._loop.call_soon(self._flush)
        self._due.append(outbox)

    def _flush(self) -> None:
        due, self._due = iter(self._due), []
        try:
            for outbox in due:
                outbox.flush()
        finally:
            for outbox in due:  # after an error: the others are not affected
                self.add(outbox)


class Outbox:
    """Frames to send, passed to the transport once per pass of the event loop; large parts as views.

    ``may_answer`` is asked before each write; None: always. If not, what is queued is dropped and the connection ends.
    """

    __slots__ = (
        "_encrypts",
        "_may_answer",
        "_parts",
        "_scheduled",
        "_sending",
        "_transport",
        "data_bytes",
    )

    def __init__(
        self,
        sending: Sending,
        transport: asyncio.Transport,
        may_answer: Callable[[], bool] | None = None,
    ) -> None:
        self._sending = sending
        self._transport = transport
        self._may_answer = may_answer
        self._encrypts = transport.get_extra_info("ssl_object") is not None
        self._parts: list[Buffer] = []
        self._scheduled = False
        self.data_bytes = 0
        """Bytes of frames queued in parts, which hold data, that are not written yet."""

    def put(self, frame: Buffer) -> None:
        self._parts.append(frame)
        if not self._scheduled:
            self._scheduled = True
            self._sending.add(self)

    def put_parts(self, parts: Iterable[Buffer], size_bytes: int) -> None:
        """Queue a frame that holds data, in parts of this size together."""
        self._parts += parts
        self.data_bytes += size_bytes
        if not self._scheduled:
            self._scheduled = True
            self._sending.add(self)

    def flush(self) -> None:
        """Write what is queued now. If the connection is closing, it is dropped: nobody will read it."""
        self._scheduled = False
        parts, self._parts = self._parts, []
        self.data_bytes = 0
        if not parts or self._transport.is_closing():
            return
        if self._may_answer is not None and not self._may_answer():
            self._transport.abort()
            return
        if len(parts) == 1:
            self._transport.write(parts[0])
        elif sum(map(len, parts)) <= _JOIN_BYTES:
            # One small copy is cheaper than a vector of tiny parts.
            self._transport.write(b"".join(parts))
        elif self._encrypts:
            for piece in _pieces(parts, _ENCRYPT_BYTES):
                self._transport.write(piece)
        else:
            self._transport.writelines(_gathered(parts))


def _pieces(parts: list[Buffer], least_bytes: int) -> Iterator[Buffer]:
    """The same bytes in pieces of at least that size, but for the last one."""
    run: list[Buffer] = []
    run_bytes = 0
    for part in parts:
        run.append(part)
        run_bytes += len(part)
        if run_bytes >= least_bytes:
            yield run[0] if len(run) == 1 else b"".join(run)
            run, run_bytes = [], 0
    if run:
        yield run[0] if len(run) == 1 else b"".join(run)


def _gathered(parts: list[Buffer]) -> list[Buffer]:
    """The same bytes with runs of small parts joined, so that large parts are sent without a copy in a short vector."""
    out: list[Buffer] = []
    run: list[Buffer] = []
    run_bytes = 0
    for part in parts:
        if len(part) >= _JOIN_BYTES // 8:
            if run:
                out.append(b"".join(run))
                run, run_bytes = [], 0
            out.append(part)
            continue
        run.append(part)
        run_bytes += len(part)
        if run_bytes >= 4 * _JOIN_BYTES:
            out.append(b"".join(run))
            run, run_bytes = [], 0
    if run:
        out.append(b"".join(run))
    return out
