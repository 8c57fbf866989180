"""Data that a query skipped because it was deleted before it was read: the exact bytes, and why
(``fail_on_data_loss=false``).

A loss becomes part of the offset that Spark writes to its checkpoint, so it is reported once, survives a restart, and
is found in the progress of the query: ``losses(query)``.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError, SegmentNotFoundError, UnsupportedError
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Services
from penstock.spark.reading.positions import Loss, each_offset

log = logging.getLogger("penstock.spark")

DELETED = "deleted"
"""A ``rule``: the stream was deleted, and another one has its name now."""


async def explained(
    services: Services, stream: StreamName, position: Mapping[SegmentId, int], lost: Sequence[Loss]
) -> tuple[Loss, ...]:
    """The losses of a reader at ``position``, with the rule that deleted the data, as far as the store remembers it."""
    try:
        gone = (await services.controller.retention.explain(stream, position=StreamCut(stream, dict(position)))).gone
    except (InvalidCutError, SegmentNotFoundError, UnsupportedError):
        gone = None
    if not gone:
        return tuple(lost)
    return tuple(replace(item, rule=gone.rule, at_ms=gone.at_ms) for item in lost)


async def between(
    services: Services, stream: StreamName, start: Mapping[SegmentId, int], end: Mapping[SegmentId, int]
) -> tuple[Loss, ...]:
    """The data from ``start`` to ``end``, oldest segment first, and why it was lost."""
    first, last = StreamCut(stream, dict(start)), StreamCut(stream, dict(end))
    try:
        spans = await services.controller.cuts.measure(stream, first, last)
        lost = [Loss(segment=item.segment, start=item.start, end=item.end, events=item.events) for item in spans]
    except UnsupportedError:
        # A store of an earlier version does not return the lengths of deleted segments.
        passed = [segment for segment in sorted(start) if end.get(segment) != start[segment]]
        lost = [Loss(segment=item, start=max(0, start[item]), end=end.get(item)) for item in passed]
    return await explained(services, stream, start, lost)


def say(stream: StreamName, lost: Iterable[Loss]) -> None:
    """Log one line for each loss."""
    for item in lost:
        log.warning("skipped data that was deleted before it was read. stream=%s %s", stream, item)


# --- for users ------------------------------------------------------------------------------------------------


def losses(source: Any) -> list[tuple[str, Loss]]:
    """What a query has skipped, as (stream, loss), oldest first, each once.

    Args:
        source: A ``StreamingQuery`` (as far back as Spark keeps progress), its ``recentProgress``, or the path of a
            checkpoint on a local or mounted disk (as far back as Spark keeps offsets).
    """
    offsets = _of_checkpoint(Path(source)) if isinstance(source, str | Path) else _of_progress(source)
    found: list[tuple[str, Loss]] = []
    for offset in offsets:
        for item in offset.get("lost", ()):
            entry = (str(offset["stream"]), Loss.from_json(item))
            if entry not in found:
                found.append(entry)
    return found


def _of_progress(source: Any) -> Iterable[Mapping[str, Any]]:
    for progress in getattr(source, "recentProgress", source):
        yield from offsets_in(progress)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceProgress:
    """What a progress says of one source: the offsets that it has reached; controller and subscriber, if it reports
    them."""

    offsets: Sequence[Mapping[str, Any]]
    controller: str | None
    subscriber: str | None


def offsets_in(progress: Any) -> Iterable[Mapping[str, Any]]:
    """The offsets that our sources had reached, in one progress of a query, as an object or as a dict."""
    for part in sources_in(progress):
        yield from part.offsets


def sources_in(progress: Any) -> Iterable[SourceProgress]:
    """The sources of a query in one progress, as an object or as a dict; those of other formats have no offsets."""
    for part in progress["sources"] if isinstance(progress, Mapping) else progress.sources:
        reported = _parsed(_field(part, "latestOffset"))
        said = reported if isinstance(reported, Mapping) else {}
        yield SourceProgress(
            offsets=list(_ours(_field(part, "endOffset"))),
            controller=said.get("controller"),
            subscriber=said.get("subscriber"),
        )


def _field(part: Any, name: str) -> Any:
    return part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)


def _of_checkpoint(path: Path) -> Iterable[Mapping[str, Any]]:
    entries = [item for item in (path / "offsets").iterdir() if item.name.isdecimal()]
    for entry in sorted(entries, key=lambda item: int(item.name)):
        # Spark's offset log: a version, the batch's metadata, and a line for each source.
        for line in entry.read_text().splitlines()[2:]:
            yield from _ours(line)


def _ours(offset: Any) -> Iterable[Mapping[str, Any]]:
    offset = _parsed(offset)
    if isinstance(offset, Mapping) and {"v", "streams"} <= offset.keys():
        yield from each_offset(offset)
    elif isinstance(offset, Mapping) and {"v", "stream", "segments"} <= offset.keys():
        yield offset


def _parsed(offset: Any) -> Any:
    """An offset as a value; None if it is no JSON."""
    if not isinstance(offset, str):
        return offset
    try:
        return json.loads(offset)
    except ValueError:
        return None
