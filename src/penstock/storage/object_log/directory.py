"""A log in a directory that several machines can mount: its objects, and its record.

Everything is decided by two calls that are atomic on a local file system and on NFS: ``link`` fails if the name exists,
and ``rename`` fails if the source does not.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    CorruptDataError,
    NotConnectedError,
    NotFoundError,
    StorageFullError,
    UnavailableError,
    UnsupportedError,
)
from penstock.ports.offload import Offload
from penstock.ports.rng import Rng
from penstock.storage.machine.calls import make_directories, sync_directory, write_new

_T = TypeVar("_T")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
_DRAFT = ".tmp"
_VERSION = re.compile(r"(at|data)-(\d+)-([0-9a-f]{32})")
_TRIES = 10
"""How often a record is read again that changes meanwhile."""


class DirectoryObjects:
    """Implements ``ports.objects.ExclusiveObjects`` below ``root``. ``check`` raises UnavailableError while the directory is
    not mounted; it is asked before each change, and before a name counts as missing."""

    def __init__(self, root: Path, offload: Offload, *, rng: Rng, check: Callable[[], Awaitable[None]]) -> None:
        self._root = root
        self._offload = offload
        self._rng = rng
        self._check = check

    async def create_new(self, name: str, data: bytes) -> None:
        """As the port says. Raises UnsupportedError: the file system has no hard links."""
        await self._mounted()
        draft = self._root / f"{name}.{self._rng.uuid().hex}{_DRAFT}"
        try:
            await self._run(lambda: _create(self._root / name, draft, data))
        except FileNotFoundError as error:
            raise UnavailableError("directory of a log was deleted during a write", object=name) from error

    async def read_whole(self, name: str) -> bytes:
        """As the port says."""
        return await self._found((self._root / name).read_bytes)

    async def read(self, name: str, start: int, length: int) -> bytes:
        """As the port says."""

        def read() -> bytes:
            with (self._root / name).open("rb", buffering=0) as file:
                return os.pread(file.fileno(), length, start)

        return await self._found(read)

    async def delete(self, name: str) -> None:
        """As the port says."""
        await self._mounted()

        def delete() -> None:
            with suppress(FileNotFoundError):
                (self._root / name).unlink()
            _remove_if_unused((self._root / name).parent)

        await self._run(delete)

    async def list(self, directory: str) -> Mapping[str, int]:
        """As the port says."""
        await self._mounted()
        top = self._root / directory

        def names() -> Mapping[str, int]:
            found: dict[str, int] = {}
            for path in sorted(top.rglob("*")):
                with suppress(FileNotFoundError):
                    if path.suffix != _DRAFT and path.is_file():
                        found[path.relative_to(self._root).as_posix()] = path.stat().st_size
            return found

        return await self._run(names)

    async def _found(self, read: Callable[[], _T]) -> _T:
        try:
            return await self._run(read)
        except FileNotFoundError:
            await self._mounted()
            raise

    async def _mounted(self) -> None:
        try:
            await self._check()
        except OSError as error:  # NFS answers so while its server is away: the writer must wait, as for any other call
            raise UnavailableError("the mark of tier 2 cannot be read", cause=str(error)) from error

    async def _run(self, work: Callable[[], _T]) -> _T:
        try:
            return await self._offload.run(work)
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _FULL:
                raise StorageFullError("tier 2 is full", cause=str(error)) from error
            raise UnavailableError("tier 2 does not take or give a file of the log", cause=str(error)) from error


class DirectoryRecord:
    """Implements ``ports.cluster.nodes.VersionedNodes`` for one node, which is a directory at its path.

    The file ``at-VERSION-ID`` has no bytes; its name says which version is valid, and the bytes are in ``data-VERSION-ID``. A
    change writes the bytes of the next version, and renames the first file. So only one change of a version succeeds. Files
    with other names are ignored.
    """

    def __init__(self, root: Path, offload: Offload, *, rng: Rng, check: Callable[[], Awaitable[None]]) -> None:
        self._root = root
        self._offload = offload
        self._rng = rng
        self._check = check

    async def read(self, path: str) -> tuple[bytes, int]:
        """As the port says."""
        await self._connected(self._check)
        return await self._run(path, lambda: _read_version(self._root / path, path))

    async def create(self, path: str, data: bytes) -> None:
        """As the port says."""
        await self._connected(self._check)
        own = self._rng.uuid().hex
        await self._run(path, lambda: _create_versions(self._root / path, own, data))

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        """As the port says."""
        await self._connected(self._check)
        own = self._rng.uuid().hex
        await self._run(path, lambda: _set_version(self._root / path, own, data, version=version))
        return version + 1

    async def _run(self, path: str, work: Callable[[], _T]) -> _T:
        async def run() -> _T:
            return await self._offload.run(work)

        try:
            return await self._connected(run)
        except FileNotFoundError as error:
            await self._connected(self._check)  # it may have been unmounted meanwhile
            raise NotFoundError("node does not exist", path=path) from error

    async def _connected(self, call: Callable[[], Awaitable[_T]]) -> _T:
        try:
            return await call()
        except FileNotFoundError:
            raise
        except (OSError, UnavailableError, StorageFullError) as error:
            raise NotConnectedError("tier 2 did not answer; the change may have happened", cause=str(error)) from error


def _create(target: Path, draft: Path, data: bytes) -> None:
    make_directories(target.parent)
    try:
        write_new(draft, data)
        os.link(draft, target, follow_symlinks=False)
    except FileExistsError as error:
        # If an earlier attempt of ours made it, that attempt may have failed before its name was durable.
        sync_directory(target.parent)
        raise AlreadyExistsError("object exists", object=target.name) from error
    except OSError as error:
        if error.errno in _NO_LINKS:
            raise UnsupportedError("the file system of tier 2 has no hard links", tier2=str(target.parent)) from error
        raise
    finally:
        draft.unlink(missing_ok=True)
    sync_directory(target.parent)


def _remove_if_unused(directory: Path) -> None:
    """Delete a directory that has nothing but drafts, whose writers are dead or write to a ledger that was deleted."""
    drafts: list[Path] = []
    with suppress(OSError), os.scandir(directory) as entries:  # another call was faster, or it is not empty
        for entry in entries:
            if not entry.name.endswith(_DRAFT):
                return
            drafts.append(directory / entry.name)
        for path in drafts:
            path.unlink()
        directory.rmdir()


def _valid(directory: Path) -> tuple[int, str]:
    """Version and id of the valid bytes. Raises FileNotFoundError, CorruptDataError."""
    found: list[str] = []
    for _ in range(_TRIES):  # a list that is read during a rename can show both names, or none
        found = [name for name in os.listdir(directory) if name.startswith("at-")]
        valid = [match for name in found if (match := _VERSION.fullmatch(name))]
        if len(valid) == 1:
            return int(valid[0][2]), valid[0][3]
    raise CorruptDataError("record of a log cannot be read", directory=str(directory), found=tuple(found))


def _read_version(directory: Path, path: str) -> tuple[bytes, int]:
    for _ in range(_TRIES):
        number, own = _valid(directory)
        with suppress(FileNotFoundError):  # it was replaced meanwhile
            return (directory / f"data-{number}-{own}").read_bytes(), number
    raise NotConnectedError("record of a log changes too fast to be read", path=path)


def _create_versions(directory: Path, own: str, data: bytes) -> None:
    draft = directory.with_name(f"{directory.name}.{own}.tmp")
    make_directories(draft)
    try:
        write_new(draft / f"data-0-{own}", data)
        write_new(draft / f"at-0-{own}", b"")
        sync_directory(draft)
        draft.rename(directory)
    except OSError as error:
        for path in draft.glob("*"):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            draft.rmdir()
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise AlreadyExistsError("node exists", path=directory.name) from error
        raise
    sync_directory(directory.parent)


def _set_version(directory: Path, own: str, data: bytes, *, version: int) -> None:
    number, before = _valid(directory)
    if number != version:
        raise ConditionFailedError("node has another version", path=directory.name)
    written = directory / f"data-{version + 1}-{own}"
    write_new(written, data)
    sync_directory(directory)
    try:
        (directory / f"at-{version}-{before}").rename(directory / f"at-{version + 1}-{own}")
    except FileNotFoundError as error:
        # The bytes stay: on NFS, a rename that is sent twice succeeds and answers this.
        raise ConditionFailedError("node has another version", path=directory.name) from error
    sync_directory(directory)
    for path in directory.glob("data-*"):
        found = _VERSION.fullmatch(path.name)
        if found is not None and int(found[2]) <= version:  # others may be writing the next one
            path.unlink(missing_ok=True)
