"""The end of background tasks whose cleanup may wait for a storage that hangs."""

from __future__ import annotations

import asyncio

_AGAIN_S = 0.5  # between further attempts to cancel
_TRIES = 10  # one for each wait of a cleanup


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel the task and wait for its end, for some seconds. A cleanup that waits is cancelled again."""
    for _ in range(_TRIES):
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=_AGAIN_S)
        if done:
            if not task.cancelled():
                task.exception()  # its owner has seen what it did
            return
