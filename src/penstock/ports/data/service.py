"""The interface of a segment store, in process or over the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol
from uuid import UUID

from penstock.ports.data.attributes import AttributeChange, Attributes
from penstock.ports.data.chunks import ChunkRange, LeasedChunks
from penstock.ports.data.direct_appends import AppendsDone, DirectAppends, FrameAppend
from penstock.ports.data.erasing import Erasing
from penstock.ports.data.limits import Limits
from penstock.ports.data.rates import Rates
from penstock.ports.data.segments import Append, AppendDone, SegmentBatches, SegmentInfo, SegmentRead, Segments
from penstock.ports.data.space import Space
from penstock.ports.data.tables import (
    TableCheck,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
    Tables,
)
from penstock.ports.data.truncation import Truncation


class Watch(Protocol):
    """A pending wait for a segment to change. Several reads may share it: each counts as a read that waits."""

    @property
    def gone(self) -> bool:
        """Whether the segment was deleted or merged. Another one may have its name by now."""
        ...

    def join(self) -> bool:
        """Let one more read wait. False: too many wait. Call it only before the change is reported."""
        ...

    def cancel(self) -> None:
        """Let one read stop waiting; with the last one, the watch ends. Does nothing once the change was reported."""
        ...


class SegmentService(
    DirectAppends,
    SegmentBatches,
    Segments,
    Truncation,
    Attributes,
    Tables,
    LeasedChunks,
    Erasing,
    Limits,
    Rates,
    Space,
    Protocol,
):
    """A store of segments. All effects are durable when a call returns; all are safe to repeat.

    Every call may raise ContainerOfflineError, UnavailableError and its subclasses, and, where a segment is named,
    SegmentNotFoundError.
    """


class ServedReads(Protocol):
    """Reads and appends of clients, without a task or a future each."""

    async def setup_append(self, name: str, writer: UUID) -> int:
        """See ``Segments``."""
        ...

    def submit_append(self, request: Append, done: AppendDone) -> None:
        """See ``DirectAppends``. The request may be a run (``Append.pieces``). ``done`` may then be called several times:
        with the appends that are stored, in order, and last with the outcome of the others."""
        ...

    def submit_appends(self, appends: Sequence[FrameAppend], done: AppendsDone) -> None:
        """As ``submit_append`` for each append, in order; each is decided by itself. ``done`` may be called several times,
        each time with the outcomes of some appends. Those of one writer in one segment come in order."""
        ...

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        """See ``Segments``."""
        ...

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        """As ``read`` with ``wait=False``, from memory only. None: the read must wait or would fail; call ``read``."""
        ...

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        """Call ``changed`` once, from the event loop, when the segment grows, is sealed, truncated or deleted, or its
        store stops. None: ``offset`` is not the tail of an open segment in memory, or too many reads wait; call
        ``read``. ``changed`` must be fast: it delays the next append."""
        ...

    async def next_event_boundary(self, name: str, offset: int) -> int:
        """See ``Segments``."""
        ...


class ServedSegments(Protocol):
    """Other calls of clients that concern segments; see ``SegmentService``."""

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None: ...

    async def info(self, name: str) -> SegmentInfo: ...

    async def seal(self, name: str) -> int: ...

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None: ...

    async def delete(self, name: str) -> None: ...

    async def create_transient(self, parent: str, writer: UUID) -> str: ...

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        """As ``SegmentService.merge``, together with changes of the target's attributes: all or nothing, also across a
        crash. If the source was already merged into this target, no condition is checked. Also raises
        ConditionFailedError."""
        ...

    async def get_attribute(self, name: str, attribute: UUID) -> int: ...

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool: ...

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]: ...

    async def flush(self) -> None:
        """Write everything durable now to tier 2, and truncate the log. Raises what the storage raises."""
        ...


class ServedTables(Protocol):
    """Calls of clients that concern tables; see ``Tables``."""

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None: ...

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None: ...

    async def table_update(self, name: str, puts: Sequence[TablePut | TableCheck | TableLength]) -> Sequence[int]: ...

    async def table_remove(self, name: str, removals: Sequence[TableRemoval | TableLength]) -> None: ...

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]: ...

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]: ...

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta: ...

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]: ...


class ServedStore(ServedReads, ServedSegments, ServedTables, Protocol):
    """What a server of the wire protocol needs of a store in this process."""


class LocalSegmentService(SegmentService, Protocol):
    """A store in this process, which also takes appends and lets reads wait without a task or a future each."""

    async def flush(self) -> None:
        """See ``ServedSegments``."""
        ...

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        """See ``ServedSegments``."""
        ...

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        """See ``ServedReads``."""
        ...

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        """See ``ServedReads``."""
        ...

    def submit_append(self, request: Append, done: AppendDone) -> None:
        """See ``DirectAppends``."""
        ...
