"""Where a store keeps its chunks: in its data directory, in another directory, or in an object store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from penstock.app.settings import EmbeddedSettings, is_loopback
from penstock.model.errors import InvalidArgumentError
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkStorage
from penstock.ports.files import Files
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.tasks import end_tasks
from penstock.storage.chunks.claim import TierRecord, claim_tier, load_record
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.chunks.shared_chunks import SharedChunks, SharedObjects
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.objects.file_objects import FileObjects

CHUNKS = "chunks"
HDFS = "hdfs"
_HANG_S = 5.0
"""How long a close waits for tier 2, seconds: once for its files, and once for its threads."""
_CATALOGUE_S = 60.0
"""How often changed metadata goes to an object store: 43,200 requests a month and container, 0.22 USD."""


def for_tier2(settings: StoreSettings, store: EmbeddedSettings, chunks: ChunkStorage) -> StoreSettings:
    """The settings, with few large writes if chunks are objects. The log holds data until it is written."""
    if chunks.mutable:
        return settings
    return replace(
        settings,
        tier_unit_bytes=min(store.tier2_unit_bytes, settings.chunk_bytes, settings.max_unflushed_bytes // 8),
        tier_run_bytes=settings.chunk_bytes,
        flush_interval_s=store.tier2_wait_ms / 1000,
        catalogue_interval_s=_CATALOGUE_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier2:
    """The storage of chunks and of the objects next to them: the catalogue."""

    chunks: ChunkStorage
    objects: Objects


@asynccontextmanager
async def open_tier2(
    settings: EmbeddedSettings, files: Files, *, offload: Offload, rng: Rng
) -> AsyncIterator[ChunkStorage]:
    """The chunk storage of ``open_tier``."""
    async with open_tier(settings, files, offload=offload, rng=rng) as tier:
        yield tier.chunks


@asynccontextmanager
async def open_tier(
    settings: EmbeddedSettings, files: Files, *, offload: Offload, rng: Rng, claims: bool = True
) -> AsyncIterator[Tier2]:
    """Tier 2 of the data directory ``files``, which must be held.

    The place of an existing store is fixed: settings without a tier 2 mean the one that it has. ``claims``: protect it from
    copies of the directory; not needed if something else decides who owns it.

    Raises InvalidArgumentError (another store's, missing, or of the wrong kind), UnavailableError (it does not answer).
    """
    found = await locate_tier(settings, files, offload=offload)
    async with AsyncExitStack() as stack:
        if found.place is not None and claims:
            await claim_tier(found.objects, files, place=found.place, endpoint=found.endpoint, rng=rng)
        objects = found.objects
        if isinstance(objects, HdfsTier):
            await objects.clear_unfinished()
            chunks: ChunkStorage = ObjectChunks(objects, check_wipe=objects.check_wipe)
        elif found.files is None:
            chunks = ObjectChunks(objects)
        elif found.place is None:
            chunks = FileChunks(files, directory=CHUNKS)
        else:
            # Threads of its own: a network file system that hangs must stop neither the log nor the end of the process.
            threads = ThreadOffload()
            stack.push_async_callback(threads.close, wait_s=_HANG_S)
            shared = RealFiles(Path(found.place), threads)
            chunks = SharedChunks(FileChunks(shared, directory=CHUNKS), shared)
            objects = SharedObjects(FileObjects(shared), shared)
        stack.push_async_callback(_close_soon, chunks)
        yield Tier2(chunks=chunks, objects=objects)


@asynccontextmanager
async def open_tier_objects(settings: EmbeddedSettings, files: Files, *, offload: Offload) -> AsyncIterator[Objects]:
    """The objects of tier 2 of the data directory ``files``, without a claim: for a log, whose owner owns them. Nothing is
    written to a shared directory before it has its mark. Raises as ``locate_tier``."""
    found = await locate_tier(settings, files, offload=offload)
    async with AsyncExitStack() as stack:
        if found.files is None or found.place is None:
            yield found.objects
            return
        threads = ThreadOffload(threads=2)
        stack.push_async_callback(threads.close, wait_s=_HANG_S)
        shared = RealFiles(Path(found.place), threads)
        yield SharedObjects(FileObjects(shared), shared)


@runtime_checkable
class HdfsTier(Objects, Protocol):
    """What HDFS needs of the owner of a prefix, beside ``Objects``."""

    async def clear_unfinished(self) -> None:
        """Delete what writers left that died while they wrote. Raises UnavailableError."""
        ...

    async def check_wipe(self, name: str) -> None:
        """Raises UnavailableError if the bytes of the object would survive its deletion."""
        ...


async def _close_soon(chunks: ChunkStorage) -> None:
    """Close the storage. If it hangs, nothing is lost by leaving its files open: what it acknowledged is synced."""
    closing = asyncio.create_task(chunks.close())
    _, late = await asyncio.wait({closing}, timeout=_HANG_S)
    if late:
        await end_tasks([closing])
    else:
        closing.result()


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPlace:
    """Location of tier 2 of a data directory. ``place`` None: the directory itself. ``files``: its files; None: a bucket."""

    record: TierRecord | None
    place: str | None
    endpoint: str | None
    objects: Objects
    files: Files | None

    async def is_empty(self, directory: str) -> bool:
        """Whether the directory is empty. Raises as the storage."""
        if self.files is not None:
            return not await self.files.list(directory)
        return not await self.objects.list(directory)


async def locate_tier(
    settings: EmbeddedSettings, files: Files, *, offload: Offload, read_only: bool = False
) -> TierPlace:
    """Find tier 2 of the data directory ``files``, without reading or changing anything in it.

    Raises InvalidArgumentError, CorruptDataError.
    """
    record = await load_record(files)
    place, endpoint = settings.tier2, settings.tier2_endpoint
    if place is None and record is not None:
        place, endpoint = record.place, endpoint or record.endpoint
    if place is None:
        return TierPlace(record=None, place=None, endpoint=None, objects=FileObjects(files), files=files)
    if record is None and await files.list(CHUNKS):
        raise InvalidArgumentError(
            "this store keeps its chunks in its data directory; tier 2 is chosen when a store is new",
            tier2=place,
            data=str(settings.data),
        )
    if url_parts(place).scheme:
        objects = _open_objects(place, endpoint, settings.plain_http_allowed)
        return TierPlace(record=record, place=place, endpoint=endpoint, objects=objects, files=None)
    directory = _checked_directory(place, settings.data)
    shared = RealFiles(directory, offload, read_only=read_only)
    return TierPlace(record=record, place=str(directory), endpoint=None, objects=FileObjects(shared), files=shared)


def check_place(settings: EmbeddedSettings) -> None:
    """Check the location of tier 2 before any part of a store is made. Makes no request.

    Raises InvalidArgumentError (no such directory or scheme, no URL, or a missing library).
    """
    place = settings.tier2
    if place is None:
        return
    if url_parts(place).scheme:
        _open_objects(place, settings.tier2_endpoint, settings.plain_http_allowed)
    else:
        _checked_directory(place, settings.data)


def tier2_of_worker(settings: EmbeddedSettings, worker: int) -> str | None:
    """The part of the store's tier 2 for one worker. Creates the directory if it is missing.

    Raises InvalidArgumentError as ``open_tier2``.
    """
    return None if settings.tier2 is None else part_of_tier2(settings.tier2, f"worker-{worker}", data=settings.data)


def part_of_tier2(place: str, part: str, *, data: Path) -> str:
    """The part of this name of a tier 2 that several logs share. Creates the directory if it is missing.

    Raises InvalidArgumentError as ``open_tier2``.
    """
    if url_parts(place).scheme:
        return f"{place.rstrip('/')}/{part}"
    own = _checked_directory(place, data) / part
    own.mkdir(mode=0o700, exist_ok=True)
    return str(own)


def shared_objects(place: str, endpoint: str | None, *, insecure: bool, offload: Offload) -> Objects:
    """The objects of a tier 2 that several machines reach. ``insecure``: plain HTTP beyond loopback is allowed. Makes no
    request. Raises InvalidArgumentError."""
    if url_parts(place).scheme:
        return open_objects(place, endpoint, insecure=insecure)
    return FileObjects(RealFiles(_existing_directory(place), offload))


def open_objects(url: str, endpoint: str | None, *, insecure: bool) -> Objects:
    """The objects of a tier 2 in a bucket or in HDFS. ``insecure``: plain HTTP beyond loopback is allowed. Makes no request.
    Raises InvalidArgumentError, also if the library for it is missing."""
    return _open_objects(url, endpoint, lambda host: insecure or is_loopback(host))


def _open_objects(url: str, endpoint: str | None, plain_http_allowed: Callable[[str], bool]) -> Objects:
    if url_parts(url).scheme != HDFS:
        _check_url(endpoint, plain_http_allowed)
        return open_bucket(url, endpoint)
    if endpoint is not None:
        raise InvalidArgumentError("an S3 endpoint belongs to a bucket, not to HDFS", tier2=url, endpoint=endpoint)
    try:
        from penstock.storage.objects.hdfs_objects import HdfsObjects
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "hdfs_native":
            raise
        raise InvalidArgumentError("tier 2 in HDFS needs: pip install 'penstock[hdfs]'", tier2=url) from error
    return HdfsObjects(url)


def open_bucket(url: str, endpoint: str | None) -> Objects:
    """The objects below the prefix in the URL. Raises InvalidArgumentError if the library for it is missing."""
    try:
        from penstock.storage.objects.cloud_objects import BucketObjects
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "obstore":
            raise
        raise InvalidArgumentError("tier 2 in an object store needs: pip install 'penstock[s3]'", tier2=url) from error
    return BucketObjects(url, endpoint=endpoint)


def _check_url(endpoint: str | None, plain_http_allowed: Callable[[str], bool]) -> None:
    """Raises InvalidArgumentError if this is no URL, or if it would send data without TLS."""
    if endpoint is None:
        return
    parts = url_parts(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or "@" in endpoint:
        raise InvalidArgumentError("the S3 endpoint must have the form https://host[:port]", endpoint=endpoint)
    if parts.scheme == "http" and not plain_http_allowed(parts.hostname):
        raise InvalidArgumentError("refusing S3 without TLS beyond loopback; --insecure allows it", endpoint=endpoint)


def _checked_directory(place: str, data: Path) -> Path:
    """The directory, which must exist: a missing path is probably not mounted."""
    directory, own = _existing_directory(place), Path(data).absolute()
    real, own = directory.resolve(), own.resolve()
    if real.is_relative_to(own) or own.is_relative_to(real):
        raise InvalidArgumentError(
            "tier 2 and the data directory must not contain each other", tier2=place, data=str(data)
        )
    return directory


def _existing_directory(place: str) -> Path:
    directory = Path(place).absolute()
    if not directory.is_dir():
        raise InvalidArgumentError("the directory of tier 2 does not exist: mount or create it", tier2=place)
    return directory
