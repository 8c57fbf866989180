"""Checks the files with secrets of a data directory: the key that signs the audit log, and those of ``access/``.

A store starts without them, and fails only when it signs or when a caller logs in. The controller's records say which
keys must exist; the rehearsal of a start reads them.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from penstock.codec.control.audit_log import AuditCheckpointRecord, AuditKeysRecord
from penstock.codec.notes import VerifierKey
from penstock.controller import keys
from penstock.controller.metadata import Metadata, stored
from penstock.controller.retention_keys import audit_checkpoints, audit_keys
from penstock.core.evidence.audit_log import ORIGIN_PREFIX
from penstock.core.evidence.documents import history, line
from penstock.core.evidence.verify import verify
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import (
    CorruptDataError,
    PenstockError,
    VersionTooNewError,
)
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.tables import TableEntry, Tables
from penstock.storage.access.secret_files import FOLDER
from penstock.storage.access.store_key import key_path, load_key
from penstock.storage.access.token_list import load_tokens, tokens_path
from penstock.storage.access.users_file import load_users, users_path
from penstock.storage.machine.signing_keys import DIRECTORY, FileSigningKeys

R = TypeVar("R", AuditKeysRecord, AuditCheckpointRecord)

_TRIAL = b"penstock doctor\n"
"""The text that the key signs as a test. No document of evidence begins like this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogKey:
    """One audit log, from the records. ``last``: its newest checkpoint; None if it has no checkpoint."""

    origin: str
    record: AuditKeysRecord
    last: AuditCheckpointRecord | None

    @property
    def verifier(self) -> VerifierKey:
        return VerifierKey(name=self.origin, public=self.record.public)


@dataclass(slots=True)
class Secrets:
    """Facts for the report, and the files that cannot be used."""

    facts: dict[str, Any] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)

    def note(self, place: Path | str, why: str) -> None:
        self.damage.append(Damage(kind=DamageKind.SECRET, place=str(place), why=why))


async def recorded_keys(segments: Tables) -> list[LogKey]:
    """The keys of all audit logs of the store; none if its controller's table is elsewhere.

    Records that cannot be read are left out: the check of the rows reports them.
    """
    found: list[LogKey] = []
    metadata = Metadata(segments, keys.TABLE)
    prefix = audit_keys("")
    try:
        async for entry in metadata.scan_all(prefix):
            name = entry.key.removeprefix(prefix).decode("ascii", "replace")
            record, last = _read(entry, AuditKeysRecord), None
            async for checkpoint in metadata.scan_all(audit_checkpoints(name)):
                last = _read(checkpoint, AuditCheckpointRecord) or last
            if record is not None:
                found.append(LogKey(origin=ORIGIN_PREFIX + name, record=record, last=last))
    except PenstockError:
        # Another worker has the table, no table exists yet, or it is damaged. The check of the rows reports damage.
        return []
    return found


def sorted_keys(found: list[LogKey]) -> list[LogKey]:
    """The keys in the order of their last signatures, so the current key is at the end."""
    return sorted(found, key=lambda one: -1 if one.last is None else one.last.at_ms)


def _read(entry: TableEntry, kind: type[R]) -> R | None:
    try:
        return stored(entry, kind).value
    except (CorruptDataError, VersionTooNewError):
        return None


def check_secrets(data: Path, recorded: list[LogKey]) -> Secrets:
    """Check the files in ``data``. ``recorded``: from ``recorded_keys``, in the order of
    ``sorted_keys``. Changes nothing."""
    found = Secrets()
    folder = data / DIRECTORY
    files = sorted(folder.glob("*.key"))
    for path in files:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            found.note(path, "others can read the private key: chmod 600")
    for one in recorded:
        _check_records(one, found)
    if recorded:
        # A rotation deletes the private keys of all other logs: only the current one can sign.
        public = recorded[-1].record.public
        _try(found, folder / f"{public.hex()}.key", lambda: FileSigningKeys(data).sign(public, _TRIAL))
    users = _try(found, users_path(data), lambda: len(load_users(users_path(data))))
    _try(found, tokens_path(data), lambda: load_tokens(tokens_path(data)))
    has_key = key_path(data).exists()
    if has_key:
        _try(found, key_path(data), lambda: load_key(data).id)
    found.facts = {
        "audit_keys": len(files),
        "audit_key": recorded[-1].verifier.text if recorded else None,
        "users": users if (data / FOLDER / users_path(data).name).exists() else None,
        "tokens_key": has_key,
    }
    return found


def _try(found: Secrets, path: Path, use: Callable[[], Any]) -> Any:
    """The result of ``use``; None if it fails, which is noted."""
    try:
        return use()
    except PenstockError as error:
        if not any(item.place == str(path) for item in found.damage):
            found.note(path, error.message)
    except OSError as error:
        found.note(path, f"the file cannot be read: {error.strerror}")
    return None


def _check_records(one: LogKey, found: Secrets) -> None:
    """The rotations must lead from the first key to the present one, and one of these keys signed the last checkpoint."""
    rotations = list(one.record.rotations)
    known = [rotations[0]["old"] if rotations else one.verifier.text]
    if rotations:
        ends = rotations[-1]["new"] == one.verifier.text
        report = verify({"rotations": line(history(rotations)).encode()}, known)
        if not (ends and report.holds):
            found.note(one.origin, "the rotations of the key do not lead to the present one")
        known += [item["new"] for item in rotations]
    if one.last is not None and not verify({"checkpoint": one.last.note.encode()}, known).holds:
        found.note(one.origin, "the last checkpoint is not signed by a key of the log")
