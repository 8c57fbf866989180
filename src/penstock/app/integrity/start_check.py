"""Reasons to refuse a start, found before it writes anything. A start and ``penstock doctor`` run the same checks.

Source: docs/design/0041-what-a-start-refuses.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from penstock.app.erasure.key import check_key
from penstock.app.replicated.log_place import MARK, check_log_choice, read_mark
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import CHUNKS, TierPlace, locate_tier
from penstock.app.workers.layout import WorkerLayout, check_workers_there, worker_directory
from penstock.codec.store import rows as records
from penstock.codec.store.catalogue import DIRECTORY as CATALOGUE
from penstock.codec.store.wal import EpochRecord
from penstock.model.errors import CorruptDataError, DirectoryInUseError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Files
from penstock.ports.offload import Offload
from penstock.storage.chunks.claim import examine_tier
from penstock.storage.log.check import read_epoch
from penstock.storage.log.scan import LogImage, list_log, read_log
from penstock.storage.machine.data_directory import DataDirectory, is_complete, lost_part
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.rows.sqlite_look import MetadataLook, look_at_metadata

LOG = "wal"
METADATA = "metadata"


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFacts:
    """Contents of a directory on which a start is possible. ``is_new``: a store would be created. ``image``: the log; None
    if nothing was ever written to it, or it is not in the directory. ``epoch_min``: the newest epoch that the metadata
    name."""

    is_new: bool
    epoch: EpochRecord | None
    image: LogImage | None
    tier: TierPlace
    epoch_min: int = 0


async def check_start(
    settings: EmbeddedSettings,
    *,
    offload: Offload,
    containers: int,
    owned: Sequence[int] | None = None,
    verify: bool = True,
) -> StartFacts:
    """Check whether a store may start on ``settings.data``, which the caller has locked. Changes nothing, not even in tier 2.

    Reads the log and, with ``verify``, every row of the metadata. Raises: CorruptDataError (something is damaged, or was
    lost: fields ``missing`` and ``found``), InvalidArgumentError, VersionTooNewError, UnavailableError (tier 2), OSError.
    """
    await offload.run(lambda: check_key(settings.data))
    await offload.run(lambda: check_log_choice(settings.data, settings.log_url))
    files = RealFiles(settings.data, offload, read_only=True)
    tier = await locate_tier(settings, files, offload=offload, read_only=True)
    if tier.place is not None:
        await examine_tier(tier.objects, files, place=tier.place)
    indexes = range(containers) if owned is None else owned
    keys = [(records.STORE_KEY, records.STORE_COPY_KEY)]
    keys += [(records.prefix(records.TAG_CONTAINER, index), records.container_copy_key(index)) for index in indexes]
    ranges = [records.range_of(records.prefix(records.TAG_CHUNK, index)) for index in indexes]
    database = settings.data / METADATA / "store.db"
    look = await offload.run(lambda: look_at_metadata(database, keys=keys, ranges=ranges, verify=verify))
    if settings.log_url is not None:
        return await _check_replicated(settings, look, indexes, tier, containers=containers)
    epoch = await _epoch(files)
    if look is None or look.rows[0] is None:
        image = await _log_of_new(files, epoch)
        await _check_birth(settings.data, tier, image)
        return StartFacts(is_new=True, epoch=epoch, image=image, tier=tier)
    _check_total(look.rows[0], containers)
    if epoch is None:
        raise lost_part(settings.data, missing=LOG, found=METADATA)
    image = await read_log(files, LOG, epoch=epoch.epoch, seed=epoch.seed)
    _check_log_reaches(look, indexes, epoch, image)
    await _check_chunks(settings.data, look, tier)
    return StartFacts(is_new=False, epoch=epoch, image=image, tier=tier)


async def _check_replicated(
    settings: EmbeddedSettings, look: MetadataLook | None, indexes: Sequence[int], tier: TierPlace, *, containers: int
) -> StartFacts:
    """The part of the check that needs no log: that one is checked when it is opened. Raises as ``check_start``."""
    data, mark = settings.data, read_mark(settings.data)
    if mark is not None and mark.loading and not settings.take_over:
        raise InvalidArgumentError(
            "the takeover of the store by this directory is not complete; start with --take-over", data=str(data)
        )
    if look is None or look.rows[0] is None:
        if mark is None:
            await _check_birth(data, tier, None)
        elif is_complete(data) and not mark.loading:
            raise lost_part(data, missing=METADATA, found=MARK)
        return StartFacts(is_new=True, epoch=None, image=None, tier=tier)
    if mark is None:
        raise lost_part(data, missing=LOG, found=METADATA)
    _check_total(look.rows[0], containers)
    await _check_chunks(data, look, tier)
    epochs = [
        records.decode_container(row).epoch for _, row in zip(indexes, look.rows[1:], strict=True) if row is not None
    ]
    return StartFacts(is_new=False, epoch=None, image=None, tier=tier, epoch_min=max(epochs, default=0))


async def check_workers(settings: EmbeddedSettings, layout: WorkerLayout) -> None:
    """The same for each worker's directory, before any of them starts. Each worker checks its own rows.

    A directory that a process still uses is skipped. Raises as ``check_start``.
    """
    check_workers_there(settings.data, range(layout.workers))
    check_key(settings.data)
    async with ThreadOffload() as offload:
        for worker in range(layout.workers):
            own = worker_directory(settings.data, worker)
            if not own.is_dir():
                continue
            with suppress(DirectoryInUseError), DataDirectory.look(own):
                await check_start(
                    replace(settings, data=own, tier2=None),
                    offload=offload,
                    containers=layout.containers,
                    owned=layout.owned(worker),
                    verify=False,
                )


async def _epoch(files: Files) -> EpochRecord | None:
    """The log's epoch; None if it has no file. Raises CorruptDataError, VersionTooNewError."""
    found = await read_epoch(files, LOG)
    if found is None and await files.exists(f"{LOG}/EPOCH"):
        raise CorruptDataError(
            "the log's EPOCH file is damaged; restore a backup, or use penstock rebuild", file=f"{LOG}/EPOCH", offset=0
        )
    return found


