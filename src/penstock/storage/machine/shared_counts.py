"""Counts that the worker processes of one server share, in memory that all of them map.

Each stream with a limit has a row, with a pair of numbers for each worker: bytes and events. A worker writes only its
own pair. It holds the row's lock while it decides. That is a kernel record lock, so it is released if the process dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile

from penstock.model.errors import InternalError, StorageFullError

_PAIR = 2  # words of a worker's counts of one stream
_WORD_BYTES = 8
_ROWS = 4096
_TRIES = 200  # attempts at a lock that another process holds


class CountsMemory:
    """The memory and the row of each stream, owned by the process that starts the workers."""

    def __init__(self, workers: int) -> None:
        self._row_bytes = workers * _PAIR * _WORD_BYTES
        if hasattr(os, "memfd_create"):
            self._descriptor = os.memfd_create("penstock-limits")
        else:
            with tempfile.TemporaryFile() as file:
                self._descriptor = os.dup(file.fileno())
        self._rows = 0
        self._free: list[int] = []
        self._by_stream: dict[str, int] = {}

    def fileno(self) -> int:
        """The descriptor that workers inherit. This object still owns it."""
        return self._descriptor

    def row(self, stream: str) -> int:
        """The row of the stream; a new row is all zeros. Raises StorageFullError."""
        row = self._by_stream.get(stream)
        if row is None:
            if not self._free:
                self._grow()
            row = self._free.pop()
            os.pwrite(self._descriptor, bytes(self._row_bytes), row * self._row_bytes)
            self._by_stream[stream] = row
        return row

    def release(self, stream: str) -> None:
        """The stream has no limit any more, and no worker counts for it: reuse its row."""
        row = self._by_stream.pop(stream, None)
        if row is not None:
            self._free.append(row)

    def _grow(self) -> None:
        rows = max(_ROWS, 2 * self._rows)
        try:
            # Write the pages, do not only extend the file: a page without memory would kill the worker that touches it.
            os.pwrite(self._descriptor, bytes((rows - self._rows) * self._row_bytes), self._rows * self._row_bytes)
        except OSError as error:
            raise StorageFullError("there is no memory for more limits", streams=len(self._by_stream)) from error
        self._free.extend(range(rows - 1, self._rows - 1, -1))
        self._rows = rows

    def close(self) -> None:
        os.close(self._descriptor)


class WorkerCounts:
    """Implements ``ports.shared_counts.SharedCounts`` for one worker. The descriptor is borrowed."""

    def __init__(self, descriptor: int, *, worker: int, workers: int) -> None:
        if not 0 <= worker < workers:
            raise InternalError("no such worker", worker=worker, workers=workers)
        self.descriptor = descriptor
        self._worker = worker
        self._workers = workers
        self._rows: dict[str, int] = {}
        self._words: memoryview | None = None
        self._maps: list[mmap.mmap] = []
        """All maps so far, each twice as large as the one before. They are kept because a collected map closes a copy of
        the descriptor, and then the kernel drops all locks that this process holds on the memory."""

    def assign(self, stream: str, row: int | None) -> None:
        """Set the row of the stream, as assigned by the owner of the memory; None: the stream has no limit any more."""
        if row is None:
            self._rows.pop(stream, None)
        else:
            self._rows[stream] = row

    def of(self, stream: str) -> RowCounts | None:
        row = self._rows.get(stream)
        if row is None:
            return None
        words = self._workers * _PAIR
        return RowCounts(self.descriptor, row, self._mapped((row + 1) * words), row * words, words, self._worker)

    def _mapped(self, words: int) -> memoryview:
        if self._words is None or len(self._words) < words:
            # Views of the smaller map stay valid: they show the same memory.
            self._maps.append(mmap.mmap(self.descriptor, 0))
            self._words = memoryview(self._maps[-1]).cast("q")
            if len(self._words) < words:
                raise InternalError("counts lie behind the end of their memory", words=words)
        return self._words


class RowCounts:
    """Implements ``ports.shared_counts.StreamCounts``."""

    __slots__ = ("_descriptor", "_others", "_own", "_row", "_words")

    def __init__(self, descriptor: int, row: int, words: memoryview, first: int, count: int, worker: int) -> None:
        self._descriptor = descriptor
        self._row = row
        self._words = words
        self._own = first + _PAIR * worker
        self._others = [place for place in range(first, first + count, _PAIR) if place != self._own]

    def lock(self) -> bool:
        for _ in range(_TRIES):
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._row)
            except (BlockingIOError, PermissionError):
                continue
            return True
        return False

    def unlock(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._row)

    def others(self) -> tuple[int, int]:
        words = self._words
        size_bytes = events = 0
        for place in self._others:
            size_bytes += words[place]
            events += words[place + 1]
        return size_bytes, events

    def publish(self, size_bytes: int, events: int) -> None:
        self._words[self._own] = size_bytes
        self._words[self._own + 1] = events
