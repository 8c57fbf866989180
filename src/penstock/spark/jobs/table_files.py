"""The directory of a table: whole versions, one of them current. Source: docs/formats/lake.md.

A version is written next to the others and then renamed. Then the link ``current`` is replaced by one to it. Unchanged
buckets are hard links to the files of the previous version, so a version takes only the space of its changes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.model.errors import (
    AlreadyExistsError,
    CorruptDataError,
    InvalidArgumentError,
)
from penstock.model.values.dataclass import dataclass
from penstock.spark.jobs.job_files import OWN, VERSION, locked, on_disk, read_versioned, sync, write_json

_LINK = "current"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """A version of a table: its stream, and the cut up to which it was read (as text). ``buckets``: number of rows by
    bucket, without empty ones."""

    number: int
    stream: str
    cut: str
    request: Mapping[str, Any]
    schema: str
    buckets: Mapping[str, int]

    @property
    def rows(self) -> int:
        """Number of rows in the whole table."""
        return sum(self.buckets.values())


class TableDirectory:
    """A table by its path."""

    def __init__(self, directory: Path) -> None:
        self.path = on_disk(directory)
        self.current = self.path / _LINK
        self._versions = self.path / "versions"

    def state(self) -> TableState | None:
        """The current version, or None if there is no table yet. Raises AlreadyExistsError, CorruptDataError,
        VersionTooNewError."""
        if not self.current.is_symlink():
            strange = self.path.exists() and (not self.path.is_dir() or not _is_ours(self.path))
            if strange:
                raise AlreadyExistsError("the directory exists and is not a table; choose another", directory=self.path)
            return None
        try:
            found = read_versioned(self.current / OWN / "table.json")
        except FileNotFoundError:
            raise CorruptDataError("the current version of the table is gone", table=self.path) from None
        del found["version"]
        return TableState(**found)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create the directory, lock out other runs, and remove what an interrupted run left.

        Raises DirectoryInUseError, InvalidArgumentError.
        """
        if not self.path.parent.is_dir():
            raise InvalidArgumentError("the directory for the table does not exist", path=self.path.parent)
        self._versions.mkdir(parents=True, exist_ok=True)
        with locked(self._versions / ".lock", "another run is at work on this table", table=self.path):
            for path in self._versions.glob(".*.making"):
                shutil.rmtree(path)
            # A run that died may have left a current version that a power failure can take back, and this run publishes
            # its cut.
            for path in (self._versions, self.path, self.path.parent):
                sync(path)
            yield

    def bucket(self, number: int) -> Path:
        """The directory of a bucket in the current version."""
        return self.current.resolve() / f"bucket={number}"

    def making(self, number: int) -> Path:
        """The directory in which a version is written."""
        return self._versions / f".{number:08d}.making"

    def publish(self, state: TableState, *, unchanged: list[int]) -> None:
        """Link the unchanged buckets, make the version durable, and make it the current one."""
        staging, version = self.making(state.number), self._versions / f"{state.number:08d}"
        staging.mkdir(exist_ok=True)
        for bucket in unchanged:
            (staging / f"bucket={bucket}").mkdir()
            for file in self.bucket(bucket).iterdir():
                os.link(file, staging / f"bucket={bucket}" / file.name)
        for path in [*staging.rglob("*"), staging]:
            sync(path)
        (staging / OWN).mkdir()
        write_json(staging / OWN / "table.json", {"version": VERSION, **asdict(state)})
        sync(staging)
        if version.exists():
            shutil.rmtree(version)  # left by a run that died before it became the current one
        os.rename(staging, version)
        sync(self._versions)
        turned = self.path / f".{_LINK}.new"
        turned.unlink(missing_ok=True)
        os.symlink(version.relative_to(self.path), turned)
        os.replace(turned, self.current)
        sync(self.path)

    def forget(self, *, keep: int) -> None:
        """Delete all versions except the last ``keep``, which readers may still use."""
        current = int(self.current.resolve().name)
        for path in self._versions.iterdir():
            if path.name.isdecimal() and int(path.name) <= current - keep:
                shutil.rmtree(path)


def _is_ours(path: Path) -> bool:
    return {item.name for item in path.iterdir()} <= {"versions", f".{_LINK}.new"}
