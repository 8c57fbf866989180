"""Files in memory behind a page cache that can lose, tear and damage unsynced data.

A *process crash* keeps the cache. A *power loss* keeps, of each file, what was synced and, of each later write, all,
nothing, a prefix, or a damaged copy; and of each directory, the changes that were synced and any of the others.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field

from penstock.model.errors import StorageFullError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Buffer

_BLOCK = 4096  # bytes of a block of the file system
_SECTOR = 512  # bytes that a disk writes whole
UNLIMITED = 1 << 40  # bytes; more than any run writes

_SLOW_SHARE = 0.3  # share of the calls that take time


class NodeCrashed(BaseException):
    """Raised by every I/O of a crashed node. No handler catches it, because dead processes do not clean up."""


@dataclass(slots=True)
class _Inode:
    """A file's bytes as the process sees them, as the disk holds them, and the changes in between: writes, and new
    lengths."""

    cache: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes] | int] = field(default_factory=list)
    punched: list[tuple[int, int]] = field(default_factory=list)

    def images(self) -> Iterator[bytes | bytearray]:
        yield self.cache
        yield self.disk
        for change in self.unsynced:
            if not isinstance(change, int):
                yield change[1]

    def make_durable(self) -> None:
        for change in self.unsynced:
            if isinstance(change, int):
                _resize(self.disk, change)
            else:
                _place(self.disk, *change)
        self.unsynced.clear()

    def lose_power(self, rng: random.Random) -> None:
        image = self.disk
        for change in self.unsynced:
            if isinstance(change, int):
                if rng.random() < 0.5:
                    _resize(image, change)
                continue
            offset, data = change
            fate = rng.randrange(5)
            # Damage to the zeros that pad a record has no effect.
            telling = len(data.rstrip(b"\0"))
            if fate == 0:
                continue
            if fate == 1:
                data = data[: rng.randrange(telling + 1)]
            elif fate == 2 and telling:
                flipped = bytearray(data)
                flipped[rng.randrange(telling)] ^= 1 << rng.randrange(8)
                data = bytes(flipped)
            elif fate == 3 and len(data) > _SECTOR:
                # Sectors of one write reach the disk in any order: one in the middle may be missing.
                hole = rng.randrange(len(data) // _SECTOR) * _SECTOR
                _place(image, offset + hole + _SECTOR, data[hole + _SECTOR :])
                data = data[:hole]
            _place(image, offset, data)
        self.cache, self.unsynced = bytearray(image), []


def _resize(image: bytearray, length: int) -> None:
    del image[length:]
    image.extend(bytes(length - len(image)))


def _place(image: bytearray, offset: int, data: bytes) -> None:
    if len(image) < offset:
        image.extend(bytes(offset - len(image)))
    image[offset : offset + len(data)] = data


def _punched_bytes(inode: _Inode) -> int:
    return sum(end - start for start, end in inode.punched)


class SimDisk:
    """What survives a process: inodes, and the visible and the durable directory."""

    def __init__(self, rng: random.Random, *, capacity_bytes: int = UNLIMITED) -> None:
        self.rng = rng
        self.capacity_bytes = capacity_bytes
        self.names: dict[str, _Inode] = {}
        self.durable_names: dict[str, _Inode] = {}
        self.directories: dict[str, None] = {"": None}
        self.unsynced_names: dict[str, None] = {}
        self.generation = 0
        self.latency_s = 0.0003
        self.slow_s = 0.0
        self.in_place = 0.0
        """Share of writes that the process may sync in place, as on a fast disk."""
        self.sync_fails_once: str | None = None
        """The next sync of a file with this path prefix fails, and its data never becomes durable."""
        self.failed_syncs: list[str] = []
        self.writes_fail: str | None = None
        """Writes to files with this path prefix fail while this is set."""
        self.on_write: Callable[[str], None] | None = None
        """Called with the path of each write that is in the cache but not yet on the disk."""
        self.on_punch: Callable[[str], None] | None = None
        """Called with the path of each file in which a hole is being punched."""

    def crash(self, *, power: bool) -> None:
        """Kill the process that uses the disk; with ``power`` also lose what was not durable."""
        self.generation += 1
        if not power:
            return
        names = dict(self.durable_names)
        for path in sorted(self.unsynced_names):
            if self.names.get(path) is not self.durable_names.get(path) and self.rng.random() < 0.5:
                inode = self.names.get(path)
                if inode is None:
                    names.pop(path, None)
                else:
                    names[path] = inode
        survivors = {id(inode): inode for inode in names.values()}
        for inode in survivors.values():
            inode.lose_power(self.rng)
        self.names, self.durable_names = names, dict(names)
        self.unsynced_names.clear()

    def holding(self, wanted: Sequence[bytes]) -> list[str]:
        """The files that contain any of these bytes in the page cache, on the disk, or in unsynced writes. Includes
        files whose names a power loss may restore."""
        found = [*self.names.items(), *(item for item in self.durable_names.items() if item[0] not in self.names)]
        return [
            f"{path} {item[:60]!r}"
            for path, inode in sorted(found, key=lambda named: named[0])
            for item in wanted
            if any(item in image for image in inode.images())
        ]

    def used_bytes(self) -> int:
        return sum(len(inode.cache) - _punched_bytes(inode) for inode in self.names.values())

    def punched(self, path: str) -> Sequence[tuple[int, int]]:
        """The punched parts of a file."""
        inode = self.names.get(path)
        return () if inode is None else tuple(inode.punched)

    def check_room(self, growth_bytes: int) -> None:
        """Raises StorageFullError."""
        if (
            growth_bytes > 0
            and self.capacity_bytes < UNLIMITED
            and self.used_bytes() + growth_bytes > self.capacity_bytes
        ):
            raise StorageFullError("no space left on the device", growth_bytes=growth_bytes)


class SimFiles:
    """``ports.files.Files`` of one process over a ``SimDisk``; dies with the next crash of the disk."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._generation = disk.generation
        self.stepped: Callable[[], None] | None = None
        """Called at the end of each step."""

    async def step(self) -> None:
        """One step of I/O: time passes, and the node may be dead at the end."""
        await asyncio.sleep(self._disk.rng.expovariate(1 / self._disk.latency_s))
        self.check_alive()
        if self.stepped is not None:
            self.stepped()

    async def delay(self, *, share: float = _SLOW_SHARE) -> None:
        """Wait at the end of a call that may be slow on this disk, in this share of cases."""
        if self._disk.slow_s and self._disk.rng.random() < share:
            await asyncio.sleep(self._disk.rng.random() * self._disk.slow_s)
            await self.step()

    def check_alive(self) -> None:
        if self._generation != self._disk.generation:
            raise NodeCrashed

    async def open(self, path: str, *, create: bool = False, direct: bool = False) -> SimFile:
        await self.step()
        inode = self._disk.names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(2, "no such file", path)
            inode = self._disk.names[path] = _Inode()
            self._disk.unsynced_names[path] = None
        return SimFile(self, self._disk, inode, path)

    async def exists(self, path: str) -> bool:
        await self.step()
        return path in self._disk.names

    async def list(self, directory: str) -> Sequence[str]:
        await self.step()
        prefix = _prefix(directory)
        found = {path[len(prefix) :].split("/")[0] for path in self._disk.names if path.startswith(prefix)}
        found.update(
            item[len(prefix) :].split("/")[0]
            for item in self._disk.directories
            if item.startswith(prefix) and item != directory
        )
        return sorted(found - {""})

    async def make_dir(self, directory: str) -> None:
        await self.step()
        parts = directory.split("/")
        for end in range(1, len(parts) + 1):
            self._disk.directories["/".join(parts[:end])] = None

    async def rename(self, source: str, target: str) -> None:
        await self.step()
        if source not in self._disk.names:
            raise FileNotFoundError(2, "no such file", source)
        self._disk.names[target] = self._disk.names.pop(source)
        self._disk.unsynced_names.update({source: None, target: None})

    async def unlink(self, path: str) -> None:
        await self.step()
        if self._disk.names.pop(path, None) is not None:
            self._disk.unsynced_names[path] = None

    async def sync_dir(self, directory: str) -> None:
        await self.step()
        directory = "" if directory == "." else directory
        for path in [item for item in self._disk.unsynced_names if item.rpartition("/")[0] == directory]:
            del self._disk.unsynced_names[path]
            inode = self._disk.names.get(path)
            if inode is None:
                self._disk.durable_names.pop(path, None)
            else:
                self._disk.durable_names[path] = inode

    async def allocated_bytes(self, directory: str) -> int:
        await self.step()
        prefix = _prefix(directory)
        return sum(
            len(inode.cache) - _punched_bytes(inode)
            for path, inode in self._disk.names.items()
            if path.startswith(prefix)
        )

    async def free_bytes(self) -> int:
        await self.step()
        return max(0, self._disk.capacity_bytes - self._disk.used_bytes())

    async def total_bytes(self) -> int:
        await self.step()
        return self._disk.capacity_bytes

    def location(self, path: str) -> str | None:
        return None


