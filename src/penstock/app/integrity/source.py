"""Read-only access to stored data: a data directory, a directory of tier 2, a bucket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from penstock.app.replicated.log_place import refuse_replicated
from penstock.app.tier2 import open_objects
from penstock.app.workers.layout import load_layout, worker_directory
from penstock.codec.store.catalogue import DIRECTORY
from penstock.model.errors import InvalidArgumentError, PenstockError
from penstock.model.urls import url_parts
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkStorage
from penstock.ports.files import Files
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.storage.chunks.claim import MARK, RECORD, load_record
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.chunks.object_chunks import ObjectChunks
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.files import RealFiles
from penstock.storage.objects.file_objects import FileObjects


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Tier 2, and the data directory if there is one. Nothing is opened for writing."""

    place: str
    chunks: ChunkStorage
    objects: Objects
    data: Path | None = None
    files: Files | None = None


@asynccontextmanager
async def open_source(
    place: str, *, offload: Offload, endpoint: str | None = None, insecure: bool = False
) -> AsyncIterator[Source]:
    """Open ``place``: a data directory with its tier 2, a directory of tier 2, or the URL of a bucket.

    A data directory is locked against other processes meanwhile. Raises DirectoryInUseError, InvalidArgumentError (no
    store there, or one of several workers, which each have a directory), UnavailableError.
    """
    async with AsyncExitStack() as stack:
        data: Path | None = None
        files: Files | None = None
        tier = place
        held = None if url_parts(place).scheme else _hold(place)
        if held is not None:
            stack.callback(held.close)
            data = held.path
            files = RealFiles(data, offload, read_only=True)
            record = await load_record(files) if await files.exists(RECORD) else None
            tier = str(data) if record is None else record.place
            endpoint = endpoint or (record.endpoint if record is not None else None)
        if url_parts(tier).scheme:
            objects = open_objects(tier, endpoint, insecure=insecure)
            chunks: ChunkStorage = ObjectChunks(objects)
        else:
            below = RealFiles(tier, offload, read_only=True)
            chunks, objects = FileChunks(below, directory="chunks"), FileObjects(below)
        stack.push_async_callback(chunks.close)
        yield Source(place=tier, chunks=chunks, objects=objects, data=data, files=files)


def _hold(place: str) -> DataDirectory | None:
    """The locked data directory; None for a directory of tier 2 alone, which another host may be using."""
    path = Path(place).absolute()
    if path.is_dir() and (path / MARK).exists():
        return None
    held = DataDirectory.look(path)
    try:
        layout = load_layout(path)
    except PenstockError:
        held.close()
        raise
    if layout is not None:
        held.close()
        # This directory itself holds no store data: the report "the metadata is missing" would be a false alarm.
        raise InvalidArgumentError(
            "this store is spread over several workers: name the directory of one of them",
            path=str(path),
            workers=layout.workers,
            first=str(worker_directory(path, 0)),
        )
    try:
        refuse_replicated(path, what="a command on the stopped store")
    except PenstockError:
        held.close()
        raise
    if not holds_something(path):
        held.close()
        raise InvalidArgumentError("the directory holds no store", path=str(path))
    return held


def holds_something(directory: Path) -> bool:
    """Whether the directory looks like a data directory or like tier 2."""
    return any(
        (directory / name).exists() for name in ("VERSION", "wal", "metadata", "chunks", DIRECTORY, RECORD, MARK)
    )
