"""Writers of one connection whose appends found no room in the store, and the pace of their retries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Waiting = TypeVar("Waiting")

_RETRIES_MIN = 32  # waiting appends retried in one turn
_RETRIES_MAX = 4096  # waiting appends retried in one turn


class Crowd(Generic[Waiting]):
    """Calls ``retry`` for the waiting items, longest wait first.

    Each turn retries twice as many items as the last one if there was room for all of those, else half as many. Ten
    thousand retries in every turn would leave the store no time to make room.
    """

    def __init__(
        self, after_pause: Callable[[Callable[[], None], int], None], retry: Callable[[Waiting], None]
    ) -> None:
        """``after_pause``: see ``AppendHost``."""
        self._after_pause = after_pause
        self._retry = retry
        self._waiting: deque[Waiting] = deque()
        self._retries = _RETRIES_MIN
        self._no_room = False
        self._retry_comes = False
        self._closed = False

    def add(self, item: Waiting) -> None:
        """Retry the item later: the store had no room for it."""
        self._no_room = True
        self._waiting.append(item)
        self._retry_soon()

    def close(self) -> None:
        """Call ``retry`` for all items in the next turn."""
        self._closed = True

    def _retry_soon(self) -> None:
        if not self._retry_comes:
            self._retry_comes = True
            self._after_pause(self._turn, 1)

    def _turn(self) -> None:
        self._retry_comes = False
        self._retries = max(_RETRIES_MIN, self._retries // 2) if self._no_room else min(_RETRIES_MAX, self._retries * 2)
        self._no_room = False
        for _ in range(len(self._waiting) if self._closed else min(self._retries, len(self._waiting))):
            self._retry(self._waiting.popleft())
        if self._waiting:
            self._retry_soon()
