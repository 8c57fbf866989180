"""Diagnosis of a data directory that no store has open: versions, owner, damage, readable data, and advice."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any

from penstock.app.erasure.key import check_key
from penstock.app.integrity.offline import Offline, open_offline
from penstock.app.integrity.rehearsal import start_refusal
from penstock.app.integrity.report import advice, affected, stream_of
from penstock.app.integrity.secrets import LogKey, check_secrets, recorded_keys, sorted_keys
from penstock.app.integrity.source import holds_something
from penstock.app.workers.layout import RECORD as RECORD_OF_WORKERS
from penstock.app.workers.layout import check_workers_there, load_layout, worker_directory, worker_of
from penstock.codec.store import catalogue as catalogue_codec
from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import SUFFIX
from penstock.core.segments.garbage import chunk_epoch, is_marker
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.ports.offload import Offload
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair.catalogue_gaps import missing_objects
from penstock.segmentstore.repair.chunk_gaps import missing_chunk, missing_ranges
from penstock.segmentstore.repair.rebuild import list_catalogue, load_container
from penstock.segmentstore.store import SegmentStore
from penstock.storage.chunks.claim import RECORD, load_record
from penstock.storage.machine.data_directory import DataDirectory, check_directory
from penstock.storage.machine.files import RealFiles

_PAGE = 1000  # rows of one scan, which bounds the memory of a page


@dataclass(slots=True, kw_only=True)
class Diagnosis:
    """Facts by part of the store; ``verdict`` in one sentence; ``advice`` says what to do.

    ``refusal``: why a start would be refused, None: it succeeds. ``workers``: the diagnosis of each worker.
    ``log_keys``: the keys of audit logs, from the records.
    """

    data: str
    refusal: str | None = None
    workers: list[Diagnosis] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, Any] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    verdict: str = ""
    log_keys: list[LogKey] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "data": self.data,
            "verdict": self.verdict,
            "starts": self.refusal is None,
            "refusal": self.refusal,
            **self.facts,
            **({"secrets": self.secrets} if self.secrets else {}),
            **({"workers": [one.as_json() for one in self.workers]} if self.workers else {}),
            "damage": [item.as_json() for item in self.damage],
            "affected": affected(self.damage),
            "advice": advice(self.damage),
        }


async def diagnose(data: Path, *, offload: Offload, endpoint: str | None = None, insecure: bool = False) -> Diagnosis:
    """Check everything except the bytes of chunks, which ``scrub`` reads, and rehearse a start. Changes nothing.

    ``data`` may also be the directory of a store with several workers: then each worker's directory is checked.

    Raises: DirectoryInUseError (a store runs on it), InvalidArgumentError (the directory holds no store),
    VersionTooNewError, UnavailableError (tier 2 is remote and does not answer).
    """
    found = await _diagnose_workers(data, offload=offload, endpoint=endpoint, insecure=insecure)
    if found is None:
        found = await _diagnose_one(data, offload=offload, endpoint=endpoint, insecure=insecure)
    secrets = check_secrets(data, sorted_keys(found.log_keys))
    found.secrets = secrets.facts
    if secrets.damage and not found.damage and found.refusal is None:
        found.verdict = "a store starts and serves everything; a file with a key or with users cannot be used"
    found.damage += secrets.damage
    return found


async def _diagnose_one(data: Path, *, offload: Offload, endpoint: str | None, insecure: bool) -> Diagnosis:
    """The diagnosis of a directory with a log and metadata of its own. Raises as ``diagnose``."""
    log_keys: list[LogKey] = []

    async def look(segments: SegmentStore) -> None:
        log_keys.extend(await recorded_keys(segments))

    try:
        await load_record(RealFiles(data, offload, read_only=True))
    except CorruptDataError as error:
        # Without it the location of tier 2 is unknown, so there is nothing else to check.
        damage = Damage(kind=DamageKind.DIRECTORY, place=RECORD, why=error.message)
        verdict = f"a store would not start on this directory: {error}"
        return Diagnosis(data=str(data), damage=[damage], refusal=str(error), verdict=verdict)
    async with open_offline(data, offload=offload, endpoint=endpoint, insecure=insecure) as store:
        refusal = await start_refusal(store, offload=offload, endpoint=endpoint, insecure=insecure, look=look)
        found = Diagnosis(data=str(data), damage=list(store.damage), refusal=None if refusal is None else str(refusal))
        if refusal is None and store.keyvalue is None:
            # A new store has no metadata yet, and the log of a young one may still hold everything.
            found.damage = [item for item in found.damage if item.kind is not DamageKind.PAGE]
        await _directory(store, found)
        _log(store, found)
        await _metadata(store, offload, found)
        await _catalogue(store, found)
        await _segments(store, found)
        found.verdict = _verdict(store, found)
        found.log_keys = log_keys
        return found


async def _diagnose_workers(data: Path, *, offload: Offload, endpoint: str | None, insecure: bool) -> Diagnosis | None:
    """The diagnosis of a store of several workers; None: it is none. Raises as ``diagnose``."""
    if not (data / RECORD_OF_WORKERS).exists() and not (data / "workers").is_dir():
        return None
    found, own = Diagnosis(data=str(data)), list[Path]()
    with DataDirectory.look(data):
        try:
            check_directory(data)
            layout = load_layout(data)
            if layout is None:
                return None
            own = [worker_directory(data, worker) for worker in range(layout.workers)]
            check_workers_there(data, range(layout.workers))
            check_key(data)
        except (CorruptDataError, InvalidArgumentError) as error:
            found.refusal = str(error)
            found.damage.append(Damage(kind=DamageKind.DIRECTORY, place=str(data), why=error.message))
        for directory in own:
            if holds_something(directory):
                own_diagnosis = await _diagnose_one(directory, offload=offload, endpoint=endpoint, insecure=insecure)
                found.workers.append(own_diagnosis)
    for one in found.workers:
        found.damage += one.damage
        found.log_keys += one.log_keys
        if one.refusal is not None:
            found.refusal = found.refusal or f"{one.data}: {one.refusal}"
    found.verdict = (
        f"a store would not start on this directory: {found.refusal}"
        if found.refusal is not None
        else f"a store of {len(found.workers)} workers starts"
    )
    return found


async def _directory(store: Offline, found: Diagnosis) -> None:
    files = store.files
    record = await load_record(files) if await files.exists(RECORD) else None
    version: str | None = None
    if await files.exists("VERSION"):
        file = await files.open("VERSION")
        try:
            version = (await file.read_at(0, 40)).decode("ascii", "replace").strip()
        finally:
            await file.close()
    found.facts["version"] = version
    found.facts["in_use"] = False
    found.facts["tier2"] = {
        "place": store.source.place,
        "store": None if record is None else record.store,
        "openings": 0 if record is None else len(record.openings),
    }


def _log(store: Offline, found: Diagnosis) -> None:
    log = store.log
    facts: dict[str, Any] = {
        "epoch": None if log.epoch is None else log.epoch.epoch,
        "files": len(log.files),
        "in_use": sum(item.in_use for item in log.files),
        "torn": sum(item.damaged for item in log.files),
    }
    if log.image is not None and log.image.chain:
        facts |= {"first": log.image.chain[0].header.first_sequence, "last": log.image.last, "proven": log.image.proven}
    found.facts["log"] = facts
    found.damage += log.damage


async def _metadata(store: Offline, offload: Offload, found: Diagnosis) -> None:
    """The first steps of a scrub: structure and rows. The log was checked before."""
    if store.keyvalue is None:
        found.facts["metadata"] = None
        return
    scrubber = store.scrubber(offload)
    rows = 0
    cursor: str | None = None
    while True:
        page = await scrubber.page(cursor, 1 << 20)
        rows += page.checked.get("rows", 0)
        found.damage += [item for item in page.damage if item.kind in (DamageKind.ROW, DamageKind.PAGE)]
        cursor = page.cursor
        if cursor is None or not cursor.startswith(("pages:", "rows:")):
            break
    found.facts["metadata"] = {"rows": rows, "containers": store.containers}


async def _catalogue(store: Offline, found: Diagnosis) -> None:
    listed = await list_catalogue(store.source.objects)
    rows: list[dict[str, Any]] = []
    for index in sorted({*listed, *store.rows}):
        names = listed.get(index, [])
        if not names:
            found.damage.append(
                Damage(
                    kind=DamageKind.CATALOGUE,
                    place=f"{catalogue_codec.DIRECTORY}/{index:x}",
                    why="catalogue of the container is missing",
                    container=index,
                )
            )
            continue
        state = await load_container(store.source.objects, index, names, None)
        rows.append(
            {
                "container": index,
                "batch": state.applied,
                "as_of_ms": state.time_ms,
                "behind": await _behind(store, index, state.applied),
            }
        )
        found.damage += [
            Damage(kind=DamageKind.CATALOGUE, place=place, why=why, container=index) for place, why in state.damage
        ]
        if index in store.rows and not state.damage:
            found.damage += await missing_objects(store.rows[index], index, store.source.objects)
    found.facts["catalogue"] = rows


async def _behind(store: Offline, index: int, applied: int | None) -> int | None:
    """Number of batches that wait in the metadata's outbox; None if unknown."""
    if index not in store.rows or applied is None:
        return None
    try:
        row = await store.rows[index].get(records.prefix(records.TAG_CATALOGUE, index))
        return None if row is None else max(0, records.decode_catalogue(row).sequence - applied)
    except CorruptDataError:
        return None


