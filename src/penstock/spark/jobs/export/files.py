"""The directory of an export: hidden while it is written, resumable, then visible at once. Source: docs/formats/lake.md.

While an export runs, its files are in ``.NAME.exporting`` next to the output: the job, the plan of its shares, the files
that tasks have written, and a record for each finished share. At the end, files that no record names are deleted, the
manifest is written, and the directory is renamed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.model.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidArgumentError,
)
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass
from penstock.spark.jobs.job_files import OWN, VERSION, locked, on_disk, read_versioned, sync, write_json
from penstock.spark.reading.plan import Block, Piece

_SHARES_A_GROUP = 64  # shares per row group of the plan
_PLAN = pa.schema(
    [
        pa.field("share", pa.int32()),
        pa.field("segment", pa.int64()),
        pa.field("start", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("location", pa.string()),
        pa.field("chunk_start", pa.int64()),
        pa.field(
            "blocks",
            pa.list_(
                pa.struct([("start", pa.int64()), ("end", pa.int64()), ("crc32c", pa.uint32()), ("begins", pa.bool_())])
            ),
        ),
        pa.field("times", pa.list_(pa.struct([("end", pa.int64()), ("at_ms", pa.int64())]))),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneShare:
    """A finished share: its files, relative to the output, and their contents."""

    share: int
    events: int
    size_bytes: int
    without_time: int
    files: Sequence[Mapping[str, Any]]


class ExportDirectory:
    """The directory of one export. ``output`` is its final path."""

    def __init__(self, output: Path) -> None:
        self.output = on_disk(output)
        if self.output.name in ("", ".."):
            raise InvalidArgumentError("the output must be a directory of its own, below another one", output=output)
        self.staging = self.output.with_name(f".{self.output.name}.exporting")
        self._own = self.staging / OWN

    # --- begin ------------------------------------------------------------------------------------------------

    def manifest(self) -> dict[str, Any] | None:
        """The manifest of the finished export; None if there is no output. Raises AlreadyExistsError (no export)."""
        try:
            return read_versioned(self.output / OWN / "manifest.json")
        except (FileNotFoundError, NotADirectoryError):
            taken = self.output.exists() and (not self.output.is_dir() or any(self.output.iterdir()))
            # The export is renamed to this path at the end, which fails if the path is a link.
            if taken or self.output.is_symlink():
                raise AlreadyExistsError(
                    "output exists and is not an export; choose another", output=self.output
                ) from None
            return None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Create the directory and lock out other exports to this output. Raises DirectoryInUseError, OSError."""
        if not self.output.parent.is_dir():
            raise InvalidArgumentError("the directory for the output does not exist", path=self.output.parent)
        (self._own / "done").mkdir(parents=True, exist_ok=True)
        with locked(self._own / "lock", "another export writes to this output", output=self.output):
            yield

    def job(self) -> dict[str, Any] | None:
        """The job that an earlier run has begun here, or None. Raises ConflictError, VersionTooNewError."""
        try:
            return read_versioned(self._own / "job.json")
        except FileNotFoundError:
            return None

    def begin(self, job: Mapping[str, Any], shares: Sequence[Sequence[Piece]]) -> None:
        """Record the complete plan before any task runs."""
        draft = self._own / "plan.parquet.tmp"
        with pq.ParquetWriter(draft, _PLAN) as writer:
            for first in range(0, len(shares), _SHARES_A_GROUP):
                some = enumerate(shares[first : first + _SHARES_A_GROUP], first)
                rows = [_plan_row(share, piece) for share, pieces in some for piece in pieces]
                writer.write_table(pa.Table.from_pylist(rows, _PLAN))
        sync(draft)
        os.replace(draft, self._own / "plan.parquet")
        write_json(self._own / "job.json", {"version": VERSION, **job})

    def check_same(self, begun: Mapping[str, Any], request: Mapping[str, Any]) -> None:
        """Raises ConflictError if the unfinished export has a different request."""
        differing = [name for name, value in request.items() if begun["request"].get(name) != value]
        if differing:
            raise ConflictError(
                "the directory has an unfinished export with other options; finish it with those, or remove the directory",
                differing=", ".join(differing),
                directory=self.staging,
            )

    # --- tasks ------------------------------------------------------------------------------------------------

    def pieces(self, share: int) -> tuple[Piece, ...]:
        """The pieces that a share reads."""
        rows = pq.read_table(self._own / "plan.parquet", filters=[("share", "=", share)]).to_pylist()
        return tuple(
            Piece(
                segment=SegmentId(row["segment"]),
                start=row["start"],
                end=row["end"],
                location=row["location"],
                chunk_start=row["chunk_start"],
                blocks=tuple(Block(**block) for block in row["blocks"]),
                times=tuple((item["end"], item["at_ms"]) for item in row["times"]),
            )
            for row in rows
        )

    def record(self, done: DoneShare) -> DoneShare:
        """Record a finished share. If several attempts finish, the first one counts and is returned."""
        place = self._own / "done" / f"{done.share:08d}.json"
        draft = place.with_name(f".{place.name}.{os.getpid()}")
        write_json(draft, {"version": VERSION, **asdict(done)})
        try:
            os.link(draft, place)
        except FileExistsError:
            for file in done.files:
                (self.staging / file["path"]).unlink(missing_ok=True)
            return _done(place)
        finally:
            draft.unlink()
        return done

    def done(self) -> list[int]:
        """The numbers of the finished shares."""
        return sorted(int(name[:-5]) for name in os.listdir(self._own / "done") if name[0] != ".")

    # --- end --------------------------------------------------------------------------------------------------

    def finish(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Make the export visible, all at once, and return its manifest. Safe to repeat after a crash."""
        records = [_done(self._own / "done" / f"{share:08d}.json") for share in self.done()]
        files = [file for item in records for file in item.files]
        found = {
            "version": VERSION,
            **facts,
            "events": sum(item.events for item in records),
            "event_bytes": sum(item.size_bytes for item in records),
            "without_time": sum(item.without_time for item in records),
            "file_bytes": sum(file["size_bytes"] for file in files),
            "files": files,
        }
        named = {file["path"] for file in files}
        for path in self.staging.rglob("*.parquet"):
            name = str(path.relative_to(self.staging))
            if not name.startswith(OWN) and name not in named:
                path.unlink()  # left by an attempt that died or was not the first
        for directory in {path.parent for path in (self.staging / name for name in named)} | {self.staging}:
            sync(directory)
        write_json(self._own / "manifest.json", found)
        if self.output.exists():
            self.output.rmdir()  # ``manifest`` has checked that it is empty
        os.rename(self.staging, self.output)
        sync(self.output.parent)
        for name in ("plan.parquet", "job.json", "lock"):
            (self.output / OWN / name).unlink(missing_ok=True)
        shutil.rmtree(self.output / OWN / "done", ignore_errors=True)
        return found


def _plan_row(share: int, piece: Piece) -> dict[str, Any]:
    return {
        "share": share,
        "segment": piece.segment,
        "start": piece.start,
        "end": piece.end,
        "location": piece.location,
        "chunk_start": piece.chunk_start,
        "blocks": [asdict(item) for item in piece.blocks],
        "times": [{"end": end, "at_ms": at_ms} for end, at_ms in piece.times],
    }


def _done(place: Path) -> DoneShare:
    found = read_versioned(place)
    del found["version"]
    return DoneShare(**found)
