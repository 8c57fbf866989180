"""The stream shop/clicks of a cluster of processes: written without a pause, read, and who holds its containers."""

from __future__ import annotations

import threading
import time
from typing import Self

import penstock
from tests.cluster.cluster_processes import ClusterOfProcesses

KEYS = [f"key-{number}" for number in range(12)]
SEGMENTS = 6


class Writing:
    """Writes rounds of all keys through one writer until it is stopped, in a thread. ``longest_s``: for one round."""

    def __init__(self, address: str, first: int) -> None:
        self.next = first
        self.longest_s = 0.0
        self._address = address
        self._stop = threading.Event()
        self._failure: penstock.PenstockError | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with (
                penstock.connect(self._address) as store,
                store.stream("shop/clicks").writer(deadline_s=60.0) as writer,
            ):
                while not self._stop.is_set():
                    began = time.monotonic()
                    for key in KEYS:
                        writer.write(f"{key} {self.next}".encode(), key=key)
                    writer.flush()
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
                    self.next += 1
        except penstock.PenstockError as error:
            self._failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def rounds(self, count: int) -> None:
        """Wait for more rounds."""
        wanted = self.next + count
        while self.next < wanted and self._failure is None:
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def read(address: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {key: [] for key in KEYS}
    with penstock.connect(address) as store:
        for event in store.stream("shop/clicks").reader(until_tail=True):
            key, number = event.data.decode().split()
            found[key].append(int(number))
    return found


def holders(cluster: ClusterOfProcesses) -> set[str]:
    return {one["held"]["store"] for one in cluster.status()["containers"] if one["held"]}
