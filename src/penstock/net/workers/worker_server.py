"""A segment store, served to the process that started this one over a ``WorkerLink``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from penstock.model.errors import UnavailableError
from penstock.net.workers.link import Answer, Handler, Taker
from penstock.ports.data.limits import AppendLimit, LimitUse
from penstock.ports.data.segments import Append
from penstock.ports.data.service import LocalSegmentService

POSITIONAL = {
    "setup_append": (),
    "info": (),
    "seal": (),
    "release": (),
    "restore": (),
    "count_events": (),
    "delete": (),
    "create_transient": (),
    "merge": ("updates",),
    "get_attribute": (),
    "table_update": (),
    "table_remove": (),
    "table_get": (),
    "table_delta": (),
    "table_info": (),
    "chunk_ranges": (),
    "infos": (),
    "release_lease": (),
    "finish_lease_part": (),
    "grant_import": (),
    "adopt_chunks": (),
    "next_event_boundary": (),
    "spaces": (),
    "event_ranges": (),
    "erased_ranges": (),
    "wipe_log": (),
    "erase": ("erasure",),
    "changed_segments": (),
    "measure_rates": (),
    "segment_rates": (),
    "disk": (),
    "flush": (),
    "create_segment": ("rollover_bytes",),
    "read": ("wait",),
    "truncate": ("keep",),
    "update_attribute": ("expected",),
    "create_table": ("kind", "key_bytes"),
    "delete_table": ("must_be_empty",),
    "table_scan": ("after", "limit", "first", "last"),
    "lease_chunks": ("until_ms", "holder"),
}
"""Calls of ``SegmentService`` that are forwarded unchanged: arguments in order, keyword arguments last."""


class CountRows(Protocol):
    """Where the shared counts of the workers are stored."""

    def assign(self, stream: str, row: int | None) -> None:
        """Set the row of the stream's counts; None: it has no limit any more."""
        ...


class WorkerServer:
    """What a worker answers. ``serve`` gives it the store; until then its calls raise UnavailableError."""

    def __init__(self, rows: CountRows | None = None) -> None:
        self._store: LocalSegmentService | None = None
        self._rows = rows
        self._generations: dict[str, int] = {}
        self._limiting = asyncio.Lock()

    def serve(self, store: LocalSegmentService | None) -> None:
        self._store = store

    def handlers(self) -> Mapping[str, Handler]:
        found = {name: self._forward(name, named) for name, named in POSITIONAL.items()}
        found["limit_appends"] = self._limit
        found["lift_others"] = self._lift_others
        return found

    def takers(self) -> Mapping[str, Taker]:
        return {"append": self._append}

    @property
    def _open_store(self) -> LocalSegmentService:
        if self._store is None:
            raise UnavailableError("worker has not recovered yet")
        return self._store

    def _forward(self, name: str, named: Sequence[str]) -> Handler:
        async def call(*arguments: Any) -> Any:
            split = len(arguments) - len(named)
            keywords = dict(zip(named, arguments[split:], strict=True))
            return await getattr(self._open_store, name)(*arguments[:split], **keywords)

        return call

    def _append(self, answer: Answer, request: Append) -> None:
        store = self._store
        if store is None:
            answer(UnavailableError("worker has not recovered yet"))
            return
        store.submit_append(request, answer)

    async def _limit(
        self, limits: Sequence[AppendLimit], rows: Sequence[int | None], generation: int
    ) -> Sequence[tuple[int, int]]:
        """For each limit, the bytes and events of its segments here, queued appends included."""
        # One at a time: if two change the limit of one stream, the one sent last must win.
        async with self._limiting:
            for limit, row in zip(limits, rows, strict=True):
                if self._rows is not None and row is not None:
                    self._rows.assign(limit.stream, row)
                self._generations[limit.stream] = generation
                await self._open_store.limit_appends([limit])
                if row is None and limit.total_bytes is None and limit.total_events is None:
                    self._generations.pop(limit.stream, None)
                    if self._rows is not None:
                        self._rows.assign(limit.stream, None)
        store = self._open_store
        return [store.limit_used(limit.stream) for limit in limits] if isinstance(store, LimitUse) else ()

    async def _lift_others(self, limited: Sequence[str]) -> None:
        """Lift all limits but those of these streams."""
        async with self._limiting:
            kept = frozenset(limited)
            for stream in [one for one in self._generations if one not in kept]:
                await self._open_store.limit_appends([AppendLimit(stream=stream, segments=())])
                self._generations.pop(stream, None)

    async def report_limits(self, report: Callable[[Sequence[tuple[str, int]]], Any]) -> None:
        """Call ``report`` with the streams whose limits are met, and which limit it was. Runs until cancelled."""
        while True:
            names = await self._open_store.limits_reached()
            await report([(name, self._generations.get(name, 0)) for name in names])

    async def report_rates(self, report: Callable[[Sequence[str]], Any]) -> None:
        """Call ``report`` with the streams that have a hot or cold segment; runs until it is cancelled."""
        while True:
            await report(await self._open_store.rates_reported())
