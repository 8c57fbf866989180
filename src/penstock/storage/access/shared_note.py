"""The note of a controller on the files that it shares with its cluster: beside them, with the digest of each file on which
controller and cluster last agreed."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from penstock.model.errors import UnavailableError
from penstock.model.values.dataclass import dataclass
from penstock.storage.access.secret_files import MALFORMED, read_secret, write_secret

log = logging.getLogger(__name__)

NOTE: Final = ".shared.json"
_MAX_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNote:
    """``files``: digests by the name of the file. ``number``: of the publication on which controller and cluster agreed; 0:
    not known."""

    files: Mapping[str, str]
    number: int = 0


def read_note(folder: Path) -> SharedNote:
    """The note; an empty one if there is none. Raises InvalidArgumentError (others can read it), OSError."""
    text = read_secret(folder / NOTE, max_bytes=_MAX_BYTES)
    try:
        found = {"files": {}} if text is None else json.loads(text)
        files = {str(name): str(one) for name, one in found["files"].items()}
        return SharedNote(files=files, number=int(found.get("number", 0)))
    except MALFORMED as error:
        # Nothing is lost without it: a file that differs is merged, or kept beside.
        log.warning("note on shared users cannot be read", extra={"path": str(folder / NOTE), "reason": repr(error)})
        return SharedNote(files={})


def write_note(folder: Path, note: SharedNote) -> None:
    """Replace the note. Raises OSError."""
    fields = {"files": dict(sorted(note.files.items())), "number": note.number}
    write_secret(folder / NOTE, json.dumps(fields).encode() + b"\n")


def is_shared(path: Path) -> bool:
    """Whether the file is that of a controller, whose cluster shares it."""
    return (path.parent / NOTE).exists()


def cluster_has(path: Path) -> bool:
    """Whether controller and cluster agree on what the file contains now. Raises as ``read_note``; OSError."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return read_note(path.parent).files.get(path.name) == digest


def check_not_lost(path: Path) -> None:
    """Refuse to begin a file anew that the cluster has: what it contained would be removed from all controllers. Raises
    UnavailableError, and as ``read_note``."""
    if not path.exists() and path.name in read_note(path.parent).files:
        raise UnavailableError(
            "the file was lost; the controller of this directory fetches it from the cluster when it runs, so try again"
            " then. To begin anew, remove the note",
            path=str(path),
            note=str(path.parent / NOTE),
        )
