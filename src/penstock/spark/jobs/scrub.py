"""Every checksum of tier 2, verified by Spark's tasks: what is damaged, where, and which subscribers are affected.

Source: docs/how-to/integrity.md.

Tasks ask the store only for lists of chunks and checksums, and read the bytes from tier 2. For chunks and sidecars, the
findings are the same as those of ``penstock scrub``, which also verifies the metadata and the log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any

from penstock.app.integrity.report import advice, affected
from penstock.model.damage import Damage
from penstock.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
)
from penstock.model.names import StreamName, parse_segment_name, segment_name
from penstock.model.retention import PolicyTarget
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.scopes import PAGE_MAX
from penstock.ports.control.streams import StreamDescription
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.jobs.progress import ProgressCallback, ignore_progress, repeat_in_background, task_progress
from penstock.spark.jobs.scrub_task import RESULT, Finding, ScrubTask, Stretch
from penstock.spark.option_values import TOKEN_S
from penstock.spark.reading.planning import infos
from penstock.spark.worker.plan_access import access_for

_STRETCH_BYTES = 512 << 20
_STRETCHES_A_TASK = 500  # stretches of files in one task
_PROGRESS_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRequest:
    """What to verify: a stream, else the streams of a scope, else those of all scopes, internal ones included.

    ``findings``: a Parquet file to write the findings to. It must not exist yet.
    """

    controller: str
    scope: str | None = None
    stream: StreamName | None = None
    findings: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOutcome:
    """What was verified, and the damage. ``affected``: for each segment the ranges that cannot be read, the number of
    events that begin there, and the subscribers that have not read past them."""

    checked: Mapping[str, int]
    findings: Sequence[Finding]
    affected: Sequence[Mapping[str, Any]]
    dry_run: bool = False

    @property
    def damage(self) -> Sequence[Damage]:
        return [item.damage for item in self.findings]

    def as_json(self) -> dict[str, Any]:
        """The same as in ``penstock scrub``, with ``events`` and ``subscribers`` in each item of ``affected``."""
        return {
            "sound": not self.findings and not self.dry_run,
            "finished": not self.dry_run,
            "checked": dict(self.checked),
            "damage": [item.damage.as_json() for item in self.findings],
            "affected": list(self.affected),
            "advice": advice(self.damage),
        }


@dataclass(slots=True)
class _Plan:
    streams: list[StreamName] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    size_bytes: int = 0


def scrub(
    spark: Any,
    request: ScrubRequest,
    *,
    on_progress: ProgressCallback = ignore_progress,
    dry_run: bool = False,
    connector: Connector = dial,
) -> ScrubOutcome:
    """Verify all data in tier 2 that readers of the streams can still read. Changes nothing.

    Data that retention deletes meanwhile is not reported. ``dry_run`` only counts the data.
    Raises ScopeNotFoundError, StreamNotFoundError, UnavailableError, InvalidArgumentError (executors do not see tier 2),
    AlreadyExistsError (``findings``).
    """
    _check_target(request.findings)
    server = link(connector, request.controller).served()
    plan = server.ask(lambda services: _planned(services, request))
    facts = {"streams": len(plan.streams), "segments": len({item.segment for item in plan.stretches})}
    if dry_run:
        return ScrubOutcome(checked={**facts, "bytes": plan.size_bytes}, findings=(), affected=(), dry_run=True)
    access = connector
    if any(not item.is_own for item in plan.stretches):
        access = server.ask(
            lambda services: access_for(connector, services, [_target_of(request)], "read", valid_s=TOKEN_S)
        )
    # The token of a plan has no right to the store's own streams: the driver verifies them itself.
    own = [] if access is connector else [item for item in plan.stretches if item.is_own]
    others = [item for item in plan.stretches if not (own and item.is_own)]
    task = ScrubTask(connector=access, controller=request.controller, todo=_shared_out(others))
    rows: list[Any] = []
    if task.todo:
        with repeat_in_background(task_progress(spark, on_progress, "tasks"), every_s=_PROGRESS_S):
            count = len(task.todo)
            rows = spark.range(0, count, 1, count).mapInArrow(task.__call__, RESULT).collect()
    checked: dict[str, int] = facts
    for row in rows:
        for name, amount in json.loads(row["checked"] or "{}").items():
            checked[name] = checked.get(name, 0) + amount
    found = [
        Finding(Damage.from_json(json.loads(row["finding"])), row["events"], row["segment"], row["chunk_start"])
        for row in rows
        if row["finding"]
    ]
    here = ScrubTask(connector=connector, controller=request.controller, todo=())
    if own:
        verified = here.verify(own)
        found += verified.found
        for name, amount in verified.checked.items():
            checked[name] = checked.get(name, 0) + amount
    found.sort(key=lambda item: (item.damage.place, item.damage.start or 0, item.damage.kind.value))
    kept = _found_again(here, found, server.ask(lambda services: _heads(services, found)))
    hurt = server.ask(lambda services: _affected(services, kept))
    outcome = ScrubOutcome(checked=checked, findings=kept, affected=hurt)
    if request.findings is not None:
        _save(request.findings, outcome)
    return outcome


def _check_target(findings: Path | None) -> None:
    if findings is not None and findings.exists():
        raise AlreadyExistsError("the file for the findings exists already; choose another", file=findings)
    if findings is not None and not findings.absolute().parent.is_dir():
        raise InvalidArgumentError("the directory for the findings does not exist", path=findings.absolute().parent)


def _target_of(request: ScrubRequest) -> PolicyTarget:
    return request.scope if request.stream is None else request.stream


async def _planned(services: Services, request: ScrubRequest) -> _Plan:
    plan = _Plan()
    for stream in await _streams(services, request):
        try:
            await _add(services, stream, plan)
        except StreamNotFoundError:
            if request.stream is not None:
                raise
            continue  # deleted since it was listed
    return plan


async def _streams(services: Services, request: ScrubRequest) -> list[StreamName]:
    if request.stream is not None:
        return [request.stream]
    controller = services.controller
    if request.scope is not None:
        if not await controller.scopes.exists(request.scope):
            raise ScopeNotFoundError("there is no such scope", scope=request.scope)
        scopes: Sequence[str] = [request.scope]
    else:
        scopes = await _all_of(lambda after: controller.scopes.list(after=after))
    found: list[StreamName] = []
    for scope in scopes:
        names = await _all_of(lambda after, scope=scope: controller.streams.list(scope, after=after))
        found += [StreamName(scope, name) for name in names]
    return found


async def _all_of(page: Any) -> list[str]:
    found: list[str] = []
    while some := await page(found[-1] if found else ""):
        found += some
        if len(some) < PAGE_MAX:
            break
    return found


async def _add(services: Services, stream: StreamName, plan: _Plan) -> None:
    head, tail = await services.controller.cuts.head(stream), await services.controller.cuts.tail(stream)
    segments = sorted(await services.controller.cuts.segments_between(stream, head, tail))
    plan.streams.append(stream)
    for segment, info in (await infos(services, stream, segments)).items():
        if info is None:
            continue
        plan.size_bytes += info.length - info.start_offset
        for low in range(info.start_offset, max(info.length, info.start_offset + 1), _STRETCH_BYTES):
            high = min(info.length, low + _STRETCH_BYTES)
            name = segment_name(stream, segment)
            plan.stretches.append(Stretch(segment=name, head=info.start_offset, low=low, high=high))


def _shared_out(stretches: Sequence[Stretch]) -> tuple[tuple[Stretch, ...], ...]:
    """The stretches of each task: about ``_STRETCH_BYTES`` bytes, or ``_STRETCHES_A_TASK`` stretches."""
    tasks: list[tuple[Stretch, ...]] = []
    current: list[Stretch] = []
    filled = 0
    for stretch in stretches:
        if current and (filled >= _STRETCH_BYTES or len(current) >= _STRETCHES_A_TASK):
            tasks.append(tuple(current))
            current, filled = [], 0
        current.append(stretch)
        filled += stretch.high - stretch.low
    return (*tasks, tuple(current)) if current else tuple(tasks)


async def _heads(services: Services, findings: Sequence[Finding]) -> Mapping[str, int]:
    """The current start offset of each segment with findings. Deleted segments are absent."""
    found: dict[str, int] = {}
    for name in sorted({item.segment for item in findings}):
        try:
            found[name] = (await services.segments.info(name)).start_offset
        except SegmentNotFoundError:
            continue
    return found


def _found_again(task: ScrubTask, findings: Sequence[Finding], heads: Mapping[str, int]) -> list[Finding]:
    """The findings that a second check confirms. Retention or an erasure may have replaced the chunks of the others."""
    looks = sorted({(item.segment, item.chunk_start) for item in findings if item.segment in heads})
    stretches = [
        Stretch(segment=name, head=heads[name], low=max(start, heads[name]), high=max(start, heads[name]) + 1)
        for name, start in looks
    ]
    again = {item.damage.place: item for item in task.verify(stretches).found}
    return [item for item in findings if item.damage.place in again]


async def _affected(services: Services, findings: Sequence[Finding]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    described: dict[str, StreamDescription] = {}
    for item in affected([finding.damage for finding in findings]):
        events = sum(finding.events for finding in findings if finding.damage.segment == item["segment"])
        entry: dict[str, Any] = {**item, "events": events, "subscribers": []}
        name = item["stream"]
        if name is not None:
            last = max(end for _, end in item["ranges"])
            segment = parse_segment_name(item["segment"])[1]
            with suppress(StreamNotFoundError):  # deleted meanwhile, so it has no subscribers
                if name not in described:
                    described[name] = await services.controller.streams.describe(StreamName.parse(name))
                entry["subscribers"] = await _not_past(services, described[name], segment, last)
        found.append(entry)
    return found


async def _not_past(services: Services, stream: StreamDescription, segment: SegmentId, end: int) -> list[str]:
    """The subscribers that have not read the segment up to ``end``."""
    found: list[str] = []
    for item in stream.subscribers:
        if item.cut is not None:
            behind = await services.controller.cuts.segments_between(stream.stream, item.cut, stream.tail)
            if segment not in behind or max(0, item.cut.positions.get(segment, 0)) >= end:
                continue
        found.append(item.name)
    return found


def _save(path: Path, outcome: ScrubOutcome) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("kind", "place", "why", "container", "segment", "start", "end")
    kinds = (pa.string(), pa.string(), pa.string(), pa.int32(), pa.string(), pa.int64(), pa.int64())
    hurt = {item["segment"]: item for item in outcome.affected}
    rows = []
    for finding in outcome.findings:
        row = dict.fromkeys(names) | finding.damage.as_json()
        entry = hurt.get(str(finding.damage.segment), {})
        row |= {"stream": entry.get("stream"), "events": finding.events, "subscribers": entry.get("subscribers", [])}
        rows.append(row)
    schema = pa.schema(
        [
            *(pa.field(name, kind) for name, kind in zip(names, kinds, strict=True)),
            pa.field("stream", pa.string()),
            pa.field("events", pa.int64()),
            pa.field("subscribers", pa.list_(pa.string())),
        ]
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
