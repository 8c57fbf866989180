"""What tests and benchmarks abuse a real server with: raw peers, what a process holds, and stores made large cheaply."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from penstock.codec.store import rows as records
from penstock.codec.wire import commands as c
from penstock.codec.wire import frames as wire
from penstock.core.segments.placement import container_of
from penstock.ports.files import Buffer
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

MIB = 1 << 20
_ROWS = 50_000


# --- what a process holds ---------------------------------------------------------------------------------


def memory_of(pid: int) -> dict[str, int]:
    """``VmRSS``, ``VmHWM`` (its peak), ``RssAnon``, ``RssFile``, ``Threads``: bytes, and a number. Linux only."""
    found: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in ("VmRSS", "VmHWM", "RssAnon", "RssFile"):
            found[name] = int(rest.split()[0]) << 10
        elif name == "Threads":
            found[name] = int(rest)
    return found


def rss_of(pid: int) -> int:
    """Resident bytes now."""
    return memory_of(pid)["VmRSS"]


def forget_peak(pid: int) -> None:
    """Let ``VmHWM`` begin anew."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_of(pid: int) -> int:
    """Most resident bytes since the start, or since ``forget_peak``."""
    return memory_of(pid)["VmHWM"]


def cpu_s_of(pid: int) -> float:
    """Seconds of CPU used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# --- raw peers --------------------------------------------------------------------------------------------


class Peer:
    """A client of the segment store's port that sends what it likes. Blocking; for one thread.

    Use it in a ``with`` block. What is awaited and does not come within ``timeout_s`` raises TimeoutError; a connection that
    the server closed raises EOFError.
    """

    def __init__(
        self, port: int, *, hello: bool = True, timeout_s: float = 30.0, receive_bytes: int | None = None
    ) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(timeout_s)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pending = bytearray()
        if hello:
            self.ask(c.Hello(wire.VERSION_HIGH, wire.VERSION_LOW))

    def send(self, *frames: wire.Command | Buffer) -> None:
        """Commands, or bytes that are sent as they are."""
        self.socket.sendall(
            b"".join(
                bytes(one) if isinstance(one, bytes | bytearray | memoryview) else wire.encode(one) for one in frames
            )
        )

    def receive(self) -> wire.Command:
        """The next frame. Raises EOFError once the server has closed."""
        code, size = wire.HEADER.unpack(self._exactly(wire.HEADER.size))
        return wire.decode(code, memoryview(self._exactly(size)))

    def _exactly(self, size: int) -> bytes:
        while len(self._pending) < size:
            try:
                data = self.socket.recv(1 << 18)
            except ConnectionError as error:
                raise EOFError from error
            if not data:
                raise EOFError
            self._pending += data
        taken = bytes(self._pending[:size])
        del self._pending[:size]
        return taken

    def ask(self, command: wire.Command | Buffer) -> wire.Command:
        self.send(command)
        return self.receive()

    def set_up(self, segment: str, writer: int) -> tuple[bytes, int]:
        """Bind writer id ``writer`` to the segment; the id as bytes, and its last event number there."""
        raw = UUID(int=writer).bytes
        answer = self.ask(c.SetupAppend(1, raw, segment, ""))
        if not isinstance(answer, c.AppendSetup):
            raise TypeError(f"not set up: {answer}")
        return raw, max(answer.last_number, -1)

    def is_closed(self, timeout_s: float) -> bool:
        """Whether the server closes the connection within that time, whatever it still sends."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            pass  # Reset: closed as well.
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def event(data: bytes) -> bytes:
    """An event as it lies in a segment."""
    return struct.pack(">ii", 0, len(data)) + data


def append(writer: bytes, data: Buffer, number: int, *, count: int = 1) -> bytes:
    """The frame of one append."""
    return b"".join(bytes(part) for part in wire.append_block_end_parts(writer, data, count, number, number))


def connections(port: int, count: int, *, first: bytes = b"") -> Iterator[socket.socket]:
    """So many connections to a port of loopback, with ``first`` sent on each."""
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port), timeout=10)
        if first:
            one.sendall(first)
        yield one


def closed(sockets: Sequence[socket.socket]) -> int:
    """How many of them the server has closed by now."""
    count = 0
    for one in sockets:
        one.setblocking(False)
        with suppress(BlockingIOError):
            try:
                while one.recv(1 << 16):
                    pass
            except ConnectionError:
                pass  # Reset: closed as well.
            count += 1
    return count


# --- large stores, made cheaply ---------------------------------------------------------------------------


def segment_name(index: int) -> str:
    """The name of a segment of ``make_segments``."""
    return f"many/stream-{index}/0.#epoch.0"


async def make_segments(data: Path, count: int, *, containers: int = 4) -> None:
    """Give the closed store in ``data`` so many empty segments, as its own checkpoints would have written them."""
    offload = ThreadOffload()
    try:
        keyvalue = await SqliteKeyValue.open(data / "metadata" / "store.db", offload)
        try:
            for start in range(0, count, _ROWS):
                rows: list[tuple[bytes, bytes]] = []
                for index in range(start, min(count, start + _ROWS)):
                    rows += _segment_rows(segment_name(index), index, containers)
                await keyvalue.commit(rows)
        finally:
            await keyvalue.close()
    finally:
        await offload.close()


def _segment_rows(name: str, index: int, containers: int) -> list[tuple[bytes, bytes]]:
    container = container_of(name, containers)
    # Ids of epoch 0, which no opening ever has.
    uid = index + 1
    record = records.SegmentRecord(
        name=name,
        kind=0,
        key_bytes=0,
        rollover_bytes=0,
        start_offset=0,
        length=0,
        sealed=False,
        modified_ms=1_700_000_000_000,
        event_count=0,
        freed_bytes=0,
        entry_count=0,
        kept_offset=0,
    )
    return [
        (records.name_key(container, name), records.number(uid)),
        (records.uid_key(records.TAG_SEGMENT, container, uid), records.encode_segment(record)),
    ]
