"""Background tasks with an owner: none is lost, and a failure is reported at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any

_log = logging.getLogger(__name__)

_CLEANUP_S = 2.0
"""How long the cleanup of a cancelled task may take, seconds: it closes files."""
_AGAIN_S, _AGAIN_MAX = (
    0.1,
    20,
)  # seconds between further attempts to cancel, and how many: one for each wait of a cleanup


class TaskOwner:
    """Runs background tasks. ``failed`` is called with the error of a failed task; its siblings continue."""

    def __init__(self, failed: Callable[[str, BaseException], None]) -> None:
        self._failed = failed
        self._tasks: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(name, error)

    def cancel_others(self) -> None:
        """Cancel all tasks but the calling one, without waiting for their end."""
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()

    async def cancel(self) -> None:
        """End all tasks, as ``end_tasks``."""
        await end_tasks(list(self._tasks))


async def finish(work: Coroutine[Any, Any, None]) -> None:
    """Run a cleanup to its end, even if the caller is cancelled meanwhile, once or several times: a second cancellation would
    otherwise skip the rest of it. The cleanup must be short. Raises its error, else the caller's cancellation."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


async def end_tasks(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait for their end. One whose cleanup waits, such as for a disk that hangs, is cancelled again, so
    that the wait ends too. If that does not help, it is left to the end of the event loop."""
    pending = {task for task in tasks if not task.done()}
    for pause_s in (_CLEANUP_S, *[_AGAIN_S] * _AGAIN_MAX):
        for task in pending:
            task.cancel()
        if pending:
            _, pending = await asyncio.wait(pending, timeout=pause_s)
    if pending:
        _log.error("work was left behind", extra={"tasks": [task.get_name() for task in pending]})
