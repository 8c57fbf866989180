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
from penstock.storage.access.secret_files import MALFORMED, read_secret, write_secret

log = logging.getLogger(__name__)

NOTE: Final = ".shared.json"
_MAX_BYTES: Final = 4096


def read_note(folder: Path) -> dict[str, str]:
    """Digests by the name of the file; none without a note. Raises InvalidArgumentError (others can read it), OSError."""
    text = read_secret(folder / NOTE, max_bytes=_MAX_BYTES)
    try:
        return {} if text is None else {str(name): str(one) for name, one in json.loads(text)["files"].items()}
    except MALFORMED as error:
        # Nothing is lost without it: a file that differs is merged, or kept beside.
        log.warning("note on shared users cannot be read", extra={"path": str(folder / NOTE), "reason": repr(error)})
        return {}


def write_note(folder: Path, files: Mapping[str, str]) -> None:
    """Replace the note. Raises OSError."""
    write_secret(folder / NOTE, json.dumps({"files": dict(sorted(files.items()))}).encode() + b"\n")


def is_shared(path: Path) -> bool:
    """Whether the file is that of a controller, whose cluster shares it."""
    return (path.parent / NOTE).exists()


def cluster_has(path: Path) -> bool:
    """Whether controller and cluster agree on what the file contains now. Raises as ``read_note``; OSError."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return read_note(path.parent).get(path.name) == digest


def check_not_lost(path: Path) -> None:
    """Refuse to begin a file anew that the cluster has: what it contained would be removed from all controllers. Raises
    UnavailableError, and as ``read_note``."""
    if not path.exists() and path.name in read_note(path.parent):
        raise UnavailableError(
            "the file was lost; the controller of this directory fetches it from the cluster when it runs, so try again"
            " then. To begin anew, remove the note",
            path=str(path),
            note=str(path.parent / NOTE),
        )
