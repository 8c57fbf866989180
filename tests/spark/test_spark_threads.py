"""What the threads of one driver share: the table of its connections."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.spark import connect

THREADS, CALLS = 6, 2000


class Held:
    """A link without a connection."""

    def __init__(self, *_given: object) -> None: ...

    def close(self) -> None: ...


def test_threads_open_their_links_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "Link", Held)
    monkeypatch.setattr(connect, "_links", {})

    def work(thread: int) -> None:
        for number in range(CALLS):
            connect.link(connect.dial, f"{thread}/{number % 3}")
        connect.close_links()

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # Threads switch at nearly every instruction.
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(work, range(THREADS)))
    finally:
        sys.setswitchinterval(before)
