"""Retries: which errors to retry, how long to wait between attempts, when to give up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.model.errors import FencedError, StorageFullError, UnavailableError
from penstock.ports.rng import Rng

RETRYABLE = (UnavailableError, FencedError)
"""Errors after which the same request may succeed: the request is valid, but its receiver is unavailable."""

PAUSE_MIN_S = 0.02
PAUSE_MAX_S = 2.0
DEADLINE_S = 60.0
FULL_S = 2.0
"""How long a call waits for space on a full disk. A disk that is full for longer usually stays full until a person
acts."""

T = TypeVar("T")


class Backoff:
    """Growing pauses with jitter: ``first_s``, doubled each time up to 2 s, each between half and the whole of that."""

    __slots__ = ("_first_s", "_rng", "_tries")

    def __init__(self, rng: Rng, *, first_s: float = PAUSE_MIN_S) -> None:
        self._rng = rng
        self._first_s = first_s
        self._tries = 0

    def reset(self) -> None:
        """Start over with the shortest pause: there was progress."""
        self._tries = 0

    def pause_s(self) -> float:
        """The next pause, in seconds."""
        pause = min(PAUSE_MAX_S, self._first_s * (1 << min(self._tries, 16)))
        self._tries += 1
        return pause * (0.5 + self._rng.random() / 2)

    async def sleep(self) -> None:
        await asyncio.sleep(self.pause_s())


async def retrying(
    call: Callable[[], Awaitable[T]], rng: Rng, *, deadline_s: float = DEADLINE_S, full_s: float = FULL_S
) -> T:
    """The answer of ``call``, repeated after a pause while its receiver is unavailable, for at most ``deadline_s``.

    ``full_s``: the limit if the disk is full, because only a person can fix that. Writers, which wait for space up to
    their deadline, and work in the background, for which no caller waits, use a longer one. ``call`` must be safe to
    repeat. Raises what ``call`` raised last.
    """
    backoff = Backoff(rng)
    began = asyncio.get_running_loop().time()
    while True:
        try:
            return await call()
        except RETRYABLE as error:
            patience_s = min(full_s, deadline_s) if isinstance(error, StorageFullError) else deadline_s
            pause_s = backoff.pause_s()
            if asyncio.get_running_loop().time() + pause_s > began + patience_s:
                raise
            await asyncio.sleep(pause_s)
