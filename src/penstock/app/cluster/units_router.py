"""The containers that are open in this process now, as one store for the server of the wire protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn
from uuid import UUID

from penstock.core.segments.append_rules import is_text
from penstock.core.segments.placement import container_of
from penstock.model.errors import ContainerOfflineError, InvalidArgumentError, InvalidNameError, PenstockError
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.chunks import ChunkRange
from penstock.ports.data.direct_appends import AppendsDone, FrameAppend
from penstock.ports.data.segments import Append, AppendDone, SegmentInfo, SegmentRead
from penstock.ports.data.service import ServedStore, Watch
from penstock.ports.data.tables import (
    TableCheck,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)

_ROUTES_MAX = 100_000
"""Names of segments whose container is remembered, some 20 MB. Beyond, all are forgotten: a name is found in 2 us."""


def _answer_some(
    done: AppendsDone, places: Sequence[int], some: Sequence[int], outcome: Sequence[int] | PenstockError
) -> None:
    """Answer some appends that were passed on together. ``places``: all of those, by their places in the whole call."""
    done([places[one] for one in some], outcome)


class UnitsRouter:
    """Implements ``ports.data.service.ServedStore``. A call for a container that is not open raises ContainerOfflineError:
    the client asks the controller again."""

    def __init__(self, containers: int) -> None:
        self._containers = containers
        self._units: dict[int, ServedStore] = {}
        self._routes: dict[str, ServedStore] = {}

    def open(self, number: int, unit: ServedStore) -> None:
        """Calls for the container go to the unit from now on."""
        self._units[number] = unit

    def close(self, number: int) -> None:
        """The container is not served any more. Does nothing if it was not."""
        self._units.pop(number, None)
        self._routes.clear()

    def container_of(self, name: str) -> int:
        """Raises InvalidNameError."""
        if not is_text(name):
            raise InvalidNameError("segment name is not text", segment=name.encode(errors="replace")[:200])
        return container_of(name, self._containers)

    def is_here(self, name: str) -> bool:
        """Whether the container of the segment is open. Raises InvalidNameError."""
        return self.container_of(name) in self._units

    def _unit(self, name: str) -> ServedStore:
        unit = self._routes.get(name)
        if unit is None:
            unit = self._units.get(self.container_of(name))
            if unit is None:
                self._refuse(name)
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            self._routes[name] = unit
        return unit

    def _refuse(self, name: str) -> NoReturn:
        raise ContainerOfflineError(
            "container of the segment is not open in this store", segment=name, container=self.container_of(name)
        )

    # --- reads and appends

    async def setup_append(self, name: str, writer: UUID) -> int:
        return await self._unit(name).setup_append(name, writer)

    def submit_append(self, request: Append, done: AppendDone) -> None:
        unit = self._routes.get(request.segment)
        if unit is None:
            try:
                unit = self._unit(request.segment)
            except PenstockError as error:
                # Never answer from within the call: the caller may not be ready yet.
                asyncio.get_running_loop().call_soon(done, error)
                return
        unit.submit_append(request, done)

    def submit_appends(self, appends: Sequence[FrameAppend], done: AppendsDone) -> None:
        places: dict[ServedStore, list[int]] = {}
        for place, append in enumerate(appends):
            try:
                unit = self._routes.get(append[0]) or self._unit(append[0])
            except PenstockError as error:
                asyncio.get_running_loop().call_soon(done, (place,), error)  # as above
                continue
            places.setdefault(unit, []).append(place)
        for unit, some in places.items():
            unit.submit_appends([appends[place] for place in some], partial(_answer_some, done, some))

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        return await self._unit(name).read(name, offset, max_bytes, wait=wait)

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        unit = self._routes.get(name)
        return None if unit is None else unit.read_now(name, offset, max_bytes)

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        unit = self._routes.get(name)
        return None if unit is None else unit.watch(name, offset, changed)

    async def next_event_boundary(self, name: str, offset: int) -> int:
        return await self._unit(name).next_event_boundary(name, offset)

    # --- segments

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        await self._unit(name).create_segment(name, rollover_bytes=rollover_bytes)

    async def info(self, name: str) -> SegmentInfo:
        return await self._unit(name).info(name)

    async def seal(self, name: str) -> int:
        return await self._unit(name).seal(name)

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        await self._unit(name).truncate(name, offset, keep=keep)

    async def delete(self, name: str) -> None:
        await self._unit(name).delete(name)

    async def create_transient(self, parent: str, writer: UUID) -> str:
        return await self._unit(parent).create_transient(parent, writer)

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        if self.container_of(source) != self.container_of(target):
            raise InvalidArgumentError(
                "source must be a transaction or transient segment of the target", target=target, source=source
            )
        return await self._unit(target).merge(target, source, updates=updates)

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        return await self._unit(name).get_attribute(name, attribute)

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool:
        return await self._unit(name).update_attribute(name, attribute, value, expected=expected)

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        return await self._unit(name).chunk_ranges(name, start, end)

    async def flush(self) -> None:
        """Flush all units that are open at the beginning, one after the other. Raises what the first that fails raises."""
        for unit in list(self._units.values()):
            await unit.flush()

    # --- tables

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        await self._unit(name).create_table(name, kind=kind, key_bytes=key_bytes)

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        await self._unit(name).delete_table(name, must_be_empty=must_be_empty)

    async def table_update(self, name: str, puts: Sequence[TablePut | TableCheck | TableLength]) -> Sequence[int]:
        return await self._unit(name).table_update(name, puts)

    async def table_remove(self, name: str, removals: Sequence[TableRemoval | TableLength]) -> None:
        await self._unit(name).table_remove(name, removals)

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        return await self._unit(name).table_get(name, keys)

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        return await self._unit(name).table_scan(name, after=after, limit=limit, first=first, last=last)

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        return await self._unit(name).table_delta(name, position, limit)

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        return await self._unit(name).table_info(name)
