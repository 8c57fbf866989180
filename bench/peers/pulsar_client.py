"""Pulsar by ``pulsar-client``: ``python -m bench.peers.pulsar_client ADDRESS HTTP_ADDRESS``."""

from __future__ import annotations

import sys
import threading
import time
import urllib.request
from typing import Any

import pulsar

from bench.peers.worker import check, lag_us, paced, payloads, routing_keys, serve, stamp


class PulsarClient:
    def __init__(self, address: str, http: str) -> None:
        self.address, self.http = address, http
        self.made: Any = None

    @property
    def client(self) -> Any:
        if self.made is None:
            self.made = pulsar.Client(
                f"pulsar://{self.address}",
                logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
                operation_timeout_seconds=20,
            )
        return self.made

    def ask(self, method: str, path: str, body: bytes | None = None) -> None:
        address = f"http://{self.http}/admin/v2/persistent/public/default/{path}"
        request = urllib.request.Request(
            address, data=body, method=method, headers={"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def first(self) -> None:
        with urllib.request.urlopen(f"http://{self.http}/admin/v2/persistent/public/default", timeout=2) as answer:
            answer.read()
        producer = self.client.create_producer("first")
        producer.send(b"x" * 100)
        producer.close()

    def create(self, topic: str, partitions: int) -> None:
        if partitions > 1:
            self.ask("PUT", f"{topic}/partitions", str(partitions).encode())
        else:
            self.ask("PUT", topic)

    def ingest(self, topic: str, size: int, count: int, keys: int, partitions: int) -> float:
        events = payloads(size, count)
        names = routing_keys(keys, count) if keys else [None] * count
        producer = self.client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_messages=10_000,
            batching_max_allowed_size_in_bytes=1 << 20,
            batching_max_publish_delay_ms=5,
            max_pending_messages=100_000,
            max_pending_messages_across_partitions=500_000,
            block_if_queue_full=True,
            batching_type=pulsar.BatchingType.KeyBased if keys else pulsar.BatchingType.Default,
        )
        failed: list[Any] = []

        def done(result: Any, _: Any) -> None:
            if result != pulsar.Result.Ok:
                failed.append(result)

        send = producer.send_async
        started = time.perf_counter()
        for event, key in zip(events, names, strict=True):
            send(event, done, partition_key=key)
        producer.flush()
        took = time.perf_counter() - started
        producer.close()
        if failed:
            raise RuntimeError(f"events were not acknowledged. topic={topic} first={failed[0]}")
        return took

    def single(self, topic: str, count: int) -> list[float]:
        event, times = payloads(100, 1)[0], []
        producer = self.client.create_producer(topic, batching_enabled=False)
        for _ in range(count):
            started = time.perf_counter()
            producer.send(event)
            times.append((time.perf_counter() - started) * 1e6)
        producer.close()
        return times

    def tail(self, topic: str, count: int, rate: int) -> list[float]:
        lags: list[float] = []
        reader = self.client.create_reader(topic, pulsar.MessageId.latest)

        def receive() -> None:
            while len(lags) < count:
                lags.append(lag_us(reader.read_next(10_000).data()))

        thread = threading.Thread(target=receive)
        thread.start()
        time.sleep(0.3)
        producer = self.client.create_producer(topic, batching_enabled=False)
        for _ in paced(count, rate):
            producer.send_async(stamp(), lambda *_: None)
        producer.flush()
        thread.join()
        producer.close()
        reader.close()
        if len(lags) != count:
            raise RuntimeError(f"tail is short of events. wanted={count} got={len(lags)}")
        return lags

    def read(self, topic: str, count: int) -> float:
        started = time.perf_counter()
        reader = self.client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=50_000)
        read_next = reader.read_next
        events = [read_next(10_000).data() for _ in range(count)]
        took = time.perf_counter() - started
        reader.close()
        check(events, count)
        return took

    def delete(self, topic: str) -> None:
        self.ask("DELETE", f"{topic}?force=true")


if __name__ == "__main__":
    serve(PulsarClient(sys.argv[1], sys.argv[2]))
