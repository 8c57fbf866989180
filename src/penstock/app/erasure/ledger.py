"""Ledgers of erasures on files, and the first start of a store with one. Source: docs/design/0057-erasure-ledger.md."""

from __future__ import annotations

import logging
from pathlib import Path

from penstock.app.erasure.key import ERASURE_KEY, read_key, write_key
from penstock.controller.controller import Controller
from penstock.core.cases.ledger import Ledger, ledger_lines, ledger_of
from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.calls import replace_file, sync_directory

log = logging.getLogger(__name__)

PENDING = "erasures.ledger"
"""In a data directory: the ledger that the next start applies before it serves anybody."""


def write_ledger(file: Path, ledger: Ledger) -> None:
    """Write the ledger, durably, in place of an earlier one. Raises StorageFullError, OSError."""
    replace_file(file, b"".join(line + b"\n" for line in ledger_lines(ledger)))


def read_ledger(file: Path) -> Ledger:
    """Raises InvalidArgumentError (there is no such file), CorruptDataError, VersionTooNewError, OSError."""
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise InvalidArgumentError("there is no such ledger of erasures", file=str(file)) from error
    return ledger_of(data.splitlines())


def leave_ledger(data: Path, ledger: Ledger, key: Path | None = None) -> None:
    """Make the next start of the store in ``data`` apply the ledger before it serves. ``key``: the file of the
    original's key, for digests; None: ``data`` has it. Raises CorruptDataError, OSError."""
    if key is not None:
        write_key(data / ERASURE_KEY, read_key(key))
    write_ledger(data / PENDING, ledger)


async def settle_ledger(data: Path, controller: Controller) -> None:
    """If ``leave_ledger`` left a ledger, erase what it lists. Serve no client before this returns.

    A crash leaves the file, and the next start goes on. Raises CorruptDataError, VersionTooNewError,
    InvalidArgumentError (the digests need another key), OSError, and what erasing raises.
    """
    file = data / PENDING
    if not file.exists():
        return
    done = await controller.reapply_erasures(read_ledger(file))
    file.unlink()
    sync_directory(data)
    extra = {
        "erasures": done.erasures,
        "events": done.events,
        "cases": done.cases,
        "cases_without_values": done.unsearched,
    }
    log.warning("erasures of the ledger were performed again", extra=extra)
