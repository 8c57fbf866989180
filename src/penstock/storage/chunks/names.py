"""Names of chunks that every backend accepts."""

from __future__ import annotations

import re

from penstock.model.errors import InternalError

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}/[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}\Z")


def check_chunk_name(name: str) -> str:
    """Return ``name`` if it reads ``<directory>/<object>`` in safe characters.

    Raises ``InternalError`` otherwise: we make the names, so an invalid one is our own bug, caught before it reaches a
    file system.
    """
    if not is_chunk_name(name):
        raise InternalError("not the name of a chunk", name=repr(name[:200]))
    return name


def is_chunk_name(name: str) -> bool:
    """Whether ``name`` reads as the name of a chunk."""
    return _NAME.match(name) is not None
