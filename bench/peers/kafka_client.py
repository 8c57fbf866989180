"""Kafka by ``confluent-kafka``: ``python -m bench.peers.kafka_client ADDRESS {default|flush}``."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.worker import check, lag_us, paced, payloads, routing_keys, serve, stamp


class KafkaClient:
    """``flush``: topics with ``flush.messages=1``, the broker's way to sync what it acknowledges."""

    def __init__(self, address: str, flush: bool) -> None:
        self.address = address
        self.config = {"flush.messages": "1"} if flush else {}
        self.quiet = {"bootstrap.servers": address, "log_level": 0}
        self.admin = AdminClient(self.quiet)
        self.writers: dict[str, Producer] = {}
        self.failed: list[KafkaError] = []

    def producer(self, **more: Any) -> Producer:
        return Producer(self.quiet | {"acks": "all", "sticky.partitioning.linger.ms": 0} | more)

    def first(self) -> None:
        self.create("first", 1)
        producer = self.producer(**{"linger.ms": 0})
        producer.produce("first", b"x" * 100)
        if producer.flush(5):
            raise RuntimeError("the first event was not acknowledged")

    def create(self, topic: str, partitions: int) -> None:
        made = self.admin.create_topics([NewTopic(topic, partitions, 1, config=self.config)], request_timeout=20)
        try:
            made[topic].result(20)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            known = self.admin.list_topics(topic, timeout=10).topics[topic]
            led = [item for item in known.partitions.values() if item.leader >= 0 and item.error is None]
            if known.error is None and len(led) == partitions:
                return
            time.sleep(0.02)
        raise RuntimeError(f"topic is not there. topic={topic} error={known.error} led={len(led)} of {partitions}")

    def ingest(self, topic: str, size: int, count: int, keys: int, partitions: int) -> float:
        events = payloads(size, count)
        names = [key.encode() for key in routing_keys(keys, count)] if keys else [None] * count
        producer = self._writer(topic)
        produce = producer.produce
        started = time.perf_counter()
        for event, key in zip(events, names, strict=True):
            while True:
                try:
                    produce(topic, event, key)
                    break
                except BufferError:
                    producer.poll(0.01)
        left = producer.flush(60)
        took = time.perf_counter() - started
        if left or self.failed:
            raise RuntimeError(f"events were not acknowledged. topic={topic} left={left} failed={len(self.failed)}")
        return took

    def _writer(self, topic: str) -> Producer:
        """Kept as long as the topic: an application makes one, too."""
        if topic not in self.writers:
            self.writers[topic] = self.producer(
                **{
                    "linger.ms": 5,
                    "delivery.report.only.error": True,
                    "on_delivery": lambda error, _: self.failed.append(error),
                    "batch.size": 1 << 20,
                    "batch.num.messages": 100_000,
                    "queue.buffering.max.messages": 1_000_000,
                    "queue.buffering.max.kbytes": 1 << 20,
                }
            )
            self.writers[topic].list_topics(topic, timeout=10)
        return self.writers[topic]

    def single(self, topic: str, count: int) -> list[float]:
        event, times = payloads(100, 1)[0], []
        producer = self.producer(**{"linger.ms": 0})
        producer.list_topics(topic, timeout=10)
        for _ in range(count):
            started = time.perf_counter()
            producer.produce(topic, event)
            producer.flush()
            times.append((time.perf_counter() - started) * 1e6)
        return times

    def tail(self, topic: str, count: int, rate: int) -> list[float]:
        lags: list[float] = []
        consumer = Consumer(self.quiet | {"group.id": "tail", "fetch.wait.max.ms": 100, "fetch.min.bytes": 1})
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + count / rate + 20

        def receive() -> None:
            while len(lags) < count and time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    lags.append(lag_us(message.value()))

        thread = threading.Thread(target=receive)
        thread.start()
        time.sleep(0.5)
        producer = self.producer(**{"linger.ms": 0})
        producer.list_topics(topic, timeout=10)
        for _ in paced(count, rate):
            producer.produce(topic, stamp())
            producer.poll(0)
        producer.flush()
        thread.join()
        consumer.close()
        if len(lags) != count:
            raise RuntimeError(f"tail is short of events. wanted={count} got={len(lags)}")
        return lags

    def trickle(self, topic: str, count: int, rate: int) -> None:
        """Events that say when they were written, by the wall clock."""
        producer = self.producer(**{"linger.ms": 0})
        for _ in paced(count, rate):
            producer.produce(topic, repr(time.time()).encode())
            producer.poll(0)
        producer.flush()

    def watch(self, topic: str, count: int) -> list[tuple[float, float]]:
        """From the beginning: when each event was written, and milliseconds until it was here."""
        found: list[tuple[float, float]] = []
        consumer = Consumer(self.quiet | {"group.id": "watch", "fetch.wait.max.ms": 100})
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 80
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                sent = float(message.value())
                found.append((sent, (time.time() - sent) * 1000))
        consumer.close()
        return found

    def read(self, topic: str, count: int) -> float:
        consumer = Consumer(
            self.quiet | {"group.id": "read", "queued.min.messages": 500_000, "fetch.message.max.bytes": 8 << 20}
        )
        events: list[bytes] = []
        started = time.perf_counter()
        consumer.assign([TopicPartition(topic, 0, 0)])
        while len(events) < count:
            messages = consumer.consume(min(10_000, count - len(events)), 5)
            if not messages:
                break
            events.extend([message.value() for message in messages])
        took = time.perf_counter() - started
        consumer.close()
        check(events, count)
        return took

    def delete(self, topic: str) -> None:
        self.writers.pop(topic, None)
        self.admin.delete_topics([topic])[topic].result(20)


if __name__ == "__main__":
    serve(KafkaClient(sys.argv[1], sys.argv[2] == "flush"))
