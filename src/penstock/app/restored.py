"""The first start of a restored or rebuilt store: its streams continue in segments that no other copy of it has.

Source: docs/design/0023-backup.md, docs/formats/backup.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.app.erasure.ledger import settle_ledger
from penstock.app.integrity.reconcile import Reconciled, StoredSegments, reconcile_segments
from penstock.controller.controller import Controller
from penstock.model.errors import CorruptDataError, VersionTooNewError
from penstock.ports.rng import Rng
from penstock.storage.machine.calls import replace_file, sync_directory

log = logging.getLogger(__name__)

MARKER = "restored.json"
FORMAT_VERSION = 1
_JUMP_MIN, _JUMP_SPAN = 1 << 20, 1 << 23
"""Segment numbers have 31 bits. A jump is far more than the original uses after the backup, it leaves room for two hundred
successive restores, and two restores of one backup seldom get the same."""


def write_marker(data: Path, *, backup_ms: int, rng: Rng, reconcile: bool = False) -> None:
    """Record durably that ``data`` was restored or rebuilt and not started yet.

    ``backup_ms``: the moment of which the copy is. ``reconcile``: streams and segments are not consistent yet. Raises
    StorageFullError, OSError.
    """
    jump = _JUMP_MIN + rng.randrange(_JUMP_SPAN)
    fields: dict[str, int | bool] = {"format": FORMAT_VERSION, "backup_ms": backup_ms, "jump": jump}
    if reconcile:
        fields["reconcile"] = True
    replace_file(data / MARKER, json.dumps(fields).encode() + b"\n")


async def settle_restored(data: Path, controller: Controller) -> None:
    """Do what a restore left to the first start: new segments for all streams, then the erasures of a ledger. Serve no
    client before this returns.

    A crash leaves what is not done to the next start. Raises CorruptDataError, VersionTooNewError, OSError, what scaling
    a stream raises, and what ``settle_ledger`` raises.
    """
    await _settle_marker(data, controller)
    await settle_ledger(data, controller)


async def _settle_marker(data: Path, controller: Controller) -> None:
    """If ``write_marker`` left a marker, move all streams to new segments and remove it. Serve no client before this returns.

    A crash leaves the marker: the next start repeats the step, and streams get one more epoch.
    Raises CorruptDataError, VersionTooNewError, OSError, and what scaling a stream raises.
    """
    fields = _read_marker(data)
    if fields is None:
        return
    jump = int(fields["jump"])
    streams = await controller.begin_restored(jump)
    (data / MARKER).unlink()
    sync_directory(data)
    log.warning("restored store continues in new segments", extra={"streams": streams, "jump": jump})


async def reconcile_restored(data: Path, segments: StoredSegments) -> None:
    """If a worker was repaired and has lost something, make streams and segments consistent, before the controller opens. A
    crash leaves it to the next start. Raises CorruptDataError, VersionTooNewError, and what the segments raise."""
    fields = _read_marker(data)
    if fields is None or not fields.get("reconcile"):
        return
    found = Reconciled()
    await reconcile_segments(segments, found)
    for sentence in found.made:
        log.warning("repaired store: %s", sentence)
    for sentence in found.unreadable:
        log.error("repaired store: cannot be read: %s", sentence)


def _read_marker(data: Path) -> Mapping[str, Any] | None:
    """The fields of the marker; None: there is none. Raises CorruptDataError, VersionTooNewError."""
    file = data / MARKER
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return None
    try:
        fields: Mapping[str, Any] = json.loads(text)
        version, _ = int(fields["format"]), int(fields["jump"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            "record of the restore cannot be read; restore the backup again", file=str(file)
        ) from error
    if version > FORMAT_VERSION:
        raise VersionTooNewError("data directory was restored by a newer version", file=str(file), version=version)
    return fields
