"""Continue a store whose own directory is lost in another directory, from its log and tier 2.

Source: docs/design/0064-start-elsewhere.md.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from penstock.app.replicated.binding import read_record
from penstock.app.replicated.log_place import TIER2_LOG, LogMark, LogPlace, parse_log_place, read_mark, write_mark
from penstock.app.replicated.object_log import open_log_objects
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import locate_tier
from penstock.codec.store import rows as records
from penstock.codec.store.container_record import ContainerRecord
from penstock.model.errors import CorruptDataError, InvalidArgumentError, NotFoundError, StorageFullError
from penstock.ports.cluster.nodes import Nodes, VersionedNodes
from penstock.ports.holds import SpaceHolds
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.segmentstore.repair.load import load_published
from penstock.storage.chunks.claim import adopt_tier, tier_mark
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.machine.calls import sync_directory
from penstock.storage.machine.files import RealFiles
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

_METADATA = "metadata"
_PATHS_MAX = 20  # names in one error message
_NOTE_S = 600.0
"""How often the rest of a hold is written to the mark, seconds: a restart repeats at most that much of it."""

_log = logging.getLogger(__name__)


async def prepare_takeover(settings: EmbeddedSettings, *, offload: Offload, rng: Rng) -> None:
    """Prepare the directory, which the caller has locked, to take over the store of ``settings.log_url``. Does nothing if the
    directory is the store's.

    No server is fenced here. Outdated metadata in the directory is deleted. After an interruption, call it again.

    Raises InvalidArgumentError (no store has its log there; another store's directory, log or tier 2; chunks that were in
    the lost directory),
    CorruptDataError (the store published nothing, and the log no longer has everything), UnavailableError, OSError.
    """
    url, data = settings.log_url, settings.data
    if url is None:
        return
    place = parse_log_place(url)
    async with _open_records(settings, place, offload=offload, rng=rng) as records:
        record = await read_record(records, place.path)
        mark = await offload.run(lambda: read_mark(data))
        if record is None and mark is None:
            raise InvalidArgumentError(
                "no store has its log there, so there is nothing to take over: check"
                f" {'--tier2' if url == TIER2_LOG else 'the path in --log'}. To create a store, start it once without"
                " --take-over",
                log=url,
                beside=await _paths_beside(records, place.path),
            )
    has_metadata = (data / _METADATA / "store.db").exists()
    # Without a record, the directory is the store's: opening the log reports what is wrong.
    if record is not None and is_takeover_needed(record, mark, data, has_metadata=has_metadata):
        await begin_takeover(record, settings, url, offload=offload, rng=rng)


async def begin_takeover(
    record: ContainerRecord, settings: EmbeddedSettings, url: str, *, offload: Offload, rng: Rng
) -> None:
    """Prepare the directory to load the metadata of the store with this record, whatever metadata it has now. Raises as
    ``prepare_takeover``."""
    data = settings.data
    files = RealFiles(data, offload)
    tier = await locate_tier(settings, files, offload=offload)
    store = await _check_tier(record, tier.objects, place=tier.place, url=url)
    await offload.run(lambda: _forget_metadata(data))
    await adopt_tier(tier.objects, files, store=store, place=str(tier.place), endpoint=tier.endpoint)
    fresh = LogMark(uid=record.uid, url=url, home=str(rng.uuid()), loading=True)
    await offload.run(lambda: write_mark(data, fresh))


@asynccontextmanager
async def _open_records(
    settings: EmbeddedSettings, place: LogPlace, *, offload: Offload, rng: Rng
) -> AsyncIterator[VersionedNodes]:
    if place.hosts:
        # Imported here: a log in tier 2 does not need the client of ZooKeeper.
        from penstock.app.replicated import replicated_log

        async with replicated_log.open_nodes(place.hosts) as nodes:
            yield nodes
        return
    files = RealFiles(settings.data, offload)
    async with open_log_objects(settings, files, offload=offload, rng=rng) as kept:
        yield kept.records


async def _paths_beside(records: VersionedNodes, path: str) -> tuple[str, ...]:
    """Paths that exist where ``path`` does not: below its nearest parent that has any. Empty for a log in tier 2."""
    if not isinstance(records, Nodes):
        return ()
    nodes: Nodes = records
    while path:
        path = path.rpartition("/")[0]
        with suppress(NotFoundError):
            if found := await nodes.children(path or "/"):
                return tuple(f"{path}/{name}" for name in found[:_PATHS_MAX])
    return ()


def is_takeover_needed(record: ContainerRecord, mark: LogMark | None, data: Path, *, has_metadata: bool) -> bool:
    """Whether the directory lacks the store's metadata. Raises InvalidArgumentError: it is another store's."""
    if mark is not None and mark.uid != record.uid:
        raise InvalidArgumentError("this directory belongs to another store", data=str(data), expected=record.uid)
    if mark is None and (has_metadata or (data / "wal" / "EPOCH").exists()):
        raise InvalidArgumentError("this directory belongs to another store; use a new one", data=str(data))
    if mark is None or mark.loading:
        return True
    if record.home not in (None, mark.home):
        return True
    # A first start that was interrupted has no metadata either, and nothing to load.
    return not has_metadata and (bool(record.catalogues) or record.truncated > 0)


async def _check_tier(record: ContainerRecord, objects: Objects, *, place: str | None, url: str) -> str:
    """The mark that tier 2 has, or gets."""
    if place is None or record.tier is None:
        raise InvalidArgumentError(
            "a store can be taken over only if its chunks are outside its directory: give the --tier2 that it had"
            if record.tier is not None
            else "the chunks of this store were in its directory, so it cannot be taken over",
            log=url,
        )
    found = await tier_mark(objects)
    # A first start that ended early may not have marked it yet. Then nothing was published, and the log has everything.
    is_unmarked = found is None and not record.catalogues and not record.truncated
    if found != record.tier and not is_unmarked:
        raise InvalidArgumentError(
            "this is not the tier 2 of the store; check --tier2", tier2=place, store=found, expected=record.tier
        )
    if not record.catalogues and record.truncated:
        raise CorruptDataError("log was truncated, and its record does not name the catalogue", log=url)
    return record.tier


def _forget_metadata(data: Path) -> None:
    if (data / _METADATA).exists():
        shutil.rmtree(data / _METADATA)
        sync_directory(data)


async def load_store(
    log: LedgerLog, data: Path, objects: Objects, keyvalue: SqliteKeyValue, *, max_lease_ms: int
) -> None:
    """Load the metadata of a directory that takes over a store, up to the end of the published catalogues. The log is open,
    so no earlier owner can publish any more. Does nothing in other directories. ``max_lease_ms``: as of ``StoreSettings``.

    Raises as ``load_published``.
    """
    mark = read_mark(data)
    if mark is None or not mark.loading:
        return
    positions = log.publications.positions()
    await load_published(objects, positions, keyvalue, epoch=log.epoch - 1)
    logged = await keyvalue.get_many([records.prefix(records.TAG_LEASES_LOGGED, container) for container in positions])
    # An earlier version kept leases in its directory alone, and they are lost with it.
    has_leases = bool(logged) and None not in logged
    write_mark(data, replace(mark, loading=False, hold_s=None if has_leases else max_lease_ms / 1000))


class HoldsAfterTakeover:
    """Implements ``ports.holds.SpaceHolds``: ``holds``, and no chunk is freed for ``left_s`` seconds from now.

    An earlier version stored leases only in a directory's metadata, so those of a lost directory are unknown. By then they
    have ended.
    Time is the event loop's: a wall clock that jumps ahead frees nothing. ``keep_count`` notes what is left in the mark, so
    that a restart continues. Time between two processes does not count.
    """

    def __init__(self, holds: SpaceHolds, data: Path, *, left_s: float) -> None:
        self._holds = holds
        self._data = data
        self._until_s = asyncio.get_running_loop().time() + left_s

    @property
    def left_s(self) -> float:
        return max(0.0, self._until_s - asyncio.get_running_loop().time())

    @contextmanager
    def chunks(self) -> Iterator[bool]:
        """As the port says."""
        with self._holds.chunks() as may_free:
            yield may_free and not self.left_s

    @contextmanager
    def log(self) -> Iterator[bool]:
        """As the port says."""
        with self._holds.log() as may_free:
            yield may_free

    async def keep_count(self, offload: Offload) -> None:
        """Write to the mark how long the hold still lasts, periodically until it ends. Cancelled: the last note counts."""
        while left_s := self.left_s:
            await asyncio.sleep(min(left_s, _NOTE_S))
            try:
                await offload.run(self._note)
            except (OSError, StorageFullError) as error:
                # The hold then lasts longer after a restart.
                _log.warning("hold after a takeover was not noted", extra={"error": repr(error)})

    def _note(self) -> None:
        mark = read_mark(self._data)
        if mark is not None:
            write_mark(self._data, replace(mark, hold_s=self.left_s or None))


@asynccontextmanager
async def held_after_takeover(data: Path, holds: SpaceHolds, *, offload: Offload) -> AsyncIterator[SpaceHolds]:
    """The holds of a store: after a takeover, its chunks stay for the longest time that a lease can have."""
    mark = await offload.run(lambda: read_mark(data))
    if mark is None or mark.hold_s is None:
        yield holds
        return
    held = HoldsAfterTakeover(holds, data, left_s=mark.hold_s)
    counting = asyncio.create_task(held.keep_count(offload))
    try:
        yield held
    finally:
        counting.cancel()
        await asyncio.gather(counting, return_exceptions=True)
