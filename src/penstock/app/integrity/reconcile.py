"""Make the streams and segments of a rebuilt store consistent.

The catalogues of the containers end at different times, so the controller can have a segment that its container lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from penstock.app.telemetry import Counters
from penstock.app.tier2 import Tier2
from penstock.codec.control.streams import HIDDEN, EpochEntry, HeadRecord, StreamRecord, StreamState
from penstock.controller import keys
from penstock.model.errors import CorruptDataError, NotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import SegmentId
from penstock.ports.clock import Clock
from penstock.ports.data.service import LocalSegmentService
from penstock.ports.files import Files
from penstock.ports.offload import Offload
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import open_segment_store
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.rng import RealRng
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

_PAGE = 1000  # rows of one scan, which bounds the memory of a page
_LOG_FILE_BYTES = 1 << 20
"""Only a few creations and seals are written; the store makes larger files when it opens."""


@dataclass(slots=True, kw_only=True)
class Reconciled:
    """``streams``: bytes and events of each stream. ``made``: a sentence for each segment that was created or sealed."""

    streams: list[dict[str, Any]] = field(default_factory=list)
    made: list[str] = field(default_factory=list)


async def reconcile(
    files: Files,
    keyvalue: SqliteKeyValue,
    tier: Tier2,
    *,
    offload: Offload,
    containers: int,
    clock: Clock,
) -> Reconciled:
    """Open the segments without a controller, create the missing ones, and close normally, which empties the log."""
    rng, found = RealRng(), Reconciled()
    async with AsyncExitStack() as stack:
        log = await stack.enter_async_context(
            open_local_log(
                files,
                directory="wal",
                segment_bytes=_LOG_FILE_BYTES,
                budget_bytes=16 * _LOG_FILE_BYTES,
                max_frame_bytes=_LOG_FILE_BYTES // 2,
                queue_bytes=_LOG_FILE_BYTES,
                rng=rng,
            )
        )
        segments = await stack.enter_async_context(
            open_segment_store(
                log,
                StoreParts(
                    keyvalue=keyvalue,
                    chunks=tier.chunks,
                    clock=clock,
                    rng=rng,
                    offload=offload,
                    telemetry=Counters(),
                    settings=StoreSettings(containers=containers),
                    catalogue=tier.objects,
                ),
            )
        )
        if await reconcile_segments(segments, found):
            await segments.flush()
    return found


async def reconcile_segments(segments: LocalSegmentService, found: Reconciled) -> bool:
    """Create the segments that streams need and that are missing, and seal those that streams have left. Nobody else changes
    them. Adds to ``found``. False: the controller's metadata is not there. Raises what the segments raise."""
    table = await controller_table(segments)
    if table is None:
        found.made.append("the controller's metadata is not there: segments are kept, but no stream is known")
        return False
    for key, value in table.items():
        kind, _, rest = key.decode().partition("/")
        if kind == "stream":
            await _reconcile_stream(segments, StreamName.parse(rest), StreamRecord.decode(value), table, found)
    return True


async def controller_table(segments: LocalSegmentService) -> Mapping[bytes, bytes] | None:
    table: dict[bytes, bytes] = {}
    after: bytes | None = None
    while True:
        try:
            page = await segments.table_scan(keys.TABLE, after=after, limit=_PAGE)
        except NotFoundError:
            return None
        table.update((entry.key, entry.value) for entry in page)
        if len(page) < _PAGE:
            return table
        after = page[-1].key


async def _reconcile_stream(
    segments: LocalSegmentService,
    name: StreamName,
    record: StreamRecord,
    table: Mapping[bytes, bytes],
    found: Reconciled,
) -> None:
    if record.state in HIDDEN:
        return  # The controller continues with it when it starts.
    entries = [EpochEntry.decode(value) for key, value in table.items() if key.startswith(keys.epochs(name))]
    visible = [entry for entry in entries if entry.epoch <= record.epoch]
    active: dict[SegmentId, None] = {}
    for entry in visible:
        if entry.epoch == record.epoch:
            active = {item.segment: None for item in entry.segments}
    head = table.get(keys.head(name))
    needed = dict(active)
    if head is not None:
        needed |= dict.fromkeys(HeadRecord.decode(head).visible)
    count = size = events = 0
    for segment in sorted({item.segment: None for entry in visible for item in entry.segments}):
        text = segment_name(name, segment)
        try:
            info = await segments.info(text)
        except NotFoundError:
            if segment in needed:
                await segments.create_segment(text, rollover_bytes=record.config.rollover_bytes)
                if segment not in active:
                    await segments.seal(text)
                found.made.append(f"segment {text} is not in the catalogue: made anew, empty")
            continue
        if not info.sealed and (segment not in active or record.state is StreamState.SEALED):
            await segments.seal(text)
            found.made.append(f"segment {text} was not sealed yet: sealed, as its stream says")
        count += 1
        size += info.length - info.start_offset
        if info.length > info.start_offset:
            events += await _count(segments, text, info.start_offset, info.length)
    found.streams.append({"stream": str(name), "segments": count, "bytes": size, "events": events})


async def _count(segments: LocalSegmentService, name: str, start: int, end: int) -> int:
    """Events of the range; 0 if damage makes them uncountable: the report lists the damage itself."""
    try:
        return await segments.count_events(name, start, end)
    except CorruptDataError:
        return 0