async def _segments(store: Offline, found: Diagnosis) -> None:
    listed = dict.fromkeys(await store.source.chunks.list())
    named: dict[str, None] = {}
    facts = {"segments": 0, "tables": 0, "streams": 0, "chunks": 0, "bytes": 0, "missing_chunks": 0}
    streams: dict[str, None] = {}
    for index, rows in store.rows.items():
        start, end = records.range_of(records.prefix(records.TAG_SEGMENT, index))
        try:
            while True:
                page = await rows.scan((start, end), limit=_PAGE)
                for key, value in page:
                    record = records.decode_segment(value)
                    facts["tables" if record.kind else "segments"] += 1
                    stream = stream_of(record.name)
                    if stream is not None and not record.kind:
                        streams[stream] = None
                    uid = records.parse_number(key[-8:])
                    await _chunks(rows, index, uid, record, listed, named, facts, found)
                    gaps = await missing_ranges(rows, index, uid)
                    missing = [missing_chunk(index, uid, record.name, *gap) for gap in gaps]
                    # The scrub's first page may have reached this row.
                    found.damage += [item for item in missing if item not in found.damage]
                if len(page) < _PAGE:
                    break
                start = page[-1][0] + b"\0"
            bounds = records.range_of(records.prefix(records.TAG_FREE, index))
            named |= {key[3:].decode(): None for key, _ in await rows.scan_all(bounds)}
        except CorruptDataError as error:
            facts["unread_containers"] = facts.get("unread_containers", 0) + 1
            if not any(item.kind in (DamageKind.ROW, DamageKind.PAGE) for item in found.damage):
                found.damage.append(Damage(kind=DamageKind.ROW, place="metadata", why=str(error), container=index))
    facts["streams"] = len(streams)
    facts["unnamed_chunks"] = sum(
        1
        for name in listed
        if not name.endswith(SUFFIX) and name not in named and chunk_epoch(name) is not None and not is_marker(name)
    )
    found.facts["segments"] = facts


