"""Files that all jobs write in the same way: complete or absent, with a version, by one run at a time.

Source: docs/formats/lake.md.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock.model.errors import CorruptDataError, DirectoryInUseError, InvalidArgumentError, VersionTooNewError

VERSION = 1
OWN = "_penstock"
"""Directory for a job's own files. Readers of Parquet skip names that begin with an underscore."""


_URL = re.compile(r"(s3a?|gs|az|abfss?|hdfs):/")
_PATTERN = re.compile(r"[{}\[\]*?\\]")


def literal(path: str | Path) -> str:
    """Escape the path for Spark's file readers, which expect patterns: ``data[1].json`` would mean ``data1.json``."""
    return _PATTERN.sub(lambda found: f"\\{found[0]}", str(path))


def on_disk(path: Path) -> Path:
    """The absolute path. Raises InvalidArgumentError for a URL: these jobs rename directories, which buckets lack."""
    if found := _URL.match(str(path)):
        # ``Path`` has made one slash of two.
        url = str(path).replace(":/", "://", 1)
        if found[1] == "hdfs":
            raise InvalidArgumentError(
                "this job writes to a directory of this machine; mount HDFS, and name the directory", output=url
            )
        raise InvalidArgumentError(
            "this job renames directories, which buckets lack; write to a directory, or use penstock spark lake STREAM URL "
            "--format parquet (with --key-by for the latest event of each key)",
            output=url,
        )
    return path.absolute()


@contextmanager
def locked(path: Path, message: str, **fields: object) -> Iterator[None]:
    """Hold the lock of a directory. The lock of a process that dies is released. Raises DirectoryInUseError(message)."""
    with open(path, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DirectoryInUseError(message, **fields) from None
        owner = os.getpid()
        try:
            yield
        finally:
            # Unlock explicitly, because a live fork has the file open and would keep the lock. A fork must not unlock.
            if owner == os.getpid():
                fcntl.flock(lock, fcntl.LOCK_UN)


def read_versioned(path: Path) -> dict[str, Any]:
    """A JSON object with a version that we know. Raises FileNotFoundError, CorruptDataError, VersionTooNewError."""
    try:
        found = json.loads(path.read_bytes())
        version = int(found["version"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("file of a Spark job cannot be read; remove its directory", file=path) from error
    if version > VERSION:
        raise VersionTooNewError("file was written by a newer version", file=path, version=version, known=VERSION)
    return dict(found)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file durably: either all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.write_text(json.dumps(value, default=str) + "\n")
    sync(draft)
    os.replace(draft, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make a file, or the names in a directory, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
