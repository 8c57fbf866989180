"""Calls that are made at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from penstock.model.errors import PenstockError, leaves

T = TypeVar("T")


async def together(calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all calls, in order. The first failure cancels the others, and is raised."""
    failure: PenstockError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except* PenstockError as failed:
        failure = next(leaves(failed))
    # Not from within: Python before 3.11.4 makes a group of what is raised there.
    if failure is not None:
        raise failure
    return [task.result() for task in tasks]
