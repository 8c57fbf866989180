"""Calls that are held back until a test lets them go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Held:
    """Holds the first call of a coroutine method after it has looked, until ``release``; later calls pass."""

    def __init__(self, owner: object, method: str, *, matches: Callable[..., bool] = lambda *_: True) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        real = getattr(owner, method)

        async def call(*arguments, **named):
            hold = not self.reached.is_set() and matches(*arguments)
            if hold:
                self.reached.set()
                found = await real(*arguments, **named)
                await self.release.wait()
                return found
            return await real(*arguments, **named)

        setattr(owner, method, call)
