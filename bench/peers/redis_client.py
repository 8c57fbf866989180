"""Redis Streams by ``redis``: ``python -m bench.peers.redis_client ADDRESS``. Each partition is a stream of its own."""

from __future__ import annotations

import sys
import threading
import time
import zlib

import redis

from bench.peers.worker import check, lag_us, paced, payloads, routing_keys, serve, stamp

PIPELINE = 1000


class RedisClient:
    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.client = redis.Redis(host=host, port=int(port))

    def first(self) -> None:
        self.client.xadd("first", {"e": b"x" * 100})

    def create(self, topic: str, partitions: int) -> None:
        """Streams come with their first event."""

    def ingest(self, topic: str, size: int, count: int, keys: int, partitions: int) -> float:
        events = payloads(size, count)
        place = (
            {key: f"{topic}:{zlib.crc32(key.encode()) % partitions}" for key in set(routing_keys(keys, keys))}
            if keys
            else {}
        )
        names = [place[key] for key in routing_keys(keys, count)] if keys else [f"{topic}:0"] * count
        started = time.perf_counter()
        for start in range(0, count, PIPELINE):
            pipe = self.client.pipeline(transaction=False)
            for name, event in zip(names[start : start + PIPELINE], events[start : start + PIPELINE], strict=True):
                pipe.xadd(name, {b"e": event})
            pipe.execute()
        return time.perf_counter() - started

    def single(self, topic: str, count: int) -> list[float]:
        event, times = payloads(100, 1)[0], []
        for _ in range(count):
            started = time.perf_counter()
            self.client.xadd(f"{topic}:0", {b"e": event})
            times.append((time.perf_counter() - started) * 1e6)
        return times

    def tail(self, topic: str, count: int, rate: int) -> list[float]:
        lags: list[float] = []
        name = f"{topic}:0"
        self.client.xadd(name, {b"e": b"begin"})

        def receive() -> None:
            last: bytes | str = "$"
            while len(lags) < count:
                answer = self.client.xread({name: last}, block=5000)
                if not answer:
                    return
                for key, fields in answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0]:
                    lags.append(lag_us(fields[b"e"]))
                    last = key

        thread = threading.Thread(target=receive)
        thread.start()
        time.sleep(0.3)
        for _ in paced(count, rate):
            self.client.xadd(name, {b"e": stamp()})
        thread.join()
        if len(lags) != count:
            raise RuntimeError(f"tail is short of events. wanted={count} got={len(lags)}")
        return lags

    def read(self, topic: str, count: int) -> float:
        events: list[bytes] = []
        last = "-"
        started = time.perf_counter()
        while len(events) < count:
            found = self.client.xrange(f"{topic}:0", min=last, count=10_000)
            if not found:
                break
            events.extend([fields[b"e"] for _, fields in found])
            last = f"({found[-1][0].decode()}"
        took = time.perf_counter() - started
        check(events, count)
        return took

    def delete(self, topic: str) -> None:
        for name in self.client.scan_iter(f"{topic}:*", count=1000):
            self.client.delete(name)


if __name__ == "__main__":
    serve(RedisClient(sys.argv[1]))
