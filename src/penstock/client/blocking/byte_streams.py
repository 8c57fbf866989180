"""Streams of raw bytes of the blocking client: files, as Python's ``io`` has them."""

from __future__ import annotations

import io
from typing import Self

from penstock.client.blocking.derived import Blocking, blocking
from penstock.client.blocking.loop_thread import LoopThread
from penstock.client.byte_stream import BLOCK_BYTES, AsyncByteStream, raw_bytes
from penstock.model.names import StreamName
from penstock.ports.files import Buffer


class ByteStream(Blocking[AsyncByteStream], io.BufferedIOBase):
    """The bytes of a stream of one segment, as a file that is read anywhere and written at its end.

    It is an ``io.BufferedIOBase``: lines can be iterated, and ``io.TextIOWrapper``, ``shutil``, ``zipfile`` and
    ``pyarrow`` accept it. It has what Pravega's ``ByteStreamClientFactory`` reads and writes: bytes without events.
    Offsets count from the first byte ever written; truncation does not change them.

    Reads begin at the head, and move the position. A write appends, and does not move the position. Written bytes are
    buffered; ``flush`` returns when they are durable. Whatever connection fails, each byte is stored once and in order;
    bytes of other writers may lie between two blocks of 1 MiB. A read sends what was written before.

    At the tail a read returns what there is, perhaps nothing. With ``follow`` it waits for more, until the stream is
    sealed. Making one does no I/O; the first call finds the segment, and raises StreamNotFoundError, or
    InvalidArgumentError for a stream with several segments or one that was scaled. For one thread at a time.
    """

    def __init__(self, thread: LoopThread, inner: AsyncByteStream) -> None:
        super().__init__(thread, inner)
        self._owned = False

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def stream(self) -> StreamName:
        """The stream that holds the bytes."""
        return self._inner.stream

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._inner.closed

    def readable(self) -> bool:
        """True."""
        return True

    def writable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    open = blocking(AsyncByteStream.open)

    def read(self, size: int | None = -1) -> bytes:
        """As the asynchronous ``read``, with its ``size``."""
        inner = self._inner
        if size is not None and 0 <= size <= inner.ready_bytes and not inner.pending_bytes:
            self._check()
            return inner.take(size)
        return self._thread.call(inner.read(size))

    def read1(self, size: int = -1) -> bytes:
        """As the asynchronous ``read1``, with its ``size``."""
        return self._thread.call(self._inner.read1(size))

    def peek(self, size: int = 0) -> bytes:
        """Some bytes after the position, which does not move; none at the tail. ``size`` has no effect."""
        inner = self._inner
        if inner.ready_bytes and not inner.pending_bytes:
            self._check()
            return inner.peeked()
        return self._thread.call(inner.peek(size))

    tell = blocking(AsyncByteStream.tell)
    seek = blocking(AsyncByteStream.seek)
    head = blocking(AsyncByteStream.head)
    tail = blocking(AsyncByteStream.tail)

    def write(self, data: Buffer) -> int:  # type: ignore[override]  # any buffer, which 3.11 has no name for
        """Buffer the bytes for the end of the stream, and return their number. Beyond 1 MiB, earlier bytes are sent first.

        Raises InvalidArgumentError (text, or no bytes), and what ``flush`` raises. None of ``data`` was taken then.
        """
        inner = self._inner
        taken = raw_bytes(data)
        self._check()
        if not self._owned:
            self._thread.own(self, inner.close, inner.flush)
            self._owned = True
        if inner.pending_bytes >= BLOCK_BYTES:
            self._thread.call(inner.flush())
        return inner.buffer(taken)

    flush = blocking(AsyncByteStream.flush)
    truncate_head = blocking(AsyncByteStream.truncate_head)
    seal = blocking(AsyncByteStream.seal)

    def _check(self) -> None:
        self._inner.check_open()
        self._thread.check()

    def close(self) -> None:
        """Flush and close. It is closed even if this raises, as ``flush`` does. Idempotent."""
        if self._inner.closed or self._thread.is_inherited:
            return
        self._thread.disown(self)
        self._thread.call(self._inner.close())

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
