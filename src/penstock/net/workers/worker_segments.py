"""One segment store over the stores of several workers: each call goes to the worker that owns the segment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

from penstock.core.segments.placement import container_of, is_transaction_name
from penstock.model.errors import (
    ContainerOfflineError,
    InternalError,
    InvalidArgumentError,
    NotConnectedError,
    PenstockError,
)
from penstock.model.ledgers import LogWipe
from penstock.model.scaling import SegmentRates
from penstock.net.tasks import together
from penstock.net.workers.limit_shares import LimitShares
from penstock.net.workers.line import WorkerLine
from penstock.ports.data.attributes import AttributeChange
from penstock.ports.data.chunks import ChunkRange, Leased
from penstock.ports.data.erasing import ErasedChunk
from penstock.ports.data.imports import ImportedChunk, ImportGrant
from penstock.ports.data.limits import AppendLimit, SegmentChanges
from penstock.ports.data.rates import RateWatch
from penstock.ports.data.segments import Append, AppendDone, Appended, SegmentInfo, SegmentRead
from penstock.ports.data.service import Watch
from penstock.ports.data.space import DiskSpace, SegmentSpace
from penstock.ports.data.tables import (
    TableCheck,
    TableDelta,
    TableEntry,
    TableKind,
    TableLength,
    TablePut,
    TableRemoval,
)

log = logging.getLogger(__name__)

_ALWAYS = 0  # mark before every change


class CountRows(Protocol):
    """The shared memory in which workers count bytes."""

    def row(self, stream: str) -> int:
        """The stream's row. Raises StorageFullError."""
        ...

    def release(self, stream: str) -> None: ...


