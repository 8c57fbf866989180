"""A disk behind a page cache, as POSIX allows it to be after a power loss.

A write, a new length, a name that comes or goes: each that no ``fsync`` has covered may be there or not, independently of all
others, and a write in part. Built from the events of a trace; ``images`` gives what recovery may find.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.model.errors import InternalError
from tests.crash.trace import Event

_SECTOR = 512
FATES = ("keep", "lose", "prefix", "hole", "zeros")


@dataclass(slots=True, eq=False)
class _Inode:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)
    digest: bytes | None = None


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A change of the directory's entries that is not durable: ``path`` comes to name ``inode`` (None: goes), and
    ``source`` goes with it."""

    path: str
    inode: _Inode | None
    source: str | None
    ended: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What lies on the disk: directories, and files with their content. ``lost``: how many changes it lacks or tears."""

    directories: Sequence[str]
    files: Mapping[str, bytes]
    digest: bytes
    lost: int

    def write_to(self, root: Path) -> None:
        """Make the files below ``root``, which must not exist."""
        root.mkdir(mode=0o700, parents=True)
        for directory in self.directories:
            (root / directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path, data in self.files.items():
            target = root / path
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with target.open("wb", buffering=0) as file:
                kept = data.rstrip(b"\0")
                file.write(kept)
                file.truncate(len(data))


class PowerLossDisk:
    """``apply`` the events in order; ``images`` at any moment."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._live: dict[str, _Inode | None] = {}
        self._durable: dict[str, _Inode | None] = {}
        self._names: list[_Renamed] = []
        self._unsynced: dict[_Inode, None] = {}
        self._root_there = False

    def apply(self, event: Event) -> None:
        """Raises InternalError for what cannot have happened."""
        path = event.path
        match event.kind:
            case "create":
                if path not in self._live:
                    self._rename(path, _Inode(), None, event)
            case "make_dir":
                if path != self._root:
                    self._rename(path, None, None, event)
            case "write" | "resize" | "extend" | "punch":
                inode = self._inode(path)
                inode.pending.append(event)
                self._unsynced[inode] = None
            case "sync":
                self._sync(event)
            case "failed-sync":
                self._forget(event)
            case "unlink":
                self._live.pop(path, None)
                self._names.append(_Renamed(path, None, path, event.ended))
            case "rename":
                inode = self._inode(path)
                del self._live[path]
                self._rename(event.target, inode, path, event)
            case other:
                raise InternalError("no such event", kind=other)

    def _rename(self, path: str, inode: _Inode | None, source: str | None, event: Event) -> None:
        self._live[path] = inode
        self._names.append(_Renamed(path, inode, source, event.ended))

    def _inode(self, path: str) -> _Inode:
        inode = self._live.get(path)
        if inode is None:
            raise InternalError("file is not known", path=path)
        return inode

    def _sync(self, event: Event) -> None:
        if event.path == self._root or self._live.get(event.path, ...) is None:
            rest = []
            for change in self._names:
                if change.path.rpartition("/")[0] == event.path and change.ended < event.began:
                    _enter(self._durable, change)
                else:
                    rest.append(change)
            self._names = rest
            return
        inode = self._inode(event.path)
        covered = [item for item in inode.pending if item.ended < event.began]
        for item in covered:
            _change(inode.durable, item, "keep", random.Random(0))
        inode.pending = [item for item in inode.pending if item.ended >= event.began]
        inode.digest = None
        if not inode.pending:
            self._unsynced.pop(inode, None)

    def _forget(self, event: Event) -> None:
        """The pages are clean now and were never written: no later sync of this file makes them durable."""
        inode = self._live.get(event.path)
        if inode is not None:
            inode.pending.clear()
            self._unsynced.pop(inode, None)

    # --- what may be found

    def images(self, rng: random.Random, count: int) -> Iterator[Image]:
        """Up to ``count`` of them: everything there, nothing there, single changes lost or kept, then mixtures and tears."""
        changes = sum(len(inode.pending) for inode in self._unsynced) + len(self._names)
        yield self._image(["keep"] * changes, rng)
        if not changes:
            return
        yield self._image(["lose"] * changes, rng)
        made = 2
        for base, other in (("keep", "lose"), ("lose", "keep")):
            for place in rng.sample(range(changes), min(changes, max(1, count // 6))):
                fates = [base] * changes
                fates[place] = other
                yield self._image(fates, rng)
                made += 1
        while made < count:
            weights = rng.choice(((6, 1, 1, 1, 1), (1, 1, 1, 1, 1), (1, 6, 1, 1, 1), (8, 0, 1, 1, 0)))
            yield self._image(rng.choices(FATES, weights, k=changes), rng)
            made += 1

    def _image(self, fates: Sequence[str], rng: random.Random) -> Image:
        fate = iter(fates)
        contents: dict[_Inode, bytes] = {}
        for inode in self._unsynced:
            data = bytearray(inode.durable)
            for item in inode.pending:
                _change(data, item, next(fate), rng)
            contents[inode] = bytes(data)
        names = dict(self._durable)
        for change in self._names:
            if next(fate) in ("keep", "prefix"):
                _enter(names, change)
        files: dict[str, bytes] = {}
        directories: list[str] = []
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(names):
            if not _reachable(path, names, self._root):
                continue
            inode_or_directory = names[path]
            short = path[len(self._root) + 1 :]
            digest.update(short.encode() + b"\0")
            if inode_or_directory is None:
                directories.append(short)
                continue
            files[short] = contents.get(inode_or_directory) or bytes(inode_or_directory.durable)
            digest.update(_digest(inode_or_directory, contents))
        lost = sum(item != "keep" for item in fates)
        return Image(directories=directories, files=files, digest=digest.digest(), lost=lost)


def _digest(inode: _Inode, contents: Mapping[_Inode, bytes]) -> bytes:
    if inode in contents:
        return hashlib.blake2b(contents[inode], digest_size=16).digest()
    if inode.digest is None:
        inode.digest = hashlib.blake2b(inode.durable, digest_size=16).digest()
    return inode.digest


def _reachable(path: str, names: Mapping[str, _Inode | None], root: str) -> bool:
    parent = path.rpartition("/")[0]
    while parent != root:
        if names.get(parent, ...) is not None:
            return False
        parent = parent.rpartition("/")[0]
    return True


def _enter(names: dict[str, _Inode | None], change: _Renamed) -> None:
    if change.source is not None:
        names.pop(change.source, None)
    if change.source != change.path:
        names[change.path] = change.inode


def _change(data: bytearray, item: Event, fate: str, rng: random.Random) -> None:
    if fate == "lose":
        return
    if item.kind == "resize":
        del data[item.offset :]
        data.extend(bytes(item.offset - len(data)))
        return
    if item.kind == "extend":
        data.extend(bytes(max(0, item.offset - len(data))))
        return
    if item.kind == "punch":
        end = min(len(data), item.offset + item.length)
        data[item.offset : end] = bytes(max(0, end - item.offset))
        return
    new = item.data
    if fate == "prefix":
        # Torn anywhere, or where a sector ends.
        cut = rng.randrange(len(new) + 1)
        new = new[: cut // _SECTOR * _SECTOR if rng.random() < 0.5 else cut]
    elif fate == "zeros":
        # The length reached the disk, the bytes did not.
        new = bytes(len(new)) if item.offset >= len(data) else b""
    elif fate == "hole" and len(new) > _SECTOR:
        hole = rng.randrange(len(new) // _SECTOR) * _SECTOR
        _place(data, item.offset + hole + _SECTOR, new[hole + _SECTOR :])
        new = new[:hole]
    _place(data, item.offset, new)


def _place(data: bytearray, offset: int, new: bytes) -> None:
    if not new:
        return
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(new)] = new
