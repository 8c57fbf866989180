"""The asynchronous API of one stream of raw bytes, without events."""

from __future__ import annotations

import asyncio
import io
from collections import deque
from types import TracebackType
from uuid import UUID

from penstock.client.options import COUNT_MAX
from penstock.client.retry import DEADLINE_S, RETRYABLE, retrying
from penstock.core.segments.writer_memory import RENEW_AFTER_S, born_writer
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    InvalidArgumentError,
    SegmentNotFoundError,
    SegmentSealedError,
    StreamNotFoundError,
    StreamSealedError,
    WriterFencedError,
    WriterForgottenError,
)
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.clock import Clock
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.segments import NO_EVENT, READ_MAX_BYTES, Append, SegmentInfo
from penstock.ports.data.service import SegmentService
from penstock.ports.files import Buffer
from penstock.ports.rng import Rng

BLOCK_BYTES = 1 << 20
"""What is sent in one append. A write beyond it first sends what was buffered before."""

READ_AHEAD_BYTES = 256 << 10
PEEK_MAX_BYTES = 8 << 10
_FENCED_MAX = 3  # refusals of one block in a row, after which the writer gives up


def raw_bytes(data: object) -> bytes:
    """The bytes of any buffer, copied unless they are ``bytes``. Raises InvalidArgumentError for what is none, as text."""
    if isinstance(data, bytes):
        return data
    try:
        return bytes(memoryview(data))  # type: ignore[arg-type]
    except TypeError:
        raise InvalidArgumentError("data must be bytes", type=type(data).__name__) from None


class _Appender:
    """Appends blocks to one segment, each exactly once, in order and one at a time."""

    def __init__(self, segments: SegmentService, clock: Clock, rng: Rng) -> None:
        self._segments = segments
        self._clock = clock
        self._rng = rng
        self._writer: UUID | None = None
        self._number = NO_EVENT
        self._is_set_up = False
        self._unsure = False
        """The block that is being stored may be stored already."""
        self._used_at_s = 0.0

    def _renew(self, least_ms: int = 0) -> None:
        self._writer = born_writer(self._rng.uuid(), max(self._clock.now_ms(), least_ms))
        self._number = NO_EVENT
        self._is_set_up = False

    async def store(self, segment: str, block: bytes) -> None:
        """Append the block, unless an earlier call with the same block has done it. Raises what ``append`` raises."""
        now_s = asyncio.get_running_loop().time()
        if not self._unsure and (self._writer is None or now_s - self._used_at_s >= RENEW_AFTER_S):
            self._renew()
        self._used_at_s = now_s
        for refusals in range(_FENCED_MAX + 1):
            was_unsure = self._unsure
            try:
                if await self._attempt(segment, block):
                    return
            except WriterForgottenError as error:
                self._is_set_up = False
                if was_unsure:
                    raise
                self._unsure = False
                self._renew(least_ms=int(error.fields["floor_ms"]))
            except WriterFencedError:
                # An earlier request with this block has arrived meanwhile, or the store has forgotten the id.
                self._is_set_up, self._unsure = False, was_unsure
                if refusals == _FENCED_MAX:
                    raise
            except BaseException as error:
                self._is_set_up = False
                if not isinstance(error, (*RETRYABLE, asyncio.CancelledError)):
                    self._unsure = was_unsure  # refused
                raise

    async def _attempt(self, segment: str, block: bytes) -> bool:
        """Whether the block is stored."""
        if self._writer is None:
            return False
        number = 1 if self._number == NO_EVENT else self._number + 1
        if not self._is_set_up:
            stored = await self._segments.setup_append(segment, self._writer)
            self._is_set_up = True
            if self._unsure and stored == number:
                self._number, self._unsure = number, False
                return True
        self._unsure = True
        await self._segments.append(
            Append(segment=segment, writer=self._writer, data=block, event_number=number, previous=self._number)
        )
        self._number, self._unsure = number, False
        return True


