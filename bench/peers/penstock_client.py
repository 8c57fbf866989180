"""Ours by ``penstock``: ``python -m bench.peers.penstock_client ADDRESS {write|arrow}``: one call each, or Arrow batches."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import penstock
from bench.peers.worker import check, lag_us, paced, payloads, routing_keys, serve, stamp

BATCH = 100_000


class PenstockClient:
    def __init__(self, address: str, arrow: bool) -> None:
        self.address = address
        self.arrow = arrow
        self.made: Any = None
        # Kept as long as the topic: an application makes one, too.
        self.writers: dict[str, Any] = {}

    @property
    def store(self) -> Any:
        if self.made is None:
            self.made = penstock.connect(self.address)
        return self.made

    def first(self) -> None:
        self.create("first", 1)
        with self.store.stream("bench/first").writer(linger_s=0) as writer:
            writer.write(b"x" * 100)
            writer.flush()

    def create(self, topic: str, partitions: int) -> None:
        self.store.create_stream(f"bench/{topic}", segments=partitions, create_scope=True, if_absent=True)

    def ingest(self, topic: str, size: int, count: int, keys: int, partitions: int) -> float:
        events = payloads(size, count)
        names = routing_keys(keys, count) if keys else None
        if topic not in self.writers:
            self.writers[topic] = self.store.stream(f"bench/{topic}").writer()
            self.writers[topic].open()
        writer = self.writers[topic]
        return self._arrow(writer, events, names) if self.arrow else self._calls(writer, events, names)

    @staticmethod
    def _calls(writer: Any, events: list[bytes], names: list[str] | None) -> float:
        write = writer.write
        started = time.perf_counter()
        if names:
            for event, key in zip(events, names, strict=True):
                write(event, key)
        else:
            for event in events:
                write(event)
        writer.flush()
        return time.perf_counter() - started

    @staticmethod
    def _arrow(writer: Any, events: list[bytes], names: list[str] | None) -> float:
        import pyarrow as pa

        batch, keys = pa.array(events, pa.binary()), pa.array(names) if names else None
        started = time.perf_counter()
        for start in range(0, len(batch), BATCH):
            if keys is None:
                writer.write_arrow(batch.slice(start, BATCH))
            else:
                writer.write_arrow(batch.slice(start, BATCH), keys.slice(start, BATCH))
        writer.flush()
        return time.perf_counter() - started

    def single(self, topic: str, count: int) -> list[float]:
        event, times = payloads(100, 1)[0], []
        with self.store.stream(f"bench/{topic}").writer(linger_s=0) as writer:
            for _ in range(count):
                started = time.perf_counter()
                writer.write(event)
                writer.flush()
                times.append((time.perf_counter() - started) * 1e6)
        return times

    def tail(self, topic: str, count: int, rate: int) -> list[float]:
        lags: list[float] = []
        stream = self.store.stream(f"bench/{topic}")

        def receive() -> None:
            with stream.reader(start="tail") as reader:
                for event in reader:
                    lags.append(lag_us(event.data))
                    if len(lags) == count:
                        return

        thread = threading.Thread(target=receive, daemon=True)
        thread.start()
        time.sleep(0.5)
        with stream.writer(linger_s=0) as writer:
            for _ in paced(count, rate):
                writer.write(stamp())
                writer.flush()
        thread.join(20)
        if len(lags) != count:
            raise RuntimeError(f"tail is short of events. wanted={count} got={len(lags)}")
        return lags

    def trickle(self, topic: str, count: int, rate: int) -> None:
        """Events that say when they were written, by the wall clock."""
        with self.store.stream(f"bench/{topic}").writer(linger_s=0) as writer:
            for _ in paced(count, rate):
                writer.write(repr(time.time()).encode())
                writer.flush()

    def watch(self, topic: str, count: int) -> list[tuple[float, float]]:
        """From the beginning: when each event was written, and milliseconds until it was here."""
        found: list[tuple[float, float]] = []
        with self.store.stream(f"bench/{topic}").reader() as reader:
            for event in reader:
                sent = float(event.data)
                found.append((sent, (time.time() - sent) * 1000))
                if len(found) == count:
                    break
        return found

    def read(self, topic: str, count: int) -> float:
        events: list[bytes] = []
        started = time.perf_counter()
        with self.store.stream(f"bench/{topic}").reader(until_tail=True) as reader:
            for block in reader.read_blocks():
                events.extend(block.events())
        took = time.perf_counter() - started
        check(events, count)
        return took

    def delete(self, topic: str) -> None:
        stream = self.store.stream(f"bench/{topic}")
        if topic in self.writers:
            self.writers.pop(topic).close()
        stream.seal()
        stream.delete()


if __name__ == "__main__":
    serve(PenstockClient(sys.argv[1], sys.argv[2] == "arrow"))
