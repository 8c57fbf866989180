"""Pravega's official Python client, against Pravega or against ours: ``python -m bench.peers.pravega_client ADDRESS``."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pravega_client

from bench.peers.worker import check, lag_us, paced, payloads, routing_keys, serve, stamp

IN_FLIGHT = 20_000
# A reader that is garbage-collected while a read of it waits at the tail blocks the process for 30 s.
KEPT: list[Any] = []


class PravegaClient:
    def __init__(self, address: str) -> None:
        self.address = address
        self.made: Any = None
        self.groups = 0

    @property
    def manager(self) -> Any:
        if self.made is None:
            self.made = pravega_client.StreamManager(f"tcp://{self.address}")
        return self.made

    def first(self) -> None:
        self.manager.create_scope("bench")
        self.manager.create_stream("bench", "first", 1)
        writer = self.manager.create_writer("bench", "first")
        writer.write_event_bytes(b"x" * 100, routing_key="k")
        writer.flush()

    def create(self, topic: str, partitions: int) -> None:
        self.manager.create_stream("bench", topic, partitions)

    def ingest(self, topic: str, size: int, count: int, keys: int, partitions: int) -> float:
        events = payloads(size, count)
        names = routing_keys(keys or 1, count)
        writer = self.manager.create_writer("bench", topic, IN_FLIGHT)
        write = writer.write_event_bytes
        started = time.perf_counter()
        for event, key in zip(events, names, strict=True):
            write(event, routing_key=key)
        writer.flush()
        return time.perf_counter() - started

    def single(self, topic: str, count: int) -> list[float]:
        event, times = payloads(100, 1)[0], []
        writer = self.manager.create_writer("bench", topic)
        for _ in range(count):
            started = time.perf_counter()
            writer.write_event_bytes(event, routing_key="k")
            writer.flush()
            times.append((time.perf_counter() - started) * 1e6)
        return times

    async def _take(self, topic: str, count: int, events: list[Any], *, lags: bool) -> None:
        self.groups += 1
        group = self.manager.create_reader_group(f"g{self.groups}{topic}", "bench", topic)
        reader = group.create_reader("r")
        KEPT.append((group, reader))
        while len(events) < count:
            part = await asyncio.wait_for(reader.get_segment_slice_async(), 20)
            if lags:
                events.extend(lag_us(bytes(event.data())) for event in part)
            else:
                events.extend([bytes(event.data()) for event in part])
            reader.release_segment(part)
        reader.reader_offline()

    def tail(self, topic: str, count: int, rate: int) -> list[float]:
        lags: list[float] = []
        thread = threading.Thread(target=lambda: asyncio.run(self._take(topic, count, lags, lags=True)))
        thread.start()
        time.sleep(1.5)
        writer = self.manager.create_writer("bench", topic, 1000)
        for _ in paced(count, rate):
            writer.write_event_bytes(stamp(), routing_key="k")
        writer.flush()
        thread.join()
        if len(lags) < count:
            raise RuntimeError(f"tail is short of events. wanted={count} got={len(lags)}")
        return lags

    def read(self, topic: str, count: int) -> float:
        events: list[bytes] = []
        started = time.perf_counter()
        asyncio.run(self._take(topic, count, events, lags=False))
        took = time.perf_counter() - started
        check(events, count)
        return took

    def transactions(self, topic: str, count: int) -> float:
        """Begin, ten events, commit; one after the other."""
        writer = self.manager.create_transaction_writer("bench", topic, 1)
        event = payloads(100, 1)[0]
        started = time.perf_counter()
        for _ in range(count):
            transaction = writer.begin_txn()
            for _ in range(10):
                transaction.write_event_bytes(event, routing_key="k")
            transaction.commit()
        return time.perf_counter() - started

    def streams(self, prefix: str, count: int) -> float:
        """Create streams, one after the other."""
        started = time.perf_counter()
        for number in range(count):
            self.manager.create_stream("bench", f"{prefix}{number}", 1)
        return time.perf_counter() - started

    def delete(self, topic: str) -> None:
        self.manager.seal_stream("bench", topic)
        self.manager.delete_stream("bench", topic)


if __name__ == "__main__":
    serve(PravegaClient(sys.argv[1]))
