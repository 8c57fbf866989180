"""The bare loop's server: receive into warm arenas, one vectored write and one ``fdatasync`` a pass, answer.

A frame is ``int32 kind, int32 length`` and a body. An append's body: 8 bytes of segment, 8 of its last event's number,
20 of padding so that its head is as long as the product's, then the data. The answer has 56 bytes, and covers all before.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from crc32c import crc32c

MIB = 1 << 20
ARENA_BYTES = 8 * MIB
ARENAS = 24
LOG_BYTES = 128 * MIB
FRAME = struct.Struct(">iiqq20x")  # kind, length, segment, number
HEAD = struct.Struct(">ii")
READ = struct.Struct(">iiqq")  # kind, length, offset, bytes
ANSWER = struct.Struct(">iiq40x")
RECORD = struct.Struct(">qqqq")
APPEND, TAIL, HISTORY = 1, 2, 3


class Arena:
    """Page-aligned memory, touched once; ``free`` is false while its bytes are on their way to a chunk."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, ARENA_BYTES)
        self.memory.write(bytes(ARENA_BYTES))
        self.view = memoryview(self.memory)


class BareServer:
    """One log, one chunk, any number of connections."""

    def __init__(self, directory: Path, *, tiers: bool, log_bytes: int = LOG_BYTES) -> None:
        self._log_bytes = log_bytes
        self.tiers = tiers
        self.arenas = deque(Arena() for _ in range(ARENAS))
        self._threads = ThreadPoolExecutor(2)
        self._tiering: deque[tuple[Future[None], Arena]] = deque()
        self._log_fd = os.open(directory / "log", os.O_RDWR | os.O_CREAT)
        for start in range(0, log_bytes, MIB):
            os.pwrite(self._log_fd, bytes(MIB), start)
        os.fsync(self._log_fd)
        self._at = self._epoch = 0
        self._chunk_fd = os.open(directory / "chunk", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        self._chunk_at = 0
        self.history_fd = os.open(directory / "history", os.O_RDONLY) if (directory / "history").exists() else -1
        self.dirty: dict[Any, None] = {}
        self.parked: list[BareConnection] = []
        self.lengths: dict[int, int] = {}
        self.scheduled = False

    def commit(self) -> None:
        """Make durable what came in this pass of the loop, then answer."""
        self.scheduled = False
        self._epoch += 1
        parts: list[Any] = []
        checks = 0
        for one in self.dirty:
            parts += one.spans
            checks = self._checksum(one.spans, checks)
        size = sum(map(len, parts))
        self._log([RECORD.pack(self._epoch, self._at, size, checks), *parts], size + RECORD.size)
        tail = None
        for one in self.dirty:
            self._answer(one)
            tail = one.spans[-1]
            one.spans.clear()
        self.dirty.clear()
        if self.parked and tail is not None:
            self._wake(tail)

    def _checksum(self, spans: list[memoryview], start: int) -> int:
        for span in spans:
            start = crc32c(span, start)
        return start

    def _log(self, parts: list[Any], size: int) -> None:
        if self._at + size > self._log_bytes:
            self._at = 0
        for start in range(0, len(parts), 1000):
            self._at += os.pwritev(self._log_fd, parts[start : start + 1000], self._at)
        os.fdatasync(self._log_fd)

    def _answer(self, one: BareConnection) -> None:
        one.transport.write(ANSWER.pack(APPEND, 48, one.number))

    def _wake(self, tail: memoryview) -> None:
        data = bytes(tail[FRAME.size :])
        reply = HEAD.pack(TAIL, len(data)) + data
        waiting, self.parked = self.parked, []
        for reader in waiting:
            reader.transport.write(reply)

    def retire(self, arena: Arena, used: int) -> None:
        """A full arena: to the chunk in a thread, then free again."""
        if self.tiers:
            at, size = self._chunk_at, used & ~4095
            self._chunk_at += size
            self._tiering.append((self._threads.submit(self._tier, arena, size, at), arena))
        else:
            self.arenas.append(arena)

    def next_arena(self) -> Arena:
        """A free arena. Waits for the oldest chunk write if there is none: nothing is received faster than it is tiered."""
        while self._tiering and (not self.arenas or self._tiering[0][0].done()):
            done, arena = self._tiering.popleft()
            done.result()
            self.arenas.append(arena)
        return self.arenas.popleft()

    def _tier(self, arena: Arena, size: int, at: int) -> None:
        os.pwrite(self._chunk_fd, arena.view[:size], at)
        os.fdatasync(self._chunk_fd)


class BareConnection(asyncio.BufferedProtocol):
    """Frames are parsed where they were received."""

    transport: Any

    def __init__(self, server: BareServer) -> None:
        self._server = server
        self._arena = server.arenas.popleft() if len(server.arenas) > 12 else None
        self._view = self._arena.view if self._arena else memoryview(bytearray(MIB))
        self._start = self._end = 0
        self.spans: list[memoryview] = []
        self.number = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, _: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        self._parse()
        if self._end > len(self._view) - 64 * 1024:
            self._next()

    def _parse(self) -> None:
        view, at, end, server = self._view, self._start, self._end, self._server
        began = at
        lengths = server.lengths
        while end - at >= HEAD.size:
            kind, length = HEAD.unpack_from(view, at)
            if kind != APPEND:
                if end - at < READ.size:
                    break
                self._read(kind, view, at)
                at += READ.size
                began = at
                continue
            if end - at < HEAD.size + length:
                break
            _, _, segment, self.number = FRAME.unpack_from(view, at)
            lengths[segment] = lengths.get(segment, 0) + length
            at += HEAD.size + length
        if at > began:
            self.spans.append(view[began:at])
            server.dirty[self] = None
            if not server.scheduled:
                server.scheduled = True
                asyncio.get_running_loop().call_soon(server.commit)
        self._start = at

    def _read(self, kind: int, view: memoryview, at: int) -> None:
        if kind == TAIL:
            self._server.parked.append(self)
            return
        _, _, offset, size = READ.unpack_from(view, at)
        block = os.pread(self._server.history_fd, size, offset)
        self.transport.write(HEAD.pack(HISTORY, len(block)))
        self.transport.write(block)

    def _next(self) -> None:
        """Go on in a new arena with what is left of the last frame. What was received is committed first."""
        if self._server.scheduled:
            self._server.commit()
        left = self._view[self._start : self._end]
        old, used = self._arena, self._end
        if old is None:
            self._view[: len(left)] = bytes(left)
        else:
            self._arena = self._server.next_arena()
            self._view = self._arena.view
            self._view[: len(left)] = left
            self._server.retire(old, used)
        self._start, self._end = 0, len(left)


async def _serve(directory: Path, line: Connection, *, tiers: bool) -> None:
    server = BareServer(directory, tiers=tiers)
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: BareConnection(server), "127.0.0.1", 0, backlog=2000)
    line.send(listening.sockets[0].getsockname()[1])
    ended = asyncio.Event()
    loop.add_reader(line.fileno(), ended.set)
    await ended.wait()


def serve(directory: Path, line: Connection, tiers: bool) -> None:
    """The process: sends its port, and ends with the line."""
    uvloop.run(_serve(directory, line, tiers=tiers))
