"""Blocking or CPU-bound work, away from the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Offload(Protocol):
    """Runs plain functions elsewhere (a bounded thread pool; in simulation: inline, at a random later instant).

    Cancelling the wait does not stop the function.
    """

    async def run(self, work: Callable[[], T]) -> T: ...
