"""What every part of the controller works with, and how a stream is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.codec.control.streams import HIDDEN, HeadRecord, MarkerRecord, ScopeRecord, StreamRecord
from penstock.controller import keys, retention_keys
from penstock.controller.metadata import Metadata, Stored, overwrite, stored
from penstock.controller.retention.audit import Audit
from penstock.controller.retention.clock import RetentionClock
from penstock.controller.set_aside import SetAside
from penstock.controller.settings import ControllerSettings
from penstock.controller.stream_view import StreamView
from penstock.controller.tasks import NamedLocks, OwnedTasks, each
from penstock.controller.transactions.decision_queues import DecisionQueues
from penstock.controller.transactions.outcomes import Outcomes
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidNameError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName, parse_segment_name
from penstock.ports.clock import Clock
from penstock.ports.data.service import SegmentService
from penstock.ports.data.tables import KEY_ABSENT, TablePut, TableRemoval
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

if TYPE_CHECKING:
    from penstock.controller.histories import Histories
    from penstock.controller.retention.sets import RetentionSets
    from penstock.controller.streams.event_counts import EventCounts

MEMORY_MAX_FINISHED = 1000  # works of which it is remembered that they ended
DECODED_MAX = 4096  # records that stay decoded


class Attention(Protocol):
    """Where the retention loop is told what it must look at."""

    def dirty(self, name: StreamName) -> None:
        """Look at the stream soon."""
        ...

    def dirty_all(self, scope: str | None) -> None:
        """Look at all streams of the scope, or at all there are."""
        ...

    def due(self, name: StreamName, at_ms: int | None) -> None:
        """Look at the stream at that time, and not before unless it changes. None: only when it changes."""
        ...

    def kept(self, name: StreamName) -> None:
        """Truncated bytes of the stream are kept, to be given back when they are due."""
        ...


class Unattended:
    """For a controller that runs cycles only when it is asked to."""

    def dirty(self, name: StreamName) -> None:
        return

    def dirty_all(self, scope: str | None) -> None:
        return

    def due(self, name: StreamName, at_ms: int | None) -> None:
        return

    def kept(self, name: StreamName) -> None:
        return


@dataclass(slots=True, kw_only=True)
class Context:
    """Parts shared by the controller's modules; all are borrowed from it."""

    metadata: Metadata
    segments: SegmentService
    clock: Clock
    rng: Rng
    telemetry: Telemetry
    settings: ControllerSettings
    histories: Histories
    sets: RetentionSets
    events: EventCounts
    audit: Audit
    set_aside: SetAside
    retention_clock: RetentionClock
    tasks: OwnedTasks
    attention: Attention = field(default_factory=Unattended)
    locks: NamedLocks = field(default_factory=NamedLocks)
    finished: list[TableRemoval] = field(default_factory=list)
    queues: DecisionQueues = field(default_factory=DecisionQueues)
    outcomes: Outcomes = field(default_factory=Outcomes)
    unpruned: dict[StreamName, int] = field(default_factory=dict)
    """Transactions completed since a stream last forgot old outcomes."""
    deletions: int = 0
    """Streams deleted by this controller."""
    decoded: dict[StreamName, tuple[bytes, StreamRecord]] = field(default_factory=dict)
    soon: set[StreamName] = field(default_factory=set)

    def work_put(self, stream: StreamName) -> TablePut:
        """Marks the stream as one to look at after a crash. Goes into the same batch as the intent itself."""
        return overwrite(keys.work(stream), MarkerRecord())

    def work_done(self, stream: StreamName, version: int) -> None:
        """The workflow begun with marker ``version`` has ended.

        The marker is taken away later, many at once: a stale one costs a look at the next start, a removal now would cost
        every workflow one more sync. Past the bound it is left for the sweeper to find.
        """
        if len(self.finished) < MEMORY_MAX_FINISHED:
            self.finished.append(TableRemoval(key=keys.work(stream), version=version))

    async def flush_finished(self) -> None:
        """Take away the markers of ended workflows, unless a new workflow has set them again."""
        done, self.finished = self.finished, []
        if done:
            await self.metadata.remove_if_unchanged(done)

    async def stream(self, name: StreamName) -> StreamView:
        """A stream that users can see. Raises ScopeNotFoundError, StreamNotFoundError."""
        view = await self.any_stream(name)
        if view is None or view.record.state in HIDDEN:
            await self.check_scope(name.scope)
            raise StreamNotFoundError("no such stream", stream=str(name))
        return view

    async def any_stream(self, name: StreamName) -> StreamView | None:
        """The stream in whatever state, or None."""
        (entry,) = await self.metadata.entries([keys.stream(name)])
        if entry.version == KEY_ABSENT:
            self.decoded.pop(name, None)
            return None
        return StreamView(name=name, record=self._record(name, entry.value), version=entry.version)

    def _record(self, name: StreamName, raw: bytes) -> StreamRecord:
        """The record that the bytes say. It is asked for at every step and seldom changes, and decoding it is what costs."""
        known = self.decoded.get(name)
        if known is not None and known[0] == raw:
            return known[1]
        record = StreamRecord.decode(raw)
        if len(self.decoded) >= DECODED_MAX:
            self.decoded.clear()
        self.decoded[name] = raw, record
        return record

    async def check_not_of_a_stream(self, segment: str) -> None:
        """Raises InvalidArgumentError if the segment belongs to a stream that exists or can be restored."""
        try:
            name, _ = parse_segment_name(segment)
        except InvalidNameError:
            return
        if await self.any_stream(name) is not None or await self._has_deleted(name):
            raise InvalidArgumentError(
                "the segment belongs to a stream: truncate, seal or delete the stream",
                segment=segment,
                stream=str(name),
            )

    async def _has_deleted(self, name: StreamName) -> bool:
        return bool(await self.metadata.scan(retention_keys.deleted_in(str(name)), limit=1))

    async def removals_passed(self, target: str) -> None:
        """Wait until every removal by segment (``Holds.removal``) that has begun in the scope or stream has ended."""
        await self.locks.passed(f"removal/{target}/")

    async def stream_and_head(self, name: StreamName) -> tuple[StreamView, Stored[HeadRecord]]:
        """As ``stream``, with the head as of the same moment."""
        stream_entry, head_entry = await self.metadata.entries([keys.stream(name), keys.head(name)])
        found = stored(stream_entry, StreamRecord)
        record = found.value
        if record is None or record.state in HIDDEN:
            await self.check_scope(name.scope)
            raise StreamNotFoundError("no such stream", stream=str(name))
        return StreamView(name=name, record=record, version=found.version), stored(head_entry, HeadRecord)

    async def check_scope(self, scope: str) -> None:
        """Raises ScopeNotFoundError."""
        found = await self.metadata.get(keys.scope(scope), ScopeRecord)
        if found.value is None or found.value.deleting:
            raise ScopeNotFoundError("no such scope", scope=scope)

    async def create_fresh(self, names: Sequence[str]) -> None:
        """Create segments whose names nobody ever bore."""
        together = self.segments.create_fresh
        if together is None:
            await self.create_segments(names)
        else:
            await together(names)

    async def create_segments(self, names: Iterable[str], *, rollover_bytes: int = 0) -> None:
        """Create those that are not there yet."""

        async def create(name: str) -> None:
            try:
                await self.segments.create_segment(name, rollover_bytes=rollover_bytes)
            except AlreadyExistsError:
                # An earlier attempt of the same workflow came this far. Names are never used twice.
                return

        await each(names, create)

    async def delete_segments(self, names: Sequence[str]) -> None:
        """Delete those that are still there."""

        async def delete(name: str) -> None:
            try:
                await self.segments.delete(name)
            except SegmentNotFoundError:
                return

        await each(names, delete)
