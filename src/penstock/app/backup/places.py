"""Directories that appear complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.model.errors import InvalidArgumentError
from penstock.storage.machine.calls import make_directories, sync_directory
from penstock.storage.machine.copy import sync_tree
from penstock.storage.machine.data_directory import VERSION, is_backup


def new_place(target: Path, *, suffix: str, what: str) -> tuple[Path, Path]:
    """The path of a new directory, and the path with the suffix, next to it, at which it is prepared.

    A symbolic link is followed. Nothing is made yet.
    Raises InvalidArgumentError: ``target`` is not empty, is a mount point, or lies in a store or in a backup; or another
    attempt is running, or died and left its directory. OSError.
    """
    target = Path(os.path.realpath(target))
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InvalidArgumentError(f"{what} needs a new or empty directory; this one is not empty", path=str(target))
    if os.path.ismount(target):
        # A rename to a mount point fails, and a directory next to it is on another disk.
        raise InvalidArgumentError(f"{what} cannot replace a mount point; name a new directory in it", path=str(target))
    _check_outside(target, what)
    staging = target.with_name(f"{target.name}.{suffix}")
    if staging.exists():
        raise _not_alone(staging)
    return target, staging


def _check_outside(target: Path, what: str) -> None:
    """Raises InvalidArgumentError: the target lies in a store or in a backup, which it would change."""
    for parent in target.parents:
        if (parent / VERSION).is_file() and any((parent / part).is_dir() for part in ("metadata", "workers")):
            raise InvalidArgumentError(
                f"{what} must not lie in the data directory of a store", path=str(target), data=str(parent)
            )
        if is_backup(parent):
            raise InvalidArgumentError(f"{what} must not lie in a backup", path=str(target), backup=str(parent))


def _not_alone(staging: Path) -> InvalidArgumentError:
    return InvalidArgumentError(
        "another attempt is running, or was interrupted: if none is running, delete the directory that it left",
        path=str(staging),
    )


@contextmanager
def staged_directory(target: Path, *, suffix: str, what: str) -> Iterator[Path]:
    """A directory next to ``target`` to fill. After the block it is durable and renamed to ``target``.

    After an error it is deleted. A process that dies leaves it under its name with the suffix, and nothing at
    ``target``. Raises what ``new_place`` raises, before it changes anything; OSError.
    """
    target, staging = new_place(target, suffix=suffix, what=what)
    make_directories(target.parent)
    try:
        staging.mkdir(mode=0o700)
    except FileExistsError as error:
        raise _not_alone(staging) from error
    try:
        yield staging
        sync_tree(staging)
        # Remove an empty target so that the rename works.
        staging.rename(target)
        sync_directory(target.parent)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
