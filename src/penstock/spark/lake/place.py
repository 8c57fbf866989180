"""Files of a table, on a disk or in an object store, through obstore."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit
from uuid import uuid4

from penstock.model.errors import InvalidArgumentError, UnavailableError, UnsupportedError, missing_extra
from penstock.model.values.dataclass import dataclass
from penstock.storage.machine.calls import sync_directory

SCHEMES = ("s3", "gs", "az")
_FILE = "file"
_HTTP = "allow_http"
_PART_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A directory, or the objects below a URL. Plain values: it can be pickled to tasks.

    url: an absolute path, or ``s3://bucket/prefix``, also ``gs://`` and ``az://``.
    options: settings of the object store by obstore's names, for example ``aws_endpoint``. The environment has the others.
    """

    url: str
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def directory(self) -> Path | None:
        """The directory, if the place is on a disk."""
        return None if "://" in self.url else Path(self.url)

    def read(self, path: str) -> bytes:
        """All of a file. Raises FileNotFoundError, UnavailableError."""
        import obstore

        with _translated(self.url):
            return bytes(obstore.get(self._store(), path).bytes())

    def put(self, path: str, source: BinaryIO) -> int:
        """Write a file durably, all or nothing, from its beginning on; returns its bytes. Raises UnavailableError."""
        import obstore

        size = source.seek(0, os.SEEK_END)
        source.seek(0)
        with _translated(self.url):
            obstore.put(self._store(), path, source, chunk_size=_PART_BYTES)
        self.sync([path])
        return size

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a file durably if it does not exist. Returns whether it was written. Raises UnavailableError."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _translated(self.url):
            try:
                obstore.put(self._store(), path, data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
        self.sync([path])
        return True

    def check_conditional(self) -> None:
        """Return if the store refuses to replace an object in a conditional write. Commits rely on it.

        Raises UnsupportedError.
        """
        if self.directory is not None:
            return
        path = f"_penstock/probe-{uuid4().hex}"
        try:
            self.put_new(path, b"1")
            if self.put_new(path, b"2"):
                raise UnsupportedError(
                    "this object store ignores the condition of a write (If-None-Match), so two commits could replace each "
                    "other; use a store that has conditional writes, or Iceberg, whose catalog decides",
                    url=self.url,
                )
        finally:
            self.delete([path])

    def paths(self, prefix: str = "") -> dict[str, int]:
        """Size in bytes of each file whose path begins with the directory ``prefix``, by path, in order of their names."""
        import obstore

        directory = self.directory
        if directory is not None and not directory.is_dir():
            return {}
        with _translated(self.url):
            pages = obstore.list(self._store(), prefix or None)
            found = {item["path"]: item["size"] for page in pages for item in page}
        return dict(sorted(found.items()))

    def delete(self, paths: Iterable[str]) -> int:
        """Delete the files durably. Returns how many were given. Those that do not exist count as deleted."""
        import obstore

        given = list(paths)
        for path in given:
            with _translated(self.url), suppress(FileNotFoundError):
                obstore.delete(self._store(), path)
        directory = self.directory
        if directory is not None:
            # A power failure must not bring back a file that an erasure has deleted.
            for parent in sorted({(directory / path).parent for path in given}):
                if parent.is_dir():
                    sync_directory(parent)
        return len(given)

    def sync(self, paths: Iterable[str]) -> None:
        """Make files on a disk durable, with their names. Object stores are durable already."""
        directory = self.directory
        if directory is None:
            return
        given = list(paths)
        for path in given:
            _sync_file(directory / path)
        _sync_names(directory, given)

    def sync_all(self, prefix: str) -> None:
        """Make all files in the directory ``prefix`` durable, except those that another process deletes meanwhile."""
        directory = self.directory
        if directory is None:
            return
        given = self.paths(prefix)
        for path in given:
            with suppress(FileNotFoundError):
                _sync_file(directory / path)
        _sync_names(directory, given)

    def sync_name(self) -> None:
        """Make a directory on a disk durable, with the directories above it that may have been made for it."""
        directory = self.directory
        for step in () if directory is None else directory.parents:
            with suppress(PermissionError):  # of a directory that is not ours, so nothing was made in it
                sync_directory(step)

    def relative(self, uri: str) -> str:
        """Path of a file of this place, from its full name. Raises UnsupportedError if it is elsewhere."""
        base = self.url.rstrip("/") + "/"
        plain = uri.removeprefix("file://") if self.directory is not None else uri
        if not plain.startswith(base):
            raise UnsupportedError("a file of the table is outside of its directory", table=self.url, file=uri)
        return plain[len(base) :]

    def full(self, path: str) -> str:
        """Full name of a file of this place."""
        return f"{self.url.rstrip('/')}/{path}"

    def _store(self) -> Any:
        from obstore.store import LocalStore, from_url

        if self.directory is not None:
            return LocalStore(self.directory, mkdir=True)
        options = dict(self.options)
        client: Any = {_HTTP: True} if options.pop(_HTTP, "false") == "true" else None
        return from_url(self.url, config=options, client_options=client)  # type: ignore[call-overload]


def _sync_file(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_names(directory: Path, paths: Iterable[str]) -> None:
    parents = {step for path in paths for step in (directory / path).parents if step.is_relative_to(directory)}
    for step in sorted(parents, reverse=True):
        sync_directory(step)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Raise UnavailableError for errors of obstore, except FileNotFoundError."""
    from obstore.exceptions import BaseError, NotFoundError

    try:
        yield
    except NotFoundError as error:
        raise FileNotFoundError(str(error)) from error
    except (BaseError, ValueError) as error:
        raise UnavailableError(f"the object store refused a request: {_line(error)}", url=url) from error


def place_of(target: str, options: Mapping[str, str]) -> Place:
    """The place that a user named: a directory or a URL. Raises InvalidArgumentError, MissingExtraError."""
    try:
        import obstore  # noqa: F401
    except ModuleNotFoundError as error:
        raise missing_extra("obstore", "lake") from error
    scheme = urlsplit(target).scheme
    if scheme in ("", _FILE) or "://" not in target:
        if options:
            raise InvalidArgumentError("storage options are for object stores", target=target)
        return Place(url=str(Path(target.removeprefix("file://")).absolute()))
    if scheme not in SCHEMES:
        raise InvalidArgumentError("a table must be in a directory, or at s3://, gs:// or az://", target=target)
    return Place(url=target.rstrip("/"), options=dict(options))


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:300]
