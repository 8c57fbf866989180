"""How a data directory is divided among worker processes. Decided when the store is created, and recorded in it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from penstock.app.settings import WORKERS_MAX
from penstock.model.errors import CorruptDataError, InvalidArgumentError, VersionTooNewError
from penstock.model.values.dataclass import dataclass
from penstock.storage.access.secret_files import FOLDER
from penstock.storage.machine.calls import replace_file, sync_directory
from penstock.storage.machine.data_directory import is_complete, lost_part

RECORD = "workers.json"
_WORKERS = "workers"
FORMAT_VERSION = 1
CONTAINERS_EACH = 4
"""Containers of one worker, as many as in a store of one process, so that one can tier while another commits."""
_OWN = frozenset(("LOCK", "VERSION", "VERSION.tmp", f"{RECORD}.tmp", "lost+found", FOLDER))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLayout:
    """The number of workers, and of their containers in total. Container ``n`` belongs to worker ``n`` modulo
    ``workers``."""

    workers: int
    containers: int

    def owned(self, worker: int) -> range:
        """The containers of a worker."""
        return range(worker, self.containers, self.workers)


def worker_directory(data: Path, worker: int) -> Path:
    """The data directory of a worker."""
    return data / _WORKERS / str(worker)


def worker_of(own: Path) -> tuple[Path, int] | None:
    """The data directory of the store, and the number of the worker whose directory ``own`` is. None: it is no worker's."""
    whole = own.parent.parent
    if own.parent.name != _WORKERS or not own.name.isdecimal() or not (whole / RECORD).exists():
        return None
    return whole, int(own.name)


def check_workers_there(data: Path, workers: Iterable[int]) -> None:
    """Refuse a store if a worker's directory is not complete: an unmounted disk looks like an empty directory.

    Raises CorruptDataError, VersionTooNewError.
    """
    if not is_complete(data):
        return
    for worker in workers:
        own = worker_directory(data, worker)
        if not is_complete(own):
            raise lost_part(data, missing=f"{_WORKERS}/{worker}", found=RECORD)


def load_layout(data: Path) -> WorkerLayout | None:
    """The layout of the store in ``data``. None: a store of one process, in the directory itself, or no store yet.

    Raises CorruptDataError (the record cannot be read, or is missing but workers have directories), VersionTooNewError.
    """
    record = data / RECORD
    try:
        text = record.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        below = data / _WORKERS
        if below.is_dir() and any(below.iterdir()):
            raise lost_part(data, missing=RECORD, found=_WORKERS) from None
        return None
    try:
        found = json.loads(text)
        version, workers, containers = (int(found[name]) for name in ("format", "workers", "containers"))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError("record of the workers cannot be read", file=str(record)) from error
    if version > FORMAT_VERSION:
        raise VersionTooNewError("data directory was written by a newer version", file=str(record), version=version)
    if not 2 <= workers <= WORKERS_MAX or containers < workers:
        raise CorruptDataError("record of the workers is invalid", file=str(record), workers=workers)
    return WorkerLayout(workers=workers, containers=containers)


def workers_of(data: Path, wanted: int | None) -> int:
    """Number of processes that serve the store in ``data``: as it was created, or ``wanted`` if it is new.

    Raises InvalidArgumentError if ``wanted`` is another number, and as ``load_layout``.
    """
    layout = load_layout(data)
    if layout is not None:
        created_with = layout.workers
    elif is_complete(data) or (
        data.is_dir() and any(entry.name not in _OWN for entry in data.iterdir()) and (data / "VERSION").exists()
    ):
        created_with = 1
    else:
        return wanted or 1
    if wanted not in (None, created_with):
        raise InvalidArgumentError(
            "the number of workers is fixed when a store is created: leave --workers out, or copy the streams to a new store",
            workers=wanted,
            created_with=created_with,
            data=str(data),
        )
    return created_with


def settle_layout(data: Path, workers: int) -> WorkerLayout:
    """The layout of a store of several workers. Recorded durably if the store is new. The caller holds the directory.

    Raises as ``workers_of``.
    """
    workers_of(data, workers)
    layout = load_layout(data)
    if layout is None:
        layout = WorkerLayout(workers=workers, containers=workers * CONTAINERS_EACH)
        fields = {"format": FORMAT_VERSION, "workers": layout.workers, "containers": layout.containers}
        replace_file(data / RECORD, json.dumps(fields).encode() + b"\n")
    check_workers_there(data, range(layout.workers))
    if not (data / _WORKERS).is_dir():
        (data / _WORKERS).mkdir(mode=0o700)
        sync_directory(data)
    return layout


def owned_containers(directory: Path) -> range | None:
    """The containers of the worker with this directory; None if it belongs to no worker. Raises as ``load_layout``."""
    found = layout_of_worker(directory)
    return None if found is None else found[1]


def layout_of_worker(directory: Path) -> tuple[int, range] | None:
    """The number of containers of the store, and those of the worker with this directory; None if it belongs to no worker.

    Raises as ``load_layout``.
    """
    if directory.parent.name != _WORKERS or not directory.name.isdecimal():
        return None
    layout = load_layout(directory.parent.parent)
    return None if layout is None else (layout.containers, layout.owned(int(directory.name)))
