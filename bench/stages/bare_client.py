"""The bare loop's client: blocking sockets, a window of bytes, no object for each event."""

from __future__ import annotations

import multiprocessing
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import mmh3
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.stages.bare_server import ANSWER, FRAME, HEAD, HISTORY, READ, TAIL, serve
from bench.stages.bare_server import APPEND as KIND

MIB = 1 << 20
BLOCK_BYTES = MIB
WINDOW_BLOCKS = 4
_EVENT = struct.Struct(">ii")


@contextmanager
def bare_server(directory: Path, *, tiers: bool) -> Iterator[tuple[int, int]]:
    """A server process on the directory; its pid and port."""
    directory.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(directory, theirs, tiers), daemon=True)
    process.start()
    theirs.close()  # else nobody hears that the process has died
    try:
        yield process.pid or 0, ours.recv()
    finally:
        ours.close()
        process.join(5)
        process.kill()


class BareWriter:
    """Writes blocks of framed events, ``WINDOW_BLOCKS`` ahead of the answers."""

    def __init__(self, port: int, segments: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._segments = segments
        self._routes: dict[str, int] = {}
        self._headers: dict[int, bytes] = {}
        self._number = self._acked = 0
        self._blocks: list[int] = []

    def close(self) -> None:
        self._socket.close()

    def write_arrow(self, events: Any, keys: Any) -> None:
        """Frame in order of segments, and send the run of each."""
        order, counts = self._route(keys)
        joined, bounds = self._frame(events.take(order))
        start = 0
        for segment, count in enumerate(counts):
            if count:
                self._send(segment, [joined[bounds[start] : bounds[start + count]]], count)
                start += count

    def _route(self, keys: Any) -> tuple[Any, list[int]]:
        coded = keys.dictionary_encode()
        of_key = np.fromiter((self._segment_of(key) for key in coded.dictionary.to_pylist()), np.uint16)
        segments = of_key[coded.indices.to_numpy()]
        order = np.argsort(segments, kind="stable")
        return pa.array(order), np.bincount(segments, minlength=self._segments).tolist()

    def _segment_of(self, key: str) -> int:
        found = self._routes.get(key)
        if found is None:
            found = mmh3.hash64(key.encode("utf-16-le"), 0, signed=False)[0] % self._segments
            self._routes[key] = found
        return found

    def _frame(self, events: Any) -> tuple[memoryview, Any]:
        offsets = np.frombuffer(events.buffers()[1], np.int32)[: len(events) + 1]
        heads = pa.py_buffer(np.diff(offsets).astype(">i8"))
        wrapped = pa.Array.from_buffers(pa.binary(8), len(events), [None, heads]).cast(pa.binary())
        joined = pc.binary_join_element_wise(wrapped, events, b"")
        bounds = np.frombuffer(joined.buffers()[1], np.int32)
        return memoryview(joined.buffers()[2]).cast("B"), bounds

    def write_many(self, events: Sequence[bytes], keys: Sequence[str]) -> None:
        """One list for each segment, joined into a block."""
        for segment, found in self._lists(events, keys).items():
            self._send(segment, [b"".join(found)], len(found) // 2)

    def _lists(self, events: Sequence[bytes], keys: Sequence[str]) -> dict[int, list[bytes]]:
        lists: dict[int, list[bytes]] = {}
        routes, headers = self._routes, self._headers
        for event, key in zip(events, keys, strict=True):
            segment = routes.get(key)
            if segment is None:
                segment = self._segment_of(key)
            size = len(event)
            header = headers.get(size)
            if header is None:
                header = headers[size] = _EVENT.pack(0, size)
            parts = lists.get(segment)
            if parts is None:
                parts = lists[segment] = []
            parts += (header, event)
        return lists

    def _send(self, segment: int, parts: Sequence[Any], count: int) -> None:
        whole = parts[0]
        for start in range(0, len(whole), BLOCK_BYTES):
            piece = whole[start : start + BLOCK_BYTES]
            self._number += count if start + BLOCK_BYTES >= len(whole) else 0
            head = FRAME.pack(KIND, FRAME.size - HEAD.size + len(piece), segment, self._number)
            if len(piece) < 4096:
                self._socket.sendall(head + piece)
            else:
                left = self._socket.sendmsg([head, piece]) - len(head)
                if left < len(piece):
                    self._socket.sendall(memoryview(piece)[left:])
            self._blocks.append(self._number)
        while len(self._blocks) > max(WINDOW_BLOCKS, 0 if len(whole) > 4096 else 2000):
            self._wait_for(self._blocks.pop(0))

    def _wait_for(self, number: int) -> None:
        while self._acked < number:
            data = self._socket.recv(ANSWER.size * 512)
            while len(data) % ANSWER.size:
                data += self._socket.recv(ANSWER.size)
            self._acked = struct.unpack_from(">q", data, len(data) - 48)[0]

    def flush(self) -> None:
        self._blocks.clear()
        self._wait_for(self._number)


class BareFrames:
    """One connection of many single frames, as ``bench.workers.Connection`` is of the product's."""

    def __init__(self, port: int, segment: int, events: int, window_bytes: int) -> None:
        data = bytes(100)
        body = FRAME.size - HEAD.size + len(data)
        self._size = FRAME.size + len(data)
        self._data = b"".join(FRAME.pack(KIND, body, segment, number) + data for number in range(1, events + 1))
        self._events, self._window = events, window_bytes
        self._sent = self._acked = 0
        self._answers = b""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def done(self) -> bool:
        return self._acked >= self._events

    def push(self) -> None:
        upto = min(len(self._data), self._acked * self._size + self._window)
        if upto > self._sent:
            self.socket.sendall(memoryview(self._data)[self._sent : upto])
            self._sent = upto

    def pull(self) -> None:
        self._answers += self.socket.recv(MIB)
        whole = len(self._answers) // ANSWER.size * ANSWER.size
        if whole:
            self._acked = struct.unpack_from(">q", self._answers, whole - 48)[0]
            self._answers = self._answers[whole:]


class BareTails:
    """Readers that wait for the next append, a connection each."""

    def __init__(self, port: int, readers: int) -> None:
        self._poll = select.epoll()
        self._sockets = {}
        self._request = READ.pack(TAIL, READ.size - HEAD.size, 0, 0)
        for _ in range(readers):
            one = socket.create_connection(("127.0.0.1", port))
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.sendall(self._request)
            self._poll.register(one.fileno(), select.EPOLLIN)
            self._sockets[one.fileno()] = one

    def round(self, write: Callable[[], None]) -> int:
        missing = set(self._sockets)
        thread = Thread(target=write)
        thread.start()
        deadline = time.perf_counter() + 60
        while missing and time.perf_counter() < deadline:
            for handle, _ in self._poll.poll(1):
                self._sockets[handle].recv(65536)
                self._sockets[handle].send(self._request)
                missing.discard(handle)
        thread.join()
        if missing:
            raise RuntimeError(f"readers without the event: {len(missing)}")
        return len(self._sockets)

    def close(self) -> None:
        for one in self._sockets.values():
            one.close()
        self._poll.close()


def read_history(port: int, size: int) -> int:
    """Read the server's file in steps of 1 MiB, two requests ahead; MiB read."""
    room = bytearray(MIB)
    with socket.create_connection(("127.0.0.1", port)) as one:
        requests = [READ.pack(HISTORY, READ.size - HEAD.size, at, MIB) for at in range(0, size, MIB)]
        one.sendall(b"".join(requests[:2]))
        for number in range(len(requests)):
            _, length = HEAD.unpack(one.recv(HEAD.size, socket.MSG_WAITALL))
            if one.recv_into(room, length, socket.MSG_WAITALL) != length:
                raise RuntimeError("the bare server closed the connection")
            if number + 2 < len(requests):
                one.sendall(requests[number + 2])
    return size // MIB
