"""What the machine can do: the yardsticks, measured in the same run as the work."""

from __future__ import annotations

import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from bench.measure import percentile

MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Microseconds, and bytes per second."""

    sync_p50_us: float
    sync_p99_us: float
    log_bytes_s: float
    loopback_bytes_s: float
    round_trip_us: float
    file_read_bytes_s: float
    cold_read_bytes_s: float


def _recycled(path: Path, size: int) -> int:
    """A file written once before, as the log's files are."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    for start in range(0, size, MIB):
        os.pwrite(handle, bytes(MIB), start)
    os.fsync(handle)
    return handle


def sync_us(directory: Path, count: int = 800) -> list[float]:
    """Write 4 KiB into a recycled file and ``fdatasync``."""
    handle = _recycled(directory / "sync", 16 * MIB)
    block, times = os.urandom(4096), []
    for number in range(count):
        started = time.perf_counter()
        os.pwrite(handle, block, number % 4096 * 4096)
        os.fdatasync(handle)
        times.append((time.perf_counter() - started) * 1e6)
    os.close(handle)
    return times


def log_rate(directory: Path, total: int = 256 * MIB) -> float:
    """Write 1 MiB into a recycled file and ``fdatasync``, again and again."""
    handle = _recycled(directory / "log", 64 * MIB)
    block = os.urandom(MIB)
    started = time.perf_counter()
    for number in range(total // MIB):
        os.pwrite(handle, block, number % 64 * MIB)
        os.fdatasync(handle)
    took = time.perf_counter() - started
    os.close(handle)
    return total / took


def loopback(total: int = 1 << 30) -> tuple[float, float]:
    """Throughput of 1 MiB sends in one process, and the round trip of 64 bytes in microseconds."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(2000):
                connection.sendall(connection.recv(64, socket.MSG_WAITALL))
            room = bytearray(MIB)
            left = total
            while left:
                left -= connection.recv_into(room)
            connection.sendall(b"x")

    thread = threading.Thread(target=serve)
    thread.start()
    with socket.create_connection(server.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        trips = []
        for _ in range(2000):
            started = time.perf_counter()
            client.sendall(bytes(64))
            client.recv(64, socket.MSG_WAITALL)
            trips.append((time.perf_counter() - started) * 1e6)
        block = bytes(MIB)
        started = time.perf_counter()
        for _ in range(total // MIB):
            client.sendall(block)
        client.recv(1)
        took = time.perf_counter() - started
    thread.join()
    server.close()
    return total / took, percentile(trips, 0.5)


def file_read(directory: Path, total: int = 256 * MIB) -> tuple[float, float]:
    """Read a file in 1 MiB steps: from the page cache, and from the disk."""
    path = directory / "read"
    path.write_bytes(os.urandom(MIB) * (total // MIB))
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    room = bytearray(MIB)

    def rate() -> float:
        started = time.perf_counter()
        for start in range(0, total, MIB):
            os.preadv(handle, [room], start)
        return total / (time.perf_counter() - started)

    rate()
    cached = rate()
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    cold = rate()
    os.close(handle)
    return cached, cold


def measure(directory: Path) -> Limits:
    directory.mkdir(parents=True, exist_ok=True)
    syncs = sync_us(directory)
    loop_rate, trip = loopback()
    cached, cold = file_read(directory)
    return Limits(
        sync_p50_us=percentile(syncs, 0.5),
        sync_p99_us=percentile(syncs, 0.99),
        log_bytes_s=log_rate(directory),
        loopback_bytes_s=loop_rate,
        round_trip_us=trip,
        file_read_bytes_s=cached,
        cold_read_bytes_s=cold,
    )