class AsyncByteStream:
    """The bytes of a stream of one segment, as a file that is read anywhere and written at its end.

    It has what Pravega's ``ByteStreamClientFactory`` reads and writes: bytes without events. Offsets count from the
    first byte ever written; truncation does not change them.

    Reads begin at the head, and move the position. A write appends, and does not move the position. Written bytes are
    buffered; ``flush`` returns when they are durable. Whatever connection fails, each byte is stored once and in order;
    bytes of other writers may lie between two blocks of 1 MiB. A read sends what was written before.

    At the tail a read returns what there is, perhaps nothing. With ``follow`` it waits for more, until the stream is
    sealed. Making one does no I/O; the first call finds the segment, and raises StreamNotFoundError, or
    InvalidArgumentError for a stream with several segments or one that was scaled. Not for several tasks at once.
    """

    def __init__(
        self,
        stream: StreamName,
        segments: SegmentService,
        controller: ControlPlane,
        clock: Clock,
        rng: Rng,
        *,
        follow: bool = False,
    ) -> None:
        self._stream = stream
        self._segments = segments
        self._controller = controller
        self._rng = rng
        self._follow = follow
        self._segment = ""
        self._id = SegmentId(0)
        self._position = 0
        self._read_ahead = bytearray()
        self._pending: deque[bytes] = deque()
        self._pending_bytes = 0
        self._block = b""
        """What is being stored. It stays until it is known to be stored."""
        self._appender = _Appender(segments, clock, rng)
        self._sending = asyncio.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<ByteStream {self._stream}>"

    @property
    def stream(self) -> StreamName:
        """The stream that holds the bytes."""
        return self._stream

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    @property
    def pending_bytes(self) -> int:
        """Bytes that were written and are not known to be durable."""
        return self._pending_bytes + len(self._block)

    @property
    def ready_bytes(self) -> int:
        """Bytes after the position that can be read without the store."""
        return len(self._read_ahead)

    async def open(self) -> None:
        """Find the segment; every other call does it too. Repeating does nothing."""
        self.check_open()
        if self._segment:
            return
        cut = await retrying(lambda: self._controller.cuts.tail(self._stream), self._rng)
        head = await retrying(lambda: self._controller.cuts.head(self._stream), self._rng)
        if len(cut.positions) != 1 or set(head.positions) != set(cut.positions):
            raise InvalidArgumentError(
                "bytes are read and written in a stream of one segment that was never scaled",
                stream=str(self._stream),
                segments=len(cut.positions),
            )
        (self._id,) = cut.positions
        self._segment = segment_name(self._stream, self._id)
        try:
            self._position = (await self._info()).start_offset
        except BaseException:
            self._segment = ""
            raise

    def check_open(self) -> None:
        """Raise InvalidArgumentError once closed."""
        if self._closed:
            raise InvalidArgumentError("byte stream is closed", stream=str(self._stream))

    async def _info(self) -> SegmentInfo:
        try:
            return await retrying(lambda: self._segments.info(self._segment), self._rng)
        except SegmentNotFoundError as error:
            raise self._gone() from error

    def _gone(self) -> StreamNotFoundError:
        return StreamNotFoundError("no such stream", stream=str(self._stream))

    # --- reading ---

    async def read(self, size: int | None = -1) -> bytes:
        """``size`` bytes from the position on; fewer only at the tail or, with ``follow``, at the end of a sealed stream.

        Below 0 or None: all up to the tail as it is now or, with ``follow``, to the end of a sealed stream. Raises
        TruncatedError (the position lies before the head: ``seek`` to the error's ``start_offset``), and what ``flush``
        raises. Cancelled: nothing was read.
        """
        await self._begin_read()
        if size is None or size < 0:
            end = COUNT_MAX if self._follow else (await self._info()).length
            size = max(0, end - self._position)
        while len(self._read_ahead) < size and await self._fetch(size - len(self._read_ahead)):
            pass
        return self.take(size)

    async def read1(self, size: int = -1) -> bytes:
        """Up to ``size`` bytes, as many as are there after one request; below 0: any number. Otherwise as ``read``."""
        await self._begin_read()
        if size != 0 and not self._read_ahead:
            await self._fetch(READ_AHEAD_BYTES)
        return self.take(len(self._read_ahead) if size < 0 else size)

    async def peek(self, size: int = 0) -> bytes:
        """Some bytes after the position, which does not move; none at the tail. ``size`` has no effect."""
        await self._begin_read()
        if not self._read_ahead:
            await self._fetch(READ_AHEAD_BYTES)
        return self.peeked()

    def peeked(self) -> bytes:
        """What ``peek`` returns, of the bytes that are there."""
        return bytes(self._read_ahead[:PEEK_MAX_BYTES])

    def take(self, size: int) -> bytes:
        """Up to ``size`` of the bytes that are there; moves the position."""
        data = bytes(self._read_ahead[:size])
        del self._read_ahead[: len(data)]
        self._position += len(data)
        return data

    async def _begin_read(self) -> None:
        await self.open()
        if self.pending_bytes:
            await self.flush()

    async def _fetch(self, wanted: int) -> bool:
        """Read on after what is there. False: there is nothing more."""
        offset = self._position + len(self._read_ahead)
        size = min(READ_MAX_BYTES, max(READ_AHEAD_BYTES, wanted))
        try:
            found = await retrying(
                lambda: self._segments.read(self._segment, offset, size, wait=self._follow), self._rng
            )
        except SegmentNotFoundError as error:
            raise self._gone() from error
        before = len(self._read_ahead)
        for part in found.parts:
            self._read_ahead += part
        return len(self._read_ahead) > before

    async def tell(self) -> int:
        """The position: the offset of the byte that is read next."""
        await self.open()
        return self._position

    async def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position to ``offset`` and return it. ``whence`` as for files: 0 from the first byte ever written, 1 from
        the position, 2 from the tail, to which what was written before is sent first.

        Raises InvalidArgumentError (after the tail, or negative), and what ``flush`` raises.
        """
        for name, given in (("offset", offset), ("whence", whence)):
            if isinstance(given, bool) or not isinstance(given, int):
                raise InvalidArgumentError(f"{name} must be a whole number", **{name: repr(given)[:60]})
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END):
            raise InvalidArgumentError("whence must be 0, 1 or 2", whence=whence)
        await self._begin_read()
        ready_until = self._position + len(self._read_ahead)
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        if whence == io.SEEK_END or target > ready_until:
            length = (await self._info()).length
            target += length if whence == io.SEEK_END else 0
            if target > length:
                raise InvalidArgumentError("offset is past the tail", offset=target, tail=length)
        if target < 0:
            raise InvalidArgumentError("offset is negative", offset=target)
        if self._position <= target <= ready_until:
            self.take(target - self._position)
        else:
            self._read_ahead.clear()
            self._position = target
        return target

    async def head(self) -> int:
        """The offset of the first byte that was not truncated."""
        await self.open()
        return (await self._info()).start_offset

    async def tail(self) -> int:
        """The offset after the last durable byte, of all writers."""
        await self.open()
        return (await self._info()).length

    # --- writing ---

    async def write(self, data: Buffer) -> int:
        """Buffer the bytes for the end of the stream, and return their number. Beyond 1 MiB, earlier bytes are sent first.

        Raises InvalidArgumentError (text, or no bytes), and what ``flush`` raises. None of ``data`` was taken then.
        Cancelled: likewise.
        """
        taken = raw_bytes(data)
        if self.pending_bytes >= BLOCK_BYTES:
            await self.flush()
        return self.buffer(taken)

    def buffer(self, data: bytes) -> int:
        """Take the bytes without sending any."""
        self.check_open()
        if data:
            self._pending.append(data)
            self._pending_bytes += len(data)
        return len(data)

    async def flush(self) -> None:
        """Return once all that was written is durable.

        Raises StreamSealedError (also where the stream was scaled), StreamNotFoundError, QuotaExceededError, and after 60
        seconds without success StorageFullError, QuotaHeldError or another UnavailableError. What is not known to be
        durable stays buffered, and the next call sends it. Cancelled: likewise.
        """
        await self.open()
        async with self._sending:
            while self.pending_bytes:
                if not self._block:
                    self._block = self._next_block()
                try:
                    await retrying(self._store_block, self._rng, full_s=DEADLINE_S)
                except SegmentSealedError as error:
                    raise StreamSealedError("stream was sealed or scaled", stream=str(self._stream)) from error
                except SegmentNotFoundError as error:
                    raise self._gone() from error
                self._block = b""

    async def _store_block(self) -> None:
        await self._appender.store(self._segment, self._block)

    def _next_block(self) -> bytes:
        parts: list[bytes] = []
        left = BLOCK_BYTES
        while left and self._pending:
            part = self._pending.popleft()
            if len(part) > left:
                self._pending.appendleft(part[left:])
                part = part[:left]
            parts.append(part)
            left -= len(part)
        block = b"".join(parts)
        self._pending_bytes -= len(block)
        return block

    async def truncate_head(self, offset: int) -> None:
        """Delete the bytes before ``offset``; offsets stay as they are. Before the head it does nothing.

        Raises InvalidArgumentError (after the tail), RetentionHoldError, StreamSealedError, and what ``flush`` raises.
        """
        if isinstance(offset, bool) or not isinstance(offset, int):
            raise InvalidArgumentError("offset must be a whole number", offset=repr(offset)[:60])
        await self._begin_read()
        info = await self._info()
        if offset > info.length:
            raise InvalidArgumentError("offset is past the tail", offset=offset, tail=info.length)
        if offset > info.start_offset:
            await self._controller.streams.truncate(self._stream, StreamCut(self._stream, {self._id: offset}))
            if offset > self._position:
                self._read_ahead.clear()

    async def seal(self) -> None:
        """Flush, then seal the stream: it takes no more bytes, and readers that follow it end. Idempotent."""
        await self._begin_read()
        await self._controller.streams.seal(self._stream)

    async def close(self) -> None:
        """Flush and close. It is closed even if this raises, as ``flush`` does. Idempotent."""
        if self._closed:
            return
        try:
            if self.pending_bytes:
                await self.flush()
        finally:
            self._closed = True

    async def __aenter__(self) -> AsyncByteStream:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