def _prefix(directory: str) -> str:
    return "" if directory in ("", ".") else f"{directory}/"


class SimFile:
    """``ports.files.File``."""

    def __init__(self, files: SimFiles, disk: SimDisk, inode: _Inode, path: str) -> None:
        self._files = files
        self._disk = disk
        self._inode = inode
        self._path = path

    async def write_at(self, offset: int, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        # A process may die in the middle of a write: its first part is then in the cache.
        cut = self._disk.rng.randrange(len(data) + 1) if self._disk.rng.random() < 0.2 else 0
        await self._files.step()
        self._disk.check_room(offset + len(data) - len(self._inode.cache))
        failing = self._disk.writes_fail
        if failing is not None and self._path.startswith(failing):
            self._write(offset, data[:cut])
            raise OSError(5, "input/output error", self._path)
        if cut:
            self._write(offset, data[:cut])
            await self._files.step()
        self._write(offset + cut, data[cut:])
        if self._disk.on_write is not None:
            self._disk.on_write(self._path)

    def _write(self, offset: int, data: bytes) -> None:
        _place(self._inode.cache, offset, data)
        self._inode.unsynced.append((offset, data))

    async def sync(self) -> None:
        await self._files.step()
        self._sync()

    def _sync(self) -> None:
        failing = self._disk.sync_fails_once
        if failing is not None and self._path.startswith(failing):
            # The kernel reports the error once. Then the pages are marked clean although they were never written.
            self._disk.sync_fails_once = None
            self._disk.failed_syncs.append(self._path)
            self._inode.unsynced.clear()
            raise OSError(5, "input/output error", self._path)
        self._inode.make_durable()

    def takes_in_place(self, size_bytes: int) -> bool:
        """As ``ports.files.InPlaceFile`` says."""
        return self._disk.in_place > 0

    def commit_in_place(self, offset: int, parts: Sequence[Buffer]) -> bool:
        """As ``ports.files.InPlaceFile`` says. No time passes, so nothing can happen between the write and its sync."""
        disk = self._disk
        self._files.check_alive()
        if not disk.in_place or disk.rng.random() >= disk.in_place:
            return False
        data = b"".join(parts)
        disk.check_room(offset + len(data) - len(self._inode.cache))
        if disk.writes_fail is not None and self._path.startswith(disk.writes_fail):
            self._write(offset, data[: disk.rng.randrange(len(data) + 1)])
            raise OSError(5, "input/output error", self._path)
        self._write(offset, data)
        self._sync()
        return True

    def read_in_place(self, offset: int, length: int, *, wait: bool = False) -> bytes | None:
        """As ``ports.files.InPlaceFile`` says."""
        self._files.check_alive()
        return bytes(self._inode.cache[offset : offset + length]) if self._disk.in_place or wait else None

    async def read_at(self, offset: int, length: int) -> bytes:
        await self._files.step()
        return bytes(self._inode.cache[offset : offset + length])

    async def read_into(self, offset: int, room: memoryview, *, ahead: int = 0) -> int:
        data = await self.read_at(offset, len(room))
        room[: len(data)] = data
        return len(data)

    async def size(self) -> int:
        await self._files.step()
        return len(self._inode.cache)

    async def resize(self, length: int) -> None:
        await self._files.step()
        _resize(self._inode.cache, length)
        self._inode.unsynced.append(length)

    async def punch(self, start: int, end: int) -> None:
        await self._files.step()
        first, last = -(-start // _BLOCK) * _BLOCK, end // _BLOCK * _BLOCK
        if first < last:
            self._write(first, bytes(last - first))
            self._inode.punched.append((first, last))
        if self._disk.on_punch is not None:
            self._disk.on_punch(self._path)
        await self._files.delay(share=1.0)

    async def close(self) -> None:
        """Changes nothing that survives."""
