"""The manifest of a backup. Format: docs/formats/backup.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path, PurePath
from typing import Any

import msgspec

from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.model.values.dataclass import dataclass
from penstock.storage.machine.calls import replace_file
from penstock.storage.machine.copy import Copied
from penstock.storage.machine.data_directory import BACKUP_DATA, BACKUP_MANIFEST

NAME, DATA = BACKUP_MANIFEST, BACKUP_DATA
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """The log of one directory below ``data``: its epoch, and the last frame that the backup holds."""

    directory: str
    epoch: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The contents of a backup. It has everything that was acknowledged before ``began_ms``, and nothing written after
    ``ended_ms``, both in milliseconds since the Unix epoch.

    ``source``: the data directory; ``tier2``: where its chunks were, None for the data directory itself. ``streams``: each
    with its epoch and its ``tail``, an offset for each segment. ``erasures``: the last link of the chain of receipts.
    ``missing``: chunks that the metadata names but that were missing. ``unreadable``: keys of records that could not be
    read, and are in the backup as they were. ``files``: by path below ``data``.
    """

    penstock: str
    began_ms: int
    ended_ms: int
    source: str
    tier2: str | None
    workers: int | None
    logs: Sequence[LogPosition]
    streams: Sequence[Mapping[str, Any]]
    erasures: Mapping[str, Any]
    missing: Sequence[str]
    unreadable: Sequence[str] = ()
    files: Mapping[str, Copied] = field(default_factory=dict)

    @property
    def lacks(self) -> bool:
        """Whether the store was damaged when the backup was taken."""
        return bool(self.missing or self.unreadable)

    @property
    def size_bytes(self) -> int:
        return sum(item.size_bytes for item in self.files.values())

    def as_json(self) -> dict[str, Any]:
        """Plain values, without the list of files."""
        values = asdict(replace(self, files={}))
        del values["files"]
        return {**values, "logs": [asdict(item) for item in self.logs], "bytes": self.size_bytes}


def save_manifest(backup: Path, manifest: Manifest) -> None:
    """Write the manifest durably. This completes the backup. Blocks. Raises StorageFullError, OSError."""
    body = {"format": FORMAT_VERSION, **manifest.as_json()}
    body["files"] = {path: [item.size_bytes, item.sha256] for path, item in sorted(manifest.files.items())}
    replace_file(backup / NAME, json.dumps({**body, "sha256": _checksum(body)}, indent=1).encode() + b"\n")


def load_manifest(backup: Path) -> Manifest:
    """Load the manifest. Raises InvalidArgumentError (no backup, or unfinished), CorruptDataError, VersionTooNewError,
    OSError."""
    file = backup / NAME
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InvalidArgumentError(
            "not a backup, or an unfinished one: the directory has no manifest", path=str(backup)
        ) from error
    try:
        body = json.loads(text)
        version = int(body["format"])
        if version <= FORMAT_VERSION:
            return _decoded(body, file)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptDataError("manifest of the backup cannot be read", file=str(file)) from error
    raise VersionTooNewError("backup was written by a newer version", file=str(file), version=version)


def _decoded(body: dict[str, Any], file: Path) -> Manifest:
    if body.pop("sha256") != _checksum(body):
        raise CorruptDataError("manifest of the backup fails its checksum", file=str(file))
    for path in body["files"]:
        # Anyone can make a checksum. A restore writes to these paths, as its user.
        if not path or PurePath(path).is_absolute() or ".." in PurePath(path).parts:
            raise CorruptDataError("manifest names a file outside of the backup", file=str(file), path=path)
    files = {path: {"size_bytes": size, "sha256": sha256} for path, (size, sha256) in body["files"].items()}
    return msgspec.convert({**body, "files": files}, Manifest)


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
