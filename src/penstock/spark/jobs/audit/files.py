"""The directory of an audit table: one more run at a time, each of them there whole or not at all.

A run is made in a hidden directory beside the others and takes its name in one step. Where it begins is where the one before
has ended, so that runs neither overlap nor leave anything out, however often they are begun.
Source: docs/formats/lake.md.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.model.errors import AlreadyExistsError, CorruptDataError, InvalidArgumentError
from penstock.spark.jobs.job_files import OWN, VERSION, locked, read_versioned, sync, write_json

RUN = "run"
"""Column of the number of the run, by which the directory is partitioned."""

_MAKING = ".making-"
_LOCK = ".lock"
_RECORD = "audit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRun:
    """One run: it has what the audit stream held between the cuts ``start`` and ``end`` (as text) and was asked for.

    ``entries``: rows; ``last``: offset and SHA-256 of the last event that was read, None where that is not known: a later
    run looks whether it is still the same stream; ``lost``: what had been truncated before it was read.
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
            raise AlreadyExistsError("the directory is there and is no audit table; name another", directory=self.path)
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
        """Make the directory, and keep other runs away; what a run has left unfinished is removed.

        Raises DirectoryInUseError, InvalidArgumentError.
        """
        if not self.path.parent.is_dir():
            raise InvalidArgumentError("the directory that is to hold the table is not there", path=self.path.parent)
        self.path.mkdir(exist_ok=True)
        with locked(self.path / _LOCK, "another run is at work on this table", table=self.path):
            for path in self.path.glob(f"{_MAKING}*"):
                shutil.rmtree(path)
            yield

    def publish(self, run: AuditRun) -> None:
        """Make what lies in ``making`` durable, and give it its name."""
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
