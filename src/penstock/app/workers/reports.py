"""What the process of a controller answers to the processes that hold the data: reports, and removals by clients."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from penstock.app.access.refusal_audit import Record
from penstock.model.errors import UnavailableError
from penstock.net.workers.worker_segments import WorkerSegments

Guard = Callable[[str, int | None], AbstractAsyncContextManager[None]]


class WorkerRemovals:
    """Removals that a worker performs for its clients, by the number that the worker gave them. Each holds the guard."""

    def __init__(self) -> None:
        self._open: dict[int, AsyncExitStack] = {}

    def handlers(self, guard: Guard) -> Mapping[str, Callable[..., Awaitable[None]]]:
        """The calls for the worker: ``begin_removal(number, segment, offset)``, which raises what the guard raises, and
        ``end_removal(number)``, which the worker calls afterwards, even if the removal failed."""

        async def begin(number: int, segment: str, offset: int | None) -> None:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(guard(segment, offset))
                self._open[number] = stack.pop_all()

        return {"begin_removal": begin, "end_removal": self._end}

    async def _end(self, number: int) -> None:
        stack = self._open.pop(number, None)
        if stack is not None:
            await stack.aclose()

    async def end_all(self) -> None:
        """End all removals. Call it after the worker's process has ended."""
        for number in list(self._open):
            await self._end(number)


class WorkerReports:
    """The calls of workers. ``guard`` is called before their requests remove bytes, and ``record`` writes what their ports
    refuse; both are None until the controller is open."""

    def __init__(self, segments: WorkerSegments) -> None:
        self.guard: Guard | None = None
        self.record: Record | None = None
        self._segments = segments

    def handlers(self, removals: WorkerRemovals, worker: int) -> Mapping[str, Callable[..., Awaitable[Any]]]:
        """The calls of one worker, whose removals are kept in ``removals``."""
        return {
            "limits_reached": partial(self._segments.note_reached, worker=worker),
            "rates_reported": self._segments.note_rates,
            "refusals": self._record_refusals,
            **removals.handlers(self._removal),
        }

    async def _record_refusals(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Write what a worker's port has refused. Raises UnavailableError: the worker logs it then."""
        if self.record is None:
            raise UnavailableError("the controller is not open")
        await self.record(entries)

    def _removal(self, segment: str, offset: int | None) -> AbstractAsyncContextManager[None]:
        if self.guard is None:
            raise UnavailableError("the controller is not open")
        return self.guard(segment, offset)
