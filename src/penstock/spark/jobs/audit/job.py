"""The audit stream as a table: what was deleted, when, by which rule, who lost unread data, and which holds applied.

As a data frame, as a Parquet table that each run brings up to date, and as sums. Source: docs/reference/spark.md, "audit".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from penstock.client.moments import cut_at
from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError, InvalidArgumentError, NotFoundError
from penstock.model.names import AUDIT_STREAM, segment_name
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.jobs.audit.files import RUN, AuditDirectory, AuditRun
from penstock.spark.jobs.audit.rows import ALL, SCHEMA, Choice, batches
from penstock.spark.jobs.audit.sums import AuditSums, sums_of
from penstock.spark.jobs.job_files import literal
from penstock.spark.jobs.progress import ProgressCallback, ignore_progress, repeat_in_background, task_progress
from penstock.spark.options import ReadOptions, parse_read, plain_name
from penstock.spark.reading.losses import say
from penstock.spark.reading.planning import batch_ranges, left_of
from penstock.spark.reading.positions import Loss

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OURS = ("scope", "stream", "path", "columns", "startstreamcut", "endstreamcut", "starttimestamp", "endtimestamp")
_SLACK_MS = 86_400_000
"""The search goes by the time of append, the choice by the time of decision. The decision is earlier, unless a clock was
set back; then this slack still finds the entry."""

_PORTIONS = {"target_partition_bytes": "32m", "batch_rows": "2000"}
"""Smaller than for other reads: an entry has up to 64 KiB, and parsing it costs more than reading it."""

_PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What to read of the audit stream, and where to write it.

    read: Options of the source: ``controller``, ``fail_on_data_loss``, …; the job sets the stream and its range.
    choice: Which entries.
    output: Directory of the table, on a disk that driver and executors share; its parent must exist. None: only sums.
    """

    read: Mapping[str, str]
    choice: Choice = ALL
    output: Path | None = None

    def checked(self) -> AuditRequest:
        """Return the request, if it is valid. Raises InvalidArgumentError, InvalidNameError."""
        self.choice.checked()
        for name in self.read:
            if plain_name(name) in _OURS:
                raise InvalidArgumentError("the job chooses stream, range and columns itself", option=name)
        self.options()
        return self

    def options(self) -> ReadOptions:
        return parse_read(self.source())

    def source(self) -> dict[str, str]:
        """Options of the source, without a range."""
        ours = {"path": str(AUDIT_STREAM), "columns": "event,offset"}
        given = {plain_name(name) for name in self.read}
        return {
            **{name: value for name, value in _PORTIONS.items() if plain_name(name) not in given},
            **self.read,
            **ours,
        }

    def identity(self) -> dict[str, Any]:
        """The values that must be the same in all runs of one table."""
        return {**asdict(self.choice), "kinds": sorted(self.choice.kinds)}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What a run has read between the cuts ``start`` and ``end``; both are empty where there is no audit stream yet.

    ``run``: its number in the table, 0 if nothing was written. ``lost``: ranges that had been truncated before they were
    read, and why. With ``dry_run``, ``entries`` counts the whole range, without the choice, and ``sums`` is empty.
    """

    start: str
    end: str
    read_bytes: int
    entries: int
    output: str | None
    run: int
    lost: Sequence[Mapping[str, Any]]
    dry_run: bool
    sums: AuditSums = field(default_factory=AuditSums)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def audit(
    spark: Any,
    request: AuditRequest,
    *,
    on_progress: ProgressCallback = ignore_progress,
    dry_run: bool = False,
    connector: Connector = dial,
) -> AuditReport:
    """Read the audit stream up to its current tail: as sums and, if ``output`` is set, into a table.

    Each run adds the entries since the last run to the table, all or none. So the table can keep entries for longer than
    the store does, and a run that was interrupted can be repeated: no entry is missing or there twice. The sums cover the
    entries that this run has read. ``spark`` may be None for a dry run.

    Raises AlreadyExistsError, ConflictError (the table was begun with another choice, or of another store),
    DirectoryInUseError, InvalidArgumentError, TruncatedError (entries were deleted before they were read),
    UnavailableError, OSError, and Spark's error if a task fails.
    """
    request = request.checked()
    directory = None if request.output is None else AuditDirectory(request.output, uuid4().hex)
    job = _Job(spark, request, directory, connector)
    if dry_run:
        return job.look()
    # Check this before anything is written, because the directory may belong to something else.
    job.begun()
    with nullcontext() if directory is None else directory.held():
        return job.run(on_progress)


def audit_frame(spark: Any, request: AuditRequest, *, connector: Connector = dial) -> DataFrame:
    """The chosen entries up to the current tail as a data frame, one row each, in no order. Raises as ``audit``."""
    request = request.checked()
    found = link(connector, request.options().controller).served().ask(partial(_bounds, request, None))
    if found is None:
        return spark.createDataFrame([], _schema())
    return _frame(spark, request, found)


def entries(events: DataFrame, choice: Choice = ALL) -> DataFrame:
    """The entries of a batch or streaming frame that has the columns ``event`` and ``offset`` of ``_system/audit``."""
    return events.select("event", "offset").mapInArrow(partial(batches, choice.checked()), _schema())


def read_audit(spark: Any, directory: Path) -> DataFrame:
    """All runs of a table as one data frame. Raises NotFoundError, AlreadyExistsError."""
    files = AuditDirectory(directory, "")
    if files.latest() is None:
        raise NotFoundError("there is no audit table in this directory", directory=files.path)
    return spark.read.schema(_schema().add(RUN, "integer")).parquet(literal(files.path)).drop(RUN)


def _schema() -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    """The input. ``ranges``: of segments; ``lost``: the part that is deleted already."""

    start: StreamCut
    end: StreamCut
    ranges: Sequence[tuple[SegmentId, int, int]]
    lost: Sequence[Loss]

    @property
    def size_bytes(self) -> int:
        return sum(high - low for _, low, high in self.ranges)


class _Job:
    def __init__(
        self, spark: Any, request: AuditRequest, directory: AuditDirectory | None, connector: Connector
    ) -> None:
        self._spark = spark
        self._request = request
        self._directory = directory
        self._link = link(connector, request.options().controller).served()

    def begun(self) -> AuditRun | None:
        """The last run of the table. Raises ConflictError if its request was different."""
        known = None if self._directory is None else self._directory.latest()
        if known is None:
            return None
        wanted = self._request.identity()
        differing = [name for name, value in wanted.items() if known.request.get(name) != value]
        if differing:
            raise ConflictError(
                "the table was begun with other filters; give the same filters, or name another directory",
                differing=", ".join(differing),
            )
        return known

    def look(self) -> AuditReport:
        found = self._bounds(self.begun())
        count = 0 if found is None else self._link.ask(partial(_count, found))
        return self._report(found, entries=count, run=0, dry_run=True)

    def run(self, on_progress: ProgressCallback) -> AuditReport:
        known = self.begun()  # another run may have ended since
        found = self._bounds(known)
        if found is None or not found.ranges:
            return self._report(found, entries=0, run=0)
        say(AUDIT_STREAM, found.lost)
        with repeat_in_background(task_progress(self._spark, on_progress, "tasks"), every_s=_PROGRESS_S):
            frame = _frame(self._spark, self._request, found).persist()
            try:
                if self._directory is not None:
                    frame.write.option("compression", "zstd").parquet(str(self._directory.making))
                sums = sums_of(frame)
            finally:
                frame.unpersist()
        number = 0
        if self._directory is not None:
            number = 1 if known is None else known.number + 1
            self._publish(self._directory, number, found, sums.entries)
        return self._report(found, entries=sums.entries, run=number, sums=sums)

    def _bounds(self, known: AuditRun | None) -> _Bounds | None:
        return self._link.ask(partial(_bounds, self._request, known))

    def _publish(self, directory: AuditDirectory, number: int, found: _Bounds, count: int) -> None:
        run = AuditRun(
            number=number,
            request=self._request.identity(),
            start=found.start.to_text(),
            end=found.end.to_text(),
            entries=count,
            last=self._link.ask(partial(_last, found.ranges[-1])),
            lost=[item.to_json() for item in found.lost],
        )
        directory.publish(run)

    def _report(
        self,
        found: _Bounds | None,
        *,
        entries: int,
        run: int,
        dry_run: bool = False,
        sums: AuditSums | None = None,
    ) -> AuditReport:
        return AuditReport(
            start="" if found is None else found.start.to_text(),
            end="" if found is None else found.end.to_text(),
            read_bytes=0 if found is None else found.size_bytes,
            entries=entries,
            output=None if self._directory is None else str(self._directory.path),
            run=run,
            lost=() if found is None else [item.to_json() for item in found.lost],
            dry_run=dry_run,
            sums=sums or AuditSums(),
        )


def _frame(spark: Any, request: AuditRequest, found: _Bounds) -> DataFrame:
    cuts = {"start_stream_cut": found.start.to_text(), "end_stream_cut": found.end.to_text()}
    return entries(spark.read.format("penstock").options(**request.source(), **cuts).load(), request.choice)


# --- questions to the store ----------------------------------------------------------------------------------------


async def _bounds(request: AuditRequest, known: AuditRun | None, services: Services) -> _Bounds | None:
    """The range from the end of the last run, or from the requested time, to the tail. None if there is no stream yet."""
    try:
        end = await services.controller.cuts.tail(AUDIT_STREAM)
        if known is not None:
            await _check_same(services, known)
            start = StreamCut.from_text(known.end)
        elif request.choice.since_ms is not None:
            since_ms = max(0, request.choice.since_ms - _SLACK_MS)
            start = await cut_at(services, AUDIT_STREAM, since_ms, end=False)
        else:
            start = await services.controller.cuts.head(AUDIT_STREAM)
    except NotFoundError:
        if known is not None:
            raise
        return None
    ranges = await batch_ranges(services, AUDIT_STREAM, start, end)
    kept, lost = await left_of(services, AUDIT_STREAM, ranges, fail=request.options().fail_on_data_loss)
    return _Bounds(start=start, end=end, ranges=kept, lost=lost)


async def _count(found: _Bounds, services: Services) -> int:
    counts = [
        await services.segments.count_events(segment_name(AUDIT_STREAM, segment), low, high)
        for segment, low, high in found.ranges
    ]
    return sum(counts)


_TRAIL_BYTES = 256


async def _last(read: tuple[SegmentId, int, int], services: Services) -> Mapping[str, Any] | None:
    """The position of the last bytes that were read, and their digest; None if they were deleted meanwhile."""
    segment, low, high = read
    return await _digest(services, segment, max(low, high - _TRAIL_BYTES), high)


async def _digest(services: Services, segment: SegmentId, low: int, high: int) -> Mapping[str, Any] | None:
    name = segment_name(AUDIT_STREAM, segment)
    info = (await services.segments.infos([name])).get(name)
    if info is None or info.start_offset > low or info.length < high:
        return None
    found = hashlib.sha256()
    at = low
    while at < high:
        parts = (await services.segments.read(name, at, high - at)).parts
        for part in parts:
            found.update(part)
            at += len(part)
        if not parts:
            return None
    return {"segment": segment, "from": low, "to": high, "sha256": found.hexdigest()}


async def _check_same(services: Services, known: AuditRun) -> None:
    """Raises ConflictError if the last run read another stream."""
    last = known.last
    if last is None:
        return
    segment, low, high = SegmentId(last["segment"]), last["from"], last["to"]
    name = segment_name(AUDIT_STREAM, segment)
    info = (await services.segments.infos([name])).get(name)
    if info is not None and low < info.start_offset and high <= info.length:
        return  # It was deleted by age, so this cannot be checked any more.
    if await _digest(services, segment, low, high) != last:
        raise ConflictError("the table belongs to another store; choose another directory", stream=AUDIT_STREAM)
