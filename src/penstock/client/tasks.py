"""An owner for a varying number of tasks: none is lost, and every failure is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class TaskOwner:
    """Keeps its tasks until they end, reports failures at once, and cancels all tasks on ``close``."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}  # a dict: insertion order, unlike a set
        self._on_failure = on_failure
        self._on_end = self._ended  # one method for all tasks

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._on_end)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def close(self) -> None:
        """Cancel what still runs and wait for its end. Cancelled: the tasks are cancelled all the same."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
