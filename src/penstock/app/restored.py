"""The first start of a restored or rebuilt store: its streams continue in segments that no other copy of it has.

Source: docs/design/0023-backup.md, docs/formats/backup.md.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from penstock.app.erasure.ledger import settle_ledger
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


def write_marker(data: Path, *, backup_ms: int, rng: Rng) -> None:
    """Record durably that ``data`` was restored or rebuilt and not started yet.

    ``backup_ms``: the moment of which the copy is. Raises StorageFullError, OSError.
    """
    jump = _JUMP_MIN + rng.randrange(_JUMP_SPAN)
    fields = {"format": FORMAT_VERSION, "backup_ms": backup_ms, "jump": jump}
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
    file = data / MARKER
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        return
    try:
        fields = json.loads(text)
        version, jump = int(fields["format"]), int(fields["jump"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            "record of the restore cannot be read; restore the backup again", file=str(file)
        ) from error
    if version > FORMAT_VERSION:
        raise VersionTooNewError("data directory was restored by a newer version", file=str(file), version=version)
    streams = await controller.begin_restored(jump)
    file.unlink()
    sync_directory(data)
    log.warning("restored store continues in new segments", extra={"streams": streams, "jump": jump})
