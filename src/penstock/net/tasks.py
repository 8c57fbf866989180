"""Concurrent calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from penstock.model.errors import PenstockError, leaves

T = TypeVar("T")


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, in order. The first failure cancels the other calls and is raised."""
    failure: PenstockError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except* PenstockError as failed:
        failure = next(leaves(failed))
    # Raised outside the task group: before 3.11.4, Python wraps an error raised inside it in an exception group.
    if failure is not None:
        raise failure
    return [task.result() for task in tasks]
