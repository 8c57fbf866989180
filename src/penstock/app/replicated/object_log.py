"""A store's log in its tier 2, opened for its store alone. Source: docs/design/0064-start-elsewhere.md."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import field, replace
from pathlib import Path

from penstock.app.replicated.binding import bound_log, check_record, read_record
from penstock.app.replicated.log_place import TIER2_LOG, parse_log_place, read_mark
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import TierPlace, locate_tier
from penstock.codec.log_objects import DIRECTORY
from penstock.codec.store.ledger_entries import decode_header
from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    CorruptDataError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
    VersionTooNewError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.nodes import VersionedNodes
from penstock.ports.files import Files
from penstock.ports.objects import ExclusiveObjects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.segmentstore.tasks import end_tasks
from penstock.storage.chunks.claim import claim_tier
from penstock.storage.chunks.shared_chunks import check_mark
from penstock.storage.ledgers.keyring import Sealing
from penstock.storage.ledgers.ledger_log import LedgerLog
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.object_log.bucket_record import BucketRecord
from penstock.storage.object_log.directory import DirectoryObjects, DirectoryRecord
from penstock.storage.object_log.ledgers import ObjectLedgers, open_object_ledgers
from penstock.storage.object_log.limits import ObjectLogLimits

_HANG_S = 5.0
_TRIES = 3  # trials of one start
_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class LogObjects:
    """What a log in tier 2 is kept in. ``is_claimed``: tier 2 has its mark, so without it the directory is not mounted."""

    records: VersionedNodes
    objects: ExclusiveObjects
    tier: TierPlace
    limits: ObjectLogLimits
    is_claimed: bool = field(default=False)


@asynccontextmanager
async def open_log_objects(
    settings: EmbeddedSettings, files: Files, *, offload: Offload, rng: Rng
) -> AsyncIterator[LogObjects]:
    """The place of the log in tier 2 of the data directory ``files``. Makes no request. Raises InvalidArgumentError: no tier
    2 is given."""
    tier = await locate_tier(settings, files, offload=offload)
    if tier.place is None:
        raise InvalidArgumentError(
            "--ack tier2 needs a tier 2 outside the data directory: give --tier2 a bucket or a directory",
            data=str(settings.data),
        )
    async with AsyncExitStack() as stack:
        if tier.files is None:
            limits = ObjectLogLimits(interval_s=settings.ack_wait_ms / 1000)
            yield _in_bucket(tier, limits)
            return
        threads = ThreadOffload(threads=8)
        stack.push_async_callback(threads.close, wait_s=_HANG_S)
        root = Path(tier.place)
        shared = RealFiles(root, threads)

        async def check() -> None:
            if place.is_claimed:
                await check_mark(shared)

        place = LogObjects(
            records=DirectoryRecord(root, threads, rng=rng, check=check),
            objects=DirectoryObjects(root, threads, rng=rng, check=check),
            tier=tier,
            # A write costs nothing here. While one is under way, the next one collects.
            limits=ObjectLogLimits(interval_s=0, writes=1),
        )
        yield place


@asynccontextmanager
async def open_object_log(
    settings: EmbeddedSettings,
    files: Files,
    *,
    offload: Offload,
    clock: Clock,
    rng: Rng,
    is_new: bool,
    epoch_min: int,
    tier: str | None,
    sealing: Sealing,
) -> AsyncIterator[LedgerLog]:
    """The log of the store in ``files``, which the caller holds, in its tier 2. Arguments and errors are those of
    ``open_replicated_log``. Raises UnsupportedError: tier 2 does not decide which of two writers makes an object."""
    place = parse_log_place(TIER2_LOG)
    async with open_log_objects(settings, files, offload=offload, rng=rng) as kept:
        record = await read_record(kept.records, place.path)
        mark = await offload.run(lambda: read_mark(settings.data))
        check_record(record, mark, is_new=is_new, epoch_min=epoch_min, url=TIER2_LOG)
        if record is None:
            # The mark of tier 2 comes first: an object of the log must not be written where no tier 2 is mounted.
            found = kept.tier
            await claim_tier(found.objects, files, place=str(found.place), endpoint=found.endpoint, rng=rng)
        kept.is_claimed = True
        await check_conditions(kept, rng=rng)
        async with (
            open_object_ledgers(kept.objects, clock=clock, rng=rng, limits=kept.limits) as ledgers,
            bound_log(
                ledgers,
                kept.records,
                place,
                TIER2_LOG,
                settings.data,
                rng=rng,
                is_new=is_new,
                epoch_min=epoch_min,
                tier=tier,
                sealing=replace(sealing, is_in_tier2=True),
            ) as log,
        ):
            removing = asyncio.create_task(_remove_orphans(kept, place.path, ledgers))
            try:
                yield log
            finally:
                await end_tasks([removing])


async def check_conditions(kept: LogObjects, *, rng: Rng) -> None:
    """Check that tier 2 refuses to create a name twice, and to replace an outdated version. Raises UnsupportedError,
    UnavailableError."""
    for _ in range(_TRIES):
        trial = f"{DIRECTORY}/trial-{rng.uuid().hex}"
        try:
            await _try_conditions(kept, trial)
            return
        except (AlreadyExistsError, ConditionFailedError) as error:
            # A client repeats a request whose answer was lost, and then meets what it has written itself.
            refused = error
        finally:
            await _clear_trial(kept, trial)
    raise UnavailableError("tier 2 refuses writes whose conditions are met", cause=str(refused)) from refused


async def _try_conditions(kept: LogObjects, trial: str) -> None:
    """Raises AlreadyExistsError, ConditionFailedError: a write was refused that has to succeed."""
    await kept.objects.create_new(f"{trial}/1", b"first")
    try:
        await kept.objects.create_new(f"{trial}/1", b"second")
    except AlreadyExistsError:
        pass
    else:
        raise _ignored(kept)
    await kept.records.create(f"{trial}/record", b"first")
    await kept.records.set(f"{trial}/record", b"second", version=0)
    with suppress(ConditionFailedError):
        await kept.records.set(f"{trial}/record", b"third", version=0)
        raise _ignored(kept)


async def _clear_trial(kept: LogObjects, trial: str) -> None:
    """Delete the objects of a trial. They have no meaning, so a tier 2 that does not answer may keep them."""
    try:
        async with asyncio.timeout(_HANG_S):
            for name in sorted(await kept.objects.list(trial), reverse=True):
                await kept.objects.delete(name)
    except (UnavailableError, TimeoutError) as error:
        _log.warning("objects of a trial were not deleted", extra={"objects": trial, "error": str(error)})


def _in_bucket(tier: TierPlace, limits: ObjectLogLimits) -> LogObjects:
    from penstock.storage.objects.cloud_objects import BucketObjects  # only here: the library is an extra

    bucket = tier.objects
    if not isinstance(bucket, BucketObjects):
        raise InternalError("a log is kept in a tier 2 that cannot have it", tier2=tier.place)
    return LogObjects(records=BucketRecord(bucket), objects=bucket, tier=tier, limits=limits)


def _ignored(kept: LogObjects) -> UnsupportedError:
    return UnsupportedError(
        "tier 2 ignores conditions on writes, so two servers could both acknowledge: keep the log on a disk or on BookKeeper",
        tier2=kept.tier.place,
    )


async def _remove_orphans(kept: LogObjects, path: str, ledgers: ObjectLedgers) -> None:
    """Delete ledgers that earlier openings left. The record does not name them, and never will: only their own opening could
    have added them, and its epoch is over."""
    try:
        present = await ledgers.present()
        record = await read_record(kept.records, path)
    except (UnavailableError, CorruptDataError, VersionTooNewError) as error:
        _log.warning("ledgers of earlier starts were not deleted", extra={"error": str(error)})
        return
    if record is None:
        return
    named = {one.ledger for one in record.ledgers}
    for ledger in (one for one in present if one not in named):
        try:
            header = await ledgers.header(ledger)
            if header is None or decode_header(header, ledger=ledger).epoch < record.epoch:
                await ledgers.delete(ledger)
        except (UnavailableError, CorruptDataError, VersionTooNewError) as error:
            _log.warning("ledger of an earlier start was not deleted", extra={"ledger": ledger, "error": str(error)})
