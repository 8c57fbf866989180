"""The directory of an audit table, to which each run adds a complete directory or nothing.

A run is written in a hidden directory next to the others, which is then renamed. It begins where the previous run ended, so
runs do not overlap and leave no gap, however often they are repeated.
Source: docs/formats/lake.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.model.errors import AlreadyExistsError, CorruptDataError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.spark.jobs.job_files import OWN, VERSION, locked, read_versioned, sync, write_json

RUN = "run"
"""The partition column of the directory: the number of the run."""

_MAKING = ".making-"
_LOCK = ".lock"
_RECORD = "audit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRun:
    """One run: the chosen entries of the audit stream between the cuts ``start`` and ``end`` (as text).

    ``entries``: number of rows. ``last``: offset and SHA-256 of the last bytes that were read, None if unknown; by it a
    later run checks that the stream is still the same. ``lost``: ranges that had been truncated before they were read.
    """

    number: int
    request: Mapping[str, Any]
    start: str
    end: str
    entries: int
    last: Mapping[str, Any] | None
    lost: Sequence[Mapping[str, Any]]


class AuditDirectory:
    """An audit table by its path."""

    def __init__(self, directory: Path, making: str) -> None:
        """``making``: unique for each attempt. A task that outlives its driver keeps writing to a directory that no one
        reads."""
        self.path = directory.absolute()
        self.making = self.path / f"{_MAKING}{making}"

    def latest(self) -> AuditRun | None:
        """The last run, or None where there is none. Raises AlreadyExistsError (the directory is something else),
        CorruptDataError, VersionTooNewError."""
        if not self.path.exists():
            return None
        if not self.path.is_dir() or not all(_is_ours(item.name) for item in self.path.iterdir()):
            raise AlreadyExistsError(
                "the directory exists and is not an audit table; choose another", directory=self.path
            )
        runs = sorted(item for item in self.path.iterdir() if item.name.startswith(f"{RUN}="))
        if not runs:
            return None
        try:
            found = read_versioned(runs[-1] / OWN / _RECORD)
        except FileNotFoundError:
            raise CorruptDataError("the record of the last run is gone", directory=runs[-1]) from None
        del found["version"]
        return AuditRun(**found)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create the directory, lock out other runs, and remove what an interrupted run left.

        Raises DirectoryInUseError, InvalidArgumentError.
        """
        if not self.path.parent.is_dir():
            raise InvalidArgumentError("the directory for the table does not exist", path=self.path.parent)
        self.path.mkdir(exist_ok=True)
        with locked(self.path / _LOCK, "another run is at work on this table", table=self.path):
            for path in self.path.glob(f"{_MAKING}*"):
                shutil.rmtree(path)
            yield

    def publish(self, run: AuditRun) -> None:
        """Make the files in ``making`` durable, and rename the directory."""
        for path in [*self.making.glob("_SUCCESS"), *self.making.rglob(".*.crc")]:
            path.unlink()
        for path in [*self.making.rglob("*"), self.making]:
            sync(path)
        (self.making / OWN).mkdir()
        write_json(self.making / OWN / _RECORD, {"version": VERSION, **asdict(run)})
        sync(self.making)
        os.rename(self.making, self.path / f"{RUN}={run.number:08d}")
        sync(self.path)
        sync(self.path.parent)


def _is_ours(name: str) -> bool:
    return name == _LOCK or name.startswith((_MAKING, f"{RUN}="))