async def _log_of_new(files: Files, epoch: EpochRecord | None) -> LogImage | None:
    """The log of a directory without metadata. Raises CorruptDataError."""
    if epoch is not None:
        return await read_log(files, LOG, epoch=epoch.epoch, seed=epoch.seed)
    if any(item.in_use for item in await list_log(files, LOG)):
        raise CorruptDataError(
            "the log has files, but its EPOCH file is missing; restore a backup, or use penstock rebuild",
            file=f"{LOG}/EPOCH",
            offset=0,
        )
    return None


async def _check_birth(data: Path, tier: TierPlace, image: LogImage | None) -> None:
    """A store without metadata is new, or the log holds everything since frame 1. Otherwise something was lost."""
    for directory in (CHUNKS, CATALOGUE):
        if not await tier.is_empty(directory):
            raise lost_part(
                data, missing=METADATA, found=directory if tier.place is None else f"{tier.place}/{directory}"
            )
    if (data / "workers").exists():
        raise lost_part(data, missing="workers.json", found="workers")
    first = image.chain[0].header.first_sequence if image is not None and image.chain else None
    if first is not None and first > 1:
        # Earlier frames were freed because the metadata holds them. Without metadata, no chunk can be found.
        raise lost_part(data, missing=METADATA, found=f"{LOG}, from frame {first}")
    if first is None and is_complete(data):
        raise lost_part(data, missing=f"{METADATA}, {LOG}", found="VERSION")


def _check_total(row: bytes, containers: int) -> None:
    if records.decode_store(row) != containers:
        raise InvalidArgumentError(
            "the number of containers is fixed when a store is created; use created_with",
            containers=containers,
            created_with=records.decode_store(row),
        )


def _check_log_reaches(look: MetadataLook, indexes: Sequence[int], epoch: EpochRecord, image: LogImage) -> None:
    """Refuse a log that lost its end: a start would delete chunks that only the lost frames name, and reuse addresses."""
    for index, row in zip(indexes, look.rows[1:], strict=True):
        if row is None:
            continue
        record = records.decode_container(row)
        if record.epoch > epoch.epoch:
            raise CorruptDataError(
                "metadata is newer than the log: they are from different copies; put both back from one copy",
                container=index,
                epoch=record.epoch,
                log_epoch=epoch.epoch,
            )
        if record.complete_upto > image.last:
            raise CorruptDataError(
                "the end of the log is missing: the metadata names later frames",
                container=index,
                known_address=record.complete_upto,
                log_last=image.last,
            )


async def _check_chunks(data: Path, look: MetadataLook, tier: TierPlace) -> None:
    """If some chunks are missing, their reads are refused. If all are missing, the place is probably not mounted."""
    named = next((found for found in look.first if found is not None), None)
    if named is None:
        return
    name = records.decode_chunk(named[1]).name
    try:
        await tier.objects.size(f"{CHUNKS}/{name}")
    except FileNotFoundError:
        if await tier.is_empty(CHUNKS):
            missing = CHUNKS if tier.place is None else f"{tier.place}/{CHUNKS}"
            raise lost_part(data, missing=missing, found=f"{METADATA}, which names {name}") from None
