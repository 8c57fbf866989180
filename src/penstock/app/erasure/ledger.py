"""Ledgers of erasures on files, and the first start of a store with one. Source: docs/design/0057-erasure-ledger.md."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from penstock.app.erasure.key import ERASURE_KEY, read_key, write_key
from penstock.controller.controller import Controller
from penstock.core.cases.ledger import Ledger, ledger_lines, ledger_of
from penstock.core.evidence.signers import check_signed, trusted_keys
from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.storage.machine.calls import replace_file, sync_directory

log = logging.getLogger(__name__)

PENDING = "erasures.ledger"
"""In a data directory: the ledger that the next start applies before it serves anybody."""
PENDING_KEYS = "erasures.ledger.keys"
"""Beside it: the public keys that may have signed it, one a line. Absent: those of the store."""


def write_ledger(file: Path, ledger: Ledger) -> None:
    """Write the ledger, durably, in place of an earlier one. Raises StorageFullError, OSError."""
    replace_file(file, b"".join(line + b"\n" for line in ledger_lines(ledger)))


def read_ledger(file: Path, keys: Sequence[str] = ()) -> Ledger:
    """The ledger, verified against ``keys`` (public keys as ``penstock audit key`` prints them). Without keys its signature
    is left to the store that applies it.

    Raises InvalidArgumentError (there is no such file, or a key is malformed), CorruptDataError (it was changed or cut
    off, or no such key has signed it), VersionTooNewError, OSError.
    """
    try:
        data = file.read_bytes()
    except FileNotFoundError as error:
        raise InvalidArgumentError("there is no such ledger of erasures", file=str(file)) from error
    ledger = ledger_of(data.splitlines())
    if keys:
        check_signed(ledger, trusted_keys(keys))
    return ledger


def leave_ledger(data: Path, ledger: Ledger, key: Path | None = None, *, keys: Sequence[str] = ()) -> None:
    """Make the next start of the store in ``data`` apply the ledger before it serves. ``key``: the file of the
    original's key, for digests; None: ``data`` has it. ``keys``: public keys against which the start verifies it; none:
    the store's own. Raises CorruptDataError, OSError."""
    if key is not None:
        write_key(data / ERASURE_KEY, read_key(key))
    (data / PENDING_KEYS).unlink(missing_ok=True)
    if keys:
        replace_file(data / PENDING_KEYS, "".join(f"{item.strip()}\n" for item in keys).encode())
    write_ledger(data / PENDING, ledger)


async def settle_ledger(data: Path, controller: Controller) -> None:
    """If ``leave_ledger`` left a ledger, verify it and erase what it lists. Serve no client before this returns.

    A crash leaves the file, and the next start goes on. Raises CorruptDataError (it is not signed by a key of this store),
    VersionTooNewError, InvalidArgumentError (the digests need another key), OSError, and what erasing raises.
    """
    file = data / PENDING
    if not file.exists():
        return
    keys = data / PENDING_KEYS
    given = keys.read_text().split() if keys.exists() else []
    trusted = given or await controller.audit_keys()
    if not trusted:
        raise CorruptDataError(
            "this copy is older than the first key of the original, so it cannot verify the ledger; "
            "give the public key (--public-key) that penstock audit key printed",
            file=str(file),
        )
    ledger = read_ledger(file, trusted)
    done = await controller.reapply_erasures(ledger)
    file.unlink()
    keys.unlink(missing_ok=True)
    sync_directory(data)
    extra = {
        "erasures": done.erasures,
        "events": done.events,
        "cases": done.cases,
        "cases_without_values": done.unsearched,
    }
    log.warning("erasures of the ledger were performed again", extra=extra)