class WorkerSegments:
    """Implements ``ports.data.service.LocalSegmentService`` over the workers. ``lines`` and ``rows`` are borrowed.

    The hash of its name assigns a segment to a container; container ``n`` belongs to worker ``n`` modulo the number of
    workers. Segments that may be merged belong to the same worker. While a worker is down, calls for its segments wait;
    calls to other workers continue. ``rows`` lets one limit bound segments of several workers.
    """

    withdraw_appends = None
    open_direct = None
    create_fresh = None
    merge_run = None
    table_change = None

    def __init__(self, lines: Sequence[WorkerLine], *, containers: int, rows: CountRows | None = None) -> None:
        self._lines = lines
        self._containers = containers
        self._rows = rows
        self._shares = LimitShares(lines, self.worker_of) if rows is None else None
        self._limits: dict[str, AppendLimit] = {}
        self._generations: dict[str, int] = {}
        self._generation = 0
        self._all_limits_known = False
        self._reported_limits: dict[str, int] = {}
        self._met: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._reported: dict[str, None] = {}
        self._rates_wake = asyncio.Event()
        self._mark = 0
        self._marks: dict[int, Mapping[int, int]] = {}

    def worker_of(self, segment: str) -> int:
        """The number of the worker that owns the segment."""
        return container_of(segment, self._containers) % len(self._lines)

    def _line(self, segment: str) -> WorkerLine:
        return self._lines[self.worker_of(segment)]

    async def _ask(self, method: str, segment: str, *arguments: object) -> Any:
        """A call that is safe to repeat if its outcome is unknown."""
        return await self._line(segment).call(method, segment, *arguments, repeat=True)

    async def _once(self, method: str, segment: str, *arguments: object) -> Any:
        """A call whose repetition could return a different result."""
        return await self._line(segment).call(method, segment, *arguments, repeat=False)

    # --- segments -----------------------------------------------------------------------------------------

    async def create_segment(self, name: str, *, rollover_bytes: int = 0) -> None:
        self._note_created(name)
        await self._once("create_segment", name, rollover_bytes)

    def _note_created(self, name: str) -> None:
        # A restarted worker must count it too, and cannot know that it was created under the limit.
        stream = name.rpartition("/")[0]
        limit = self._limits.get(stream)
        if limit is not None and name not in limit.segments and not is_transaction_name(name):
            self._limits[stream] = replace(limit, segments=(*limit.segments, name))

    async def setup_append(self, name: str, writer: UUID) -> int:
        return int(await self._ask("setup_append", name, writer))

    def submit_append(self, request: Append, done: AppendDone) -> None:
        def answered(outcome: Any) -> None:
            done(outcome)

        self._line(request.segment).start(answered, "append", request)

    async def append(self, request: Append) -> Appended:
        """As the port says. The data is copied before this returns. Cancelled: the append may or may not happen."""
        reply: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()

        def answered(outcome: Appended | PenstockError) -> None:
            if reply.done():
                return
            if isinstance(outcome, PenstockError):
                reply.set_exception(outcome)
            else:
                reply.set_result(outcome)

        self.submit_append(request, answered)
        return await reply

    async def read(self, name: str, offset: int, max_bytes: int, *, wait: bool = True) -> SegmentRead:
        found: SegmentRead = await self._ask("read", name, offset, max_bytes, wait)
        return found

    async def info(self, name: str) -> SegmentInfo:
        found: SegmentInfo = await self._ask("info", name)
        return found

    async def seal(self, name: str) -> int:
        return int(await self._ask("seal", name))

    async def truncate(self, name: str, offset: int, *, keep: bool = False) -> None:
        await self._ask("truncate", name, offset, keep)

    async def release(self, name: str, offset: int) -> None:
        await self._ask("release", name, offset)

    async def restore(self, name: str, offset: int) -> int:
        return int(await self._ask("restore", name, offset))

    async def count_events(self, name: str, start: int, end: int) -> int:
        return int(await self._ask("count_events", name, start, end))

    async def delete(self, name: str) -> None:
        await self._once("delete", name)

    async def create_transient(self, parent: str, writer: UUID) -> str:
        return str(await self._once("create_transient", parent, writer))

    async def merge(self, target: str, source: str, *, updates: Sequence[AttributeChange] = ()) -> int:
        if self.worker_of(source) != self.worker_of(target):
            raise InvalidArgumentError(
                "source must be a transaction or transient segment of the target", target=target, source=source
            )
        return int(await self._ask("merge", target, source, list(updates)))

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        return int(await self._ask("get_attribute", name, attribute))

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool:
        call = self._ask if expected is None else self._once
        return bool(await call("update_attribute", name, attribute, value, expected))

    # --- tables -------------------------------------------------------------------------------------------

    async def create_table(self, name: str, *, kind: TableKind = TableKind.HASH, key_bytes: int = 0) -> None:
        await self._once("create_table", name, kind, key_bytes)

    async def delete_table(self, name: str, *, must_be_empty: bool = False) -> None:
        await self._once("delete_table", name, must_be_empty)

    async def table_update(self, name: str, puts: Sequence[TablePut | TableCheck | TableLength]) -> Sequence[int]:
        versions: Sequence[int] = await self._once("table_update", name, list(puts))
        return versions

    async def table_remove(self, name: str, removals: Sequence[TableRemoval | TableLength]) -> None:
        await self._once("table_remove", name, list(removals))

    async def table_get(self, name: str, keys: Sequence[bytes]) -> Sequence[TableEntry]:
        found: Sequence[TableEntry] = await self._ask("table_get", name, list(keys))
        return found

    async def table_scan(
        self, name: str, *, after: bytes | None, limit: int, first: bytes | None = None, last: bytes | None = None
    ) -> Sequence[TableEntry]:
        found: Sequence[TableEntry] = await self._ask("table_scan", name, after, limit, first, last)
        return found

    async def table_delta(self, name: str, position: int, limit: int) -> TableDelta:
        found: TableDelta = await self._ask("table_delta", name, position, limit)
        return found

    async def table_info(self, name: str) -> tuple[SegmentInfo, int, int]:
        info, count, key_bytes = await self._ask("table_info", name)
        return info, count, key_bytes

    # --- chunks -------------------------------------------------------------------------------------------

    async def chunk_ranges(self, name: str, start: int, end: int) -> Sequence[ChunkRange]:
        found: Sequence[ChunkRange] = await self._ask("chunk_ranges", name, start, end)
        return found

    async def lease_chunks(self, names: Sequence[str], lease: UUID, *, until_ms: int, holder: str = "") -> Leased:
        calls = self._calls_of("lease_chunks", names, lease, until_ms, holder)
        # Not ``together``: a worker whose call is cancelled may take the lease, and would not be asked to release it.
        answers = await asyncio.gather(*calls.values(), return_exceptions=True)
        found: list[Leased] = [item for item in answers if not isinstance(item, BaseException)]
        failed = [item for item in answers if isinstance(item, BaseException)]
        if failed:
            new = [worker for worker, item in zip(calls, answers, strict=True) if _is_new(item)]
            await self._release(new, lease)
            raise failed[0]
        granted = {name for part in found for name in part.granted}
        refused = {name for part in found for name in part.refused}
        return Leased(
            granted=tuple(name for name in names if name in granted),
            refused=tuple(name for name in names if name in refused),
            renewed=any(part.renewed for part in found),
        )

    async def _release(self, workers: Sequence[int], lease: UUID) -> None:
        """Undo a new lease in these workers. One that cannot be reached keeps it until its end time."""
        calls = [self._lines[worker].call("release_lease", lease, repeat=True) for worker in workers]
        for failure in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(failure, PenstockError):
                log.warning("lease could not be released; it will expire", extra={"error": str(failure)})
            elif isinstance(failure, BaseException):
                raise failure

    async def release_lease(self, lease: UUID) -> None:
        await together([line.call("release_lease", lease, repeat=True) for line in self._lines])

    async def finish_lease_part(self, lease: UUID, part: int, parts: int) -> None:
        await together([line.call("finish_lease_part", lease, part, parts, repeat=True) for line in self._lines])

    async def grant_import(self, name: str) -> ImportGrant:
        """See ``ports.data.imports.ChunkImports``."""
        found: ImportGrant = await self._ask("grant_import", name)
        return found

    async def adopt_chunks(self, name: str, offset: int, chunks: Sequence[ImportedChunk]) -> int:
        """See ``ports.data.imports.ChunkImports``."""
        return int(await self._ask("adopt_chunks", name, offset, list(chunks)))

    async def next_event_boundary(self, name: str, offset: int) -> int:
        return int(await self._ask("next_event_boundary", name, offset))

    async def infos(self, names: Sequence[str]) -> Mapping[str, SegmentInfo]:
        return await self._by_name("infos", names)

    async def spaces(self, names: Sequence[str]) -> Mapping[str, SegmentSpace]:
        return await self._by_name("spaces", names)

    async def _by_name(self, method: str, names: Sequence[str]) -> Mapping[str, Any]:
        """A call that answers by name, for all workers."""
        merged = {name: item for part in await self._split(method, names) for name, item in part.items()}
        return {name: merged[name] for name in names if name in merged}

    async def _split(self, method: str, names: Sequence[str], *rest: Any) -> Sequence[Any]:
        """The answers to a call about many segments: each worker gets the names of its own."""
        return await together(list(self._calls_of(method, names, *rest).values()))

    def _calls_of(self, method: str, names: Sequence[str], *rest: Any) -> dict[int, Coroutine[Any, Any, Any]]:
        """For each worker, the call for its own segments among these."""
        parts: dict[int, list[str]] = {}
        for name in names:
            parts.setdefault(self.worker_of(name), []).append(name)
        return {worker: self._lines[worker].call(method, part, *rest, repeat=True) for worker, part in parts.items()}

    # Pairs come back from a worker as lists.

    async def event_ranges(self, name: str, offsets: Sequence[int]) -> Sequence[tuple[int, int]]:
        return [(start, end) for start, end in await self._ask("event_ranges", name, list(offsets))]

    async def erase(self, name: str, ranges: Sequence[tuple[int, int]], *, erasure: str) -> Sequence[ErasedChunk]:
        found: Sequence[ErasedChunk] = await self._ask("erase", name, list(ranges), erasure)
        return found

    async def erased_ranges(self, name: str, start: int, end: int) -> Sequence[tuple[int, int]]:
        return [(first, last) for first, last in await self._ask("erased_ranges", name, start, end)]

    async def wipe_log(self) -> LogWipe:
        """As the port says, in every worker."""
        return LogWipe.joined(await together([line.call("wipe_log", repeat=True) for line in self._lines]))

    async def flush(self) -> None:
        """As the port says, in every worker."""
        await together([line.call("flush", repeat=True) for line in self._lines])

    def read_now(self, name: str, offset: int, max_bytes: int) -> SegmentRead | None:
        """None: no segment is in memory here; all reads wait for a worker."""
        return None

    def watch(self, name: str, offset: int, changed: Callable[[], None]) -> Watch | None:
        """None, as ``read_now``."""
        return None

    async def disk(self) -> DiskSpace:
        """The disk of all workers. They share it: its size is the smallest one reported, and the space they use is
        added up."""
        parts: Sequence[DiskSpace] = await together([line.call("disk", repeat=True) for line in self._lines])
        budgets = [part.budget_bytes for part in parts]
        return DiskSpace(
            total_bytes=min(part.total_bytes for part in parts),
            free_bytes=min(part.free_bytes for part in parts),
            used_bytes=sum(part.used_bytes for part in parts),
            budget_bytes=None if None in budgets else sum(budget for budget in budgets if budget is not None),
        )

    # --- what retention asks ------------------------------------------------------------------------------

    async def limit_appends(self, limits: Sequence[AppendLimit]) -> None:
        """As the port says. A worker that is down gets the limits before it accepts appends again: see
        ``restore_limits``."""
        for limit in limits:
            self._generation += 1
            self._generations[limit.stream] = self._generation
            self._reported_limits.pop(limit.stream, None)
            if limit.total_bytes is None and limit.total_events is None:
                self._limits.pop(limit.stream, None)
            else:
                self._limits[limit.stream] = limit
        if self._shares is None:
            await together([self._limit(line, limits) for line in self._lines])
        else:
            for limit in limits:
                await self._shares.put(limit, self._generations.get(limit.stream, 0))
        for limit in limits:
            if limit.stream not in self._limits:
                self._generations.pop(limit.stream, None)
                if self._rows is not None:
                    self._rows.release(limit.stream)

    async def _limit(self, line: WorkerLine, limits: Sequence[AppendLimit]) -> None:
        link = line.link
        if link is None:
            return
        try:
            for limit in limits:
                known = limit.stream in self._limits
                row = self._rows.row(limit.stream) if known and self._rows is not None else None
                own = replace(limit, segments=[name for name in limit.segments if self.worker_of(name) == line.number])
                await link.call("limit_appends", [own], [row], self._generations.get(limit.stream, 0))
        except (NotConnectedError, ContainerOfflineError):
            # It is down now, and gets the limits when it restarts.
            return

    async def restore_limits(self, worker: int) -> None:
        """Send all limits to a restarted worker, and make callers of ``limits_reached`` check them. The worker does not
        know what it has already reported, nor what it counted of deleted segments."""
        for stream in list(self._limits):
            limit = self._limits.get(stream)
            if limit is not None and self._shares is not None:
                await self._shares.restore(limit, worker, self._generations.get(stream, 0))
            elif limit is not None:
                await self._limit(self._lines[worker], [limit])
        if self._all_limits_known:
            await self._lift_others(self._lines[worker])
        self._met |= dict.fromkeys(self._limits)
        if self._met:
            self._wake.set()

    async def lift_unknown_limits(self) -> None:
        """All limits have been set by now: lift what containers have from an earlier controller, which may have died before
        it could. Those that are away get this by ``restore_limits``."""
        self._all_limits_known = True
        await together([self._lift_others(line) for line in self._lines])

    async def _lift_others(self, line: WorkerLine) -> None:
        link = line.link
        if link is None:
            return
        try:
            await link.call("lift_others", list(self._limits))
        except (NotConnectedError, ContainerOfflineError):
            return
        except InternalError as error:  # a store of an earlier version, during an upgrade
            log.warning("limits of writers stay in force", extra={"worker": line.number, "reason": str(error)})

    async def note_reached(self, met: Sequence[tuple[str, int]], *, worker: int | None = None) -> None:
        """A worker reports streams that have reached a limit, and which one. Each is passed on once."""
        for stream, generation in met:
            if self._shares is not None and worker is not None:
                self._shares.met(stream, worker)
            if self._reported_limits.get(stream) != generation:
                self._reported_limits[stream] = generation
                self._met[stream] = None
                self._wake.set()

    async def limits_reached(self) -> Sequence[str]:
        while not self._met:
            self._wake.clear()
            await self._wake.wait()
        met, self._met = self._met, {}
        return list(met)

    async def measure_rates(self, watches: Sequence[RateWatch]) -> None:
        """As the port says. A worker that is away measures nothing until the next call."""
        await together([self._measure(line, watches) for line in self._lines])

    async def _measure(self, line: WorkerLine, watches: Sequence[RateWatch]) -> None:
        link = line.link
        if link is None:
            return
        own = [
            replace(watch, segments=[name for name in watch.segments if self.worker_of(name) == line.number])
            for watch in watches
        ]
        with suppress(NotConnectedError, ContainerOfflineError):
            await link.call("measure_rates", own)

    async def segment_rates(self, names: Sequence[str]) -> Mapping[str, SegmentRates]:
        """As the port says. Segments of a worker that is away are left out."""
        parts = await together([self._rates(line, names) for line in self._lines])
        return {name: rates for part in parts for name, rates in part.items()}

    async def _rates(self, line: WorkerLine, names: Sequence[str]) -> Mapping[str, SegmentRates]:
        link, own = line.link, [name for name in names if self.worker_of(name) == line.number]
        if link is None or not own:
            return {}
        try:
            found: Mapping[str, SegmentRates] = await link.call("segment_rates", own)
        except (NotConnectedError, ContainerOfflineError):
            return {}
        return found

    async def note_rates(self, streams: Sequence[str]) -> None:
        """A worker reports streams that have a hot or cold segment."""
        self._reported |= dict.fromkeys(streams)
        self._rates_wake.set()

    async def rates_reported(self) -> Sequence[str]:
        while not self._reported:
            self._rates_wake.clear()
            await self._rates_wake.wait()
        found, self._reported = self._reported, {}
        return list(found)

    async def changed_segments(self, after: int) -> SegmentChanges:
        """As the port says. A worker that is down delivers its reports once it has restarted."""
        since = self._marks.get(after, {})
        parts = await together([self._changes(line, since.get(line.number, 0)) for line in self._lines])
        self._mark += 1
        # The answer may be lost: the marks of the request are kept until those of the answer come back.
        self._marks = {after: since} if after in self._marks else {}
        self._marks[self._mark] = {line.number: part.mark for line, part in zip(self._lines, parts, strict=True)}
        return SegmentChanges(
            mark=self._mark,
            names=[name for part in parts for name in part.names],
            complete=all(part.complete for part in parts),
        )

    async def _changes(self, line: WorkerLine, after: int) -> SegmentChanges:
        link = line.link
        if link is not None:
            try:
                found: SegmentChanges = await link.call("changed_segments", after)
            except NotConnectedError:
                pass
            else:
                return found
        return SegmentChanges(mark=after, names=(), complete=after != _ALWAYS)


def _is_new(answer: Leased | BaseException) -> bool:
    """Whether the worker had no part of the lease before it answered."""
    return isinstance(answer, Leased) and not answer.renewed
