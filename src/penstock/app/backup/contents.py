"""The contents of a copy of a store, found by recovering it without changing it: streams, their tails, receipts of
erasures, and missing chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from penstock.app.integrity.offline import Offline, open_offline
from penstock.app.integrity.reconcile import Table, controller_table
from penstock.app.integrity.rehearsal import rehearse
from penstock.app.tier2 import CHUNKS
from penstock.app.workers.layout import layout_of_worker
from penstock.codec.control.erasures import ErasureChainRecord
from penstock.codec.control.streams import EpochEntry, StreamRecord, StreamState
from penstock.codec.store import rows as records
from penstock.controller import keys
from penstock.controller.set_aside import UNREADABLE
from penstock.model.errors import InvalidNameError, SegmentNotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.values.dataclass import dataclass
from penstock.ports.offload import Offload
from penstock.segmentstore.store import SegmentStore

_STREAM = b"stream/"


@dataclass(slots=True, kw_only=True)
class Contents:
    """``streams``: each with its epoch and tail. ``erasures``: the last link of the chain of receipts, empty if there
    is none. ``missing``: chunks that the metadata names but that are missing or too short. ``unreadable``: keys of records
    that cannot be read. The copy holds them as they are."""

    missing: Sequence[str] = ()
    unreadable: Sequence[str] = ()
    streams: Sequence[Mapping[str, Any]] = ()
    erasures: Mapping[str, Any] = field(default_factory=dict)


async def contents_of(data: Path, *, offload: Offload) -> Contents:
    """Recover the copy in memory, as a start would, and read its contents. Raises what a start raises."""
    async with (
        open_offline(data, offload=offload) as store,
        rehearse(store, offload=offload) as segments,
    ):
        found = Contents(missing=await _missing(store, data))
        # A worker has only some of the segments, so it cannot give the tails of streams.
        table = await controller_table(segments) if layout_of_worker(data) is None else None
        if table is not None:
            await _read_table(segments, table, found)
        return found


async def _missing(store: Offline, data: Path) -> list[str]:
    missing = []
    for index, rows in store.rows.items():
        damaged: list[bytes] = []
        bounds = records.range_of(records.prefix(records.TAG_CHUNK, index))
        for _, value in await rows.scan_all(bounds, damaged=damaged):
            chunk = records.decode_chunk(value)
            file = data / CHUNKS / chunk.name
            if not file.exists() or file.stat().st_size < chunk.length:
                missing.append(chunk.name)
    return sorted(missing)


async def _read_table(segments: SegmentStore, table: Table, found: Contents) -> None:
    streams, unreadable = [], []
    for key in sorted(table):
        if not key.startswith(_STREAM):
            continue
        try:
            stream = await _stream(segments, table, key)
        except (ValueError, IndexError, InvalidNameError, *UNREADABLE):
            # One damaged record must not keep everything else from being backed up.
            unreadable.append(key.decode(errors="backslashreplace"))
        else:
            streams += [] if stream is None else [stream]
    link = table.get(keys.ERASURE_CHAIN)
    if link is not None:
        try:
            chain = ErasureChainRecord.decode(link.value)
            found.erasures = {"sequence": chain.sequence, "erasure": chain.erasure, "sha256": chain.sha256}
        except UNREADABLE:
            unreadable.append(link.key.decode())
    found.streams, found.unreadable = streams, unreadable


async def _stream(segments: SegmentStore, table: Table, key: bytes) -> Mapping[str, Any] | None:
    """The stream's epoch and tail; None if it does not exist yet, or no longer."""
    name, record = StreamName.parse(key[len(_STREAM) :].decode()), StreamRecord.decode(table[key].value)
    entry = table.get(keys.epoch(name, record.epoch))
    if record.state in (StreamState.CREATING, StreamState.DELETING) or entry is None:
        return None
    tail = {}
    for item in EpochEntry.decode(entry.value).segments:
        try:
            tail[str(item.segment)] = (await segments.info(segment_name(name, item.segment))).length
        except SegmentNotFoundError:
            continue  # A workflow that has begun creates it in its next step.
    return {"stream": str(name), "epoch": record.epoch, "tail": tail}
