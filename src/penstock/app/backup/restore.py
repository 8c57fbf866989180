"""A new data directory from a backup. Source: docs/design/0023-backup.md."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from penstock.app.backup.copy import CopiedFiles, Progress
from penstock.app.backup.manifest import DATA, Manifest, load_manifest
from penstock.app.backup.places import staged_directory
from penstock.app.embedded import nowhere
from penstock.app.erasure.key import ERASURE_KEY, erasure_key, read_key, write_key
from penstock.app.erasure.ledger import leave_ledger, read_ledger
from penstock.app.restored import settle_restored, write_marker
from penstock.app.segments import open_segments
from penstock.app.settings import EmbeddedSettings
from penstock.app.telemetry import Counters
from penstock.controller.controller import open_controller
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import CorruptDataError
from penstock.ports.offload import Offload
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.copy import Copied, checksum_file, copy_file
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.machine.rng import RealRng


async def verify_backup(backup: Path, *, progress: Progress | None = None) -> tuple[Manifest, dict[str, str]]:
    """Read every file of the backup and compare it with the manifest; return the manifest, and the differences by file.

    Raises InvalidArgumentError (no backup, or an unfinished one), CorruptDataError (the manifest is damaged),
    VersionTooNewError, OSError.
    """
    manifest, seen = load_manifest(backup), CopiedFiles(progress=progress)
    damage: dict[str, str] = {}
    offload = ThreadOffload()
    try:
        for path, expected in manifest.files.items():
            try:
                found = await _checksum(backup / DATA / path, offload)
            except FileNotFoundError:
                damage[path] = "file is missing"
                continue
            seen.note(path, found)
            if found != expected:
                damage[path] = _difference(found, expected)
    finally:
        await offload.close()
    return manifest, damage


async def _checksum(path: Path, offload: Offload) -> Copied:
    return await offload.run(lambda: checksum_file(path))


async def restore_backup(
    backup: Path,
    data: Path,
    *,
    ledger: Path | None = None,
    key: Path | None = None,
    keys: Sequence[str] = (),
    progress: Progress | None = None,
) -> Manifest:
    """Create a store from the backup in ``data``, which must be new or empty. The backup is not changed.

    Every file is compared with the manifest while it is copied. Then the store is opened once, to move its streams to
    new segments. So the copy refuses a position that the original reached after the backup, instead of returning other
    events (``streams.restored``). A store of several workers does this at its first start. The chunks are in ``data``.
    Until the directory is complete, it is called ``data.restoring``.

    ``ledger``: a ledger of the original. All that it lists is erased again before this returns; in a store of several
    workers, before its first start serves anybody. ``key``: the original's key, for digests in it. ``keys``: public keys that
    may have signed it; none: those of the backup.

    Raises InvalidArgumentError (no backup, or ``data`` is not empty), CorruptDataError (a file differs from the manifest, or
    the ledger is not as it was signed),
    VersionTooNewError, StorageFullError, OSError.
    """
    manifest, copied = load_manifest(backup), CopiedFiles(progress=progress)
    erased = None if ledger is None else read_ledger(ledger, keys)
    offload = ThreadOffload()
    try:
        with staged_directory(data, suffix="restoring", what="a restored store") as staging:
            for path, expected in manifest.files.items():
                found = await _copy(backup / DATA / path, staging / path, offload)
                if found != expected:
                    raise CorruptDataError(f"backup is damaged: {_difference(found, expected)}", file=path)
                copied.note(path, found)
            if (staging / ERASURE_KEY).exists():
                write_key(staging / ERASURE_KEY, read_key(staging / ERASURE_KEY))  # with its mode
            write_marker(staging, backup_ms=manifest.began_ms, rng=RealRng())
            if erased is not None:
                leave_ledger(staging, erased, key, keys=keys)
            if manifest.workers is None:
                await _settle(staging)
        return manifest
    finally:
        await offload.close()


async def _settle(data: Path) -> None:
    """Move the streams to new segments now, without running a retention cycle or a sweep."""
    clock, rng, telemetry = RealClock(), RealRng(), Counters()
    quiet = ControllerSettings(
        sweep_ms=None, retention_cycle_ms=None, watermark_ms=None, erasure_key=erasure_key(data, rng)
    )
    async with AsyncExitStack() as stack:
        directory = DataDirectory.open(data)
        stack.callback(directory.close)
        segments = await stack.enter_async_context(
            open_segments(EmbeddedSettings(data=data), clock=clock, rng=rng, telemetry=telemetry)
        )
        controller = await stack.enter_async_context(
            open_controller(segments, clock=clock, rng=rng, endpoint_of=nowhere, telemetry=telemetry, settings=quiet)
        )
        await settle_restored(data, controller)


async def _copy(source: Path, target: Path, offload: Offload) -> Copied:
    try:
        return await offload.run(lambda: copy_file(source, target))
    except FileNotFoundError as error:
        raise CorruptDataError("backup is damaged: a file is missing", file=str(source)) from error


def _difference(found: Copied, expected: Copied) -> str:
    if found.size_bytes != expected.size_bytes:
        return f"file has {found.size_bytes:,} bytes instead of {expected.size_bytes:,}"
    return "file fails its checksum"
