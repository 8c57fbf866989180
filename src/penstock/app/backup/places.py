"""Directories that appear complete or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.calls import make_directories, sync_directory
from penstock.storage.machine.copy import sync_tree


@contextmanager
def staged_directory(target: Path, *, suffix: str, what: str) -> Iterator[Path]:
    """A directory next to ``target`` to fill. After the block it is durable and renamed to ``target``.

    After an error it is deleted. A process that dies leaves it under its name with the suffix, and nothing at ``target``.
    Raises InvalidArgumentError if ``target`` is not empty, or if a process that died left such a directory.
    """
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidArgumentError(f"{what} needs a new or empty directory; this one is not empty", path=str(target))
    staging = target.with_name(f"{target.name}.{suffix}")
    if staging.exists():
        raise InvalidArgumentError(
            "an earlier attempt was interrupted; delete the directory that it left", path=str(staging)
        )
    make_directories(staging)
    try:
        yield staging
        sync_tree(staging)
        # Remove an empty target so that the rename works.
        staging.rename(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
