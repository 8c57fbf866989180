"""A backup of a store that may be running. Source: docs/design/0023-backup.md."""

from __future__ import annotations

from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path

from penstock.app.backup.contents import Contents, contents_of
from penstock.app.backup.copy import CopiedFiles, DirectoryCopy, Progress
from penstock.app.backup.manifest import DATA, LogPosition, Manifest, save_manifest
from penstock.app.backup.places import staged_directory
from penstock.app.erasure.key import ERASURE_KEY
from penstock.app.settings import EmbeddedSettings
from penstock.app.workers.layout import RECORD as WORKERS_RECORD
from penstock.app.workers.layout import WorkerLayout, check_workers_there, load_layout, worker_directory
from penstock.model.errors import DirectoryInUseError, InvalidArgumentError
from penstock.storage.machine.calls import make_directories
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.copy import copy_file
from penstock.storage.machine.data_directory import VERSION, DataDirectory, check_directory, is_complete
from penstock.storage.machine.offload import ThreadOffload


async def take_backup(
    data: Path,
    backup: Path,
    *,
    endpoint: str | None = None,
    insecure: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Copy the store in ``data``, which may be running, to ``backup``, which must be new or empty.

    The copy contains everything that the store acknowledged before the call. Until the directory is complete, it is called
    ``backup.partial``; an error deletes it. During the copy, the store serves requests but frees no chunks.

    Raises: InvalidArgumentError (no store, or ``backup`` is not empty), DirectoryInUseError (a running store of several
    workers), UnavailableError (tier 2 is away, another backup runs, the store was restarted), UnsupportedError (a file system
    without locks), StorageFullError (where ``backup`` is), CorruptDataError (the store would not start either),
    VersionTooNewError, OSError.
    """
    data, backup = _checked_places(data, backup)
    clock, offload = RealClock(), ThreadOffload()
    began_ms = clock.now_ms()
    settings = EmbeddedSettings(data=data, tier2_endpoint=endpoint, tier2_insecure=insecure)
    try:
        with staged_directory(backup, suffix="partial", what="a backup") as staging, ExitStack() as stack:
            layout = load_layout(data)
            if layout is not None:
                _keep_stopped(data, layout, stack)
            copied = CopiedFiles(progress=progress)
            logs, places = await _copy_all(data, staging / DATA, layout, settings, offload, copied)
            contents = await _contents(staging / DATA, layout, offload)
            manifest = Manifest(
                penstock=version("penstock"),
                began_ms=began_ms,
                ended_ms=clock.now_ms(),
                source=str(data),
                tier2=places[0],
                workers=None if layout is None else layout.workers,
                logs=logs,
                streams=contents.streams,
                erasures=contents.erasures,
                missing=contents.missing,
                unreadable=contents.unreadable,
                files=copied.files,
            )
            save_manifest(staging, manifest)
        return manifest
    finally:
        await offload.close()


async def _contents(copy: Path, layout: WorkerLayout | None, offload: ThreadOffload) -> Contents:
    """Recover the copy, or the copy of each worker, which has no streams. Raises what a start raises."""
    if layout is None:
        return await contents_of(copy, offload=offload)
    missing: list[str] = []
    for number in range(layout.workers):
        own = await contents_of(worker_directory(copy, number), offload=offload)
        missing += own.missing
    return Contents(missing=missing)


async def _copy_all(
    data: Path,
    target: Path,
    layout: WorkerLayout | None,
    settings: EmbeddedSettings,
    offload: ThreadOffload,
    copied: CopiedFiles,
) -> tuple[list[LogPosition], list[str | None]]:
    prefixes = [""] if layout is None else [f"workers/{number}" for number in range(layout.workers)]
    logs: list[LogPosition] = []
    places: list[str | None] = []
    make_directories(target)
    for prefix in dict.fromkeys(["", *prefixes]):
        _copy_small(data, target, f"{prefix}/{VERSION}".lstrip("/"), copied)
    if layout is not None:
        _copy_small(data, target, WORKERS_RECORD, copied)
    if (data / ERASURE_KEY).exists():
        # A restored store compares digests of cases with it. The backup holds the events themselves anyway.
        _copy_small(data, target, ERASURE_KEY, copied)
        (target / ERASURE_KEY).chmod(0o600)
    for prefix in prefixes:
        one = DirectoryCopy(
            source=data / prefix,
            target=target / prefix,
            prefix=prefix,
            settings=settings,
            offload=offload,
            copied=copied,
        )
        position, place = await one.run()
        logs.append(position)
        places.append(place)
    return logs, places


def _copy_small(data: Path, target: Path, path: str, copied: CopiedFiles) -> None:
    copied.note(path, copy_file(data / path, target / path))


def _checked_places(data: Path, backup: Path) -> tuple[Path, Path]:
    """Both paths, absolute. Raises InvalidArgumentError, CorruptDataError, VersionTooNewError."""
    if not data.is_dir():
        raise InvalidArgumentError("the data directory does not exist", path=str(data))
    # Before check_directory, whose advice is about a new store.
    if not is_complete(data):
        raise InvalidArgumentError(
            "there is no store in this directory, or its first start did not complete", path=str(data)
        )
    check_directory(data)
    if backup.resolve().is_relative_to(data.resolve()):
        raise InvalidArgumentError("a backup must not lie in the data directory", data=str(data), backup=str(backup))
    return data.absolute(), backup.absolute()


def _keep_stopped(data: Path, layout: WorkerLayout, stack: ExitStack) -> None:
    """Keep a store of several workers stopped: their running logs have no common position, so a copy could hold half of
    a transaction.

    Raises DirectoryInUseError, CorruptDataError.
    """
    check_workers_there(data, range(layout.workers))
    try:
        for directory in (data, *(worker_directory(data, number) for number in range(layout.workers))):
            stack.callback(DataDirectory.look(directory).close)
    except DirectoryInUseError as error:
        raise DirectoryInUseError(
            "a store of several workers cannot be backed up while it runs; stop it, or back up a snapshot of its file system",
            **error.fields,
        ) from error