async def _chunks(
    rows: MetadataRows,
    index: int,
    uid: int,
    segment: records.SegmentRecord,
    listed: dict[str, None],
    named: dict[str, None],
    facts: dict[str, int],
    found: Diagnosis,
) -> None:
    bounds = records.range_of(records.uid_key(records.TAG_CHUNK, index, uid))
    for key, value in await rows.scan_all(bounds):
        chunk = records.decode_chunk(value)
        begin = records.parse_number(key[-8:])
        named[chunk.name] = None
        facts["chunks"] += 1
        facts["bytes"] += chunk.length - chunk.freed
        if chunk.name not in listed:
            facts["missing_chunks"] += 1
            found.damage.append(
                Damage(
                    kind=DamageKind.CHUNK,
                    place=chunk.name,
                    why="the chunk is missing",
                    container=index,
                    segment=segment.name,
                    start=max(begin, segment.kept_offset),
                    end=begin + chunk.length,
                )
            )


def _rebuild_command(data: Path) -> str:
    """What rebuilds the store in ``data``, or repairs the worker whose directory it is."""
    worker = worker_of(data)
    if worker is None:
        return f"penstock rebuild --source {data} --data NEW"
    whole, number = worker
    return f"penstock rebuild --data {whole} --worker {number}"


def _verdict(store: Offline, found: Diagnosis) -> str:
    kinds = {item.kind for item in found.damage}
    if found.refusal is not None:
        rebuildable = any(item["batch"] is not None for item in found.facts.get("catalogue") or ())
        command = _rebuild_command(store.data)
        back = (
            f"what is flushed can be rebuilt from tier 2: {command}"
            if rebuildable
            else "tier 2 holds no sound catalogue either"
        )
        return f"a store would not start on this directory: {found.refusal}; {back}"
    if store.keyvalue is None:
        return "a store starts; there is no metadata yet, and nothing else that would have been lost with it"
    if DamageKind.ROW in kinds:
        return "a store starts, and refuses what the damaged rows affect"
    if kinds & {DamageKind.CHUNK, DamageKind.BLOCK}:
        return "a store starts, and refuses reads of what is damaged"
    if kinds:
        return "a store starts and serves everything; a rebuild from tier 2 alone would not give all of it back"
    return "a store starts; no damage was found without reading chunks, which penstock scrub does"
