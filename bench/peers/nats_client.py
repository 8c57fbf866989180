"""NATS JetStream by ``nats-py``: ``python -m bench.peers.nats_client ADDRESS``. Each partition is a stream of its own."""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from typing import Any

import nats
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType

from bench.peers.worker import check, lag_us, payloads, routing_keys, serve, stamp

PENDING = 4000


class NatsClient:
    """The client is asynchronous: each piece of work runs to its end on one loop."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.loop = asyncio.new_event_loop()
        self.nats: Any = None
        self.stream: Any = None

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    async def connect(self) -> None:
        if self.nats is None:
            self.nats = await nats.connect(f"nats://{self.address}", connect_timeout=1, allow_reconnect=False)
            self.stream = self.nats.jetstream(timeout=20)

    def first(self) -> None:
        async def go() -> None:
            await self.connect()
            await self.stream.add_stream(name="first-0", subjects=["first.0"], storage=StorageType.FILE)
            await self.stream.publish("first.0", b"x" * 100)

        self.run(go())

    def create(self, topic: str, partitions: int) -> None:
        async def go() -> None:
            await self.connect()
            for number in range(partitions):
                name = f"{topic}-{number}"
                await self.stream.add_stream(name=name, subjects=[f"{topic}.{number}"], storage=StorageType.FILE)

        self.run(go())

    def ingest(self, topic: str, size: int, count: int, keys: int, partitions: int) -> float:
        events = payloads(size, count)
        names = (
            [f"{topic}.{zlib.crc32(key.encode()) % partitions}" for key in routing_keys(keys, count)] if keys else []
        )

        async def go() -> float:
            started = time.perf_counter()
            for start in range(0, count, PENDING):
                upto = min(start + PENDING, count)
                waiting = [
                    await self.stream.publish_async(names[index] if names else f"{topic}.0", events[index])
                    for index in range(start, upto)
                ]
                await asyncio.gather(*waiting)
            return time.perf_counter() - started

        return float(self.run(go()))

    def single(self, topic: str, count: int) -> list[float]:
        async def go() -> list[float]:
            event, times = payloads(100, 1)[0], []
            for _ in range(count):
                started = time.perf_counter()
                await self.stream.publish(f"{topic}.0", event)
                times.append((time.perf_counter() - started) * 1e6)
            return times

        found: list[float] = self.run(go())
        return found

    def tail(self, topic: str, count: int, rate: int) -> list[float]:
        async def go() -> list[float]:
            lags: list[float] = []
            full = asyncio.Event()

            async def receive(message: Any) -> None:
                lags.append(lag_us(message.data))
                if len(lags) == count:
                    full.set()

            reader = await self.stream.subscribe(
                f"{topic}.0", cb=receive, ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
            )
            await asyncio.sleep(0.3)
            due = time.perf_counter()
            for _ in range(count):
                await self.stream.publish(f"{topic}.0", stamp())
                due += 1 / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await asyncio.wait_for(full.wait(), 20)
            await reader.unsubscribe()
            return lags

        found: list[float] = self.run(go())
        return found

    def read(self, topic: str, count: int) -> float:
        async def go() -> float:
            events: list[bytes] = []
            full = asyncio.Event()

            async def receive(message: Any) -> None:
                events.append(message.data)
                if len(events) == count:
                    full.set()

            started = time.perf_counter()
            reader = await self.stream.subscribe(
                f"{topic}.0",
                cb=receive,
                ordered_consumer=True,
                config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL, ack_policy=AckPolicy.NONE),
                pending_msgs_limit=-1,
                pending_bytes_limit=-1,
            )
            await asyncio.wait_for(full.wait(), 60)
            took = time.perf_counter() - started
            await reader.unsubscribe()
            check(events, count)
            return took

        return float(self.run(go()))

    def delete(self, topic: str) -> None:
        async def go() -> None:
            for item in await self.stream.streams_info():
                if item.config.name.rpartition("-")[0] == topic:
                    await self.stream.delete_stream(item.config.name)

        self.run(go())


if __name__ == "__main__":
    serve(NatsClient(sys.argv[1]))
