"""A copy of one data directory at one position of its log, while a store may be running on it.

The copy is what a crash at that position would leave: metadata of an earlier moment, the log from there to the position,
and chunks that hold at least what both name. So a start on it is an ordinary recovery. Source: docs/design/0023-backup.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import field
from pathlib import Path

from penstock.app.backup.manifest import LogPosition
from penstock.app.replicated.log_place import refuse_replicated
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import CHUNKS, TierPlace, locate_tier
from penstock.codec.store.wal import EpochRecord
from penstock.model.errors import CorruptDataError, InvalidArgumentError, UnavailableError
from penstock.model.values.dataclass import dataclass
from penstock.ports.offload import Offload
from penstock.storage.log.check import read_epoch
from penstock.storage.log.scan import Accepted, LogFile, accept_file, list_log, promised_behind, read_log
from penstock.storage.machine.copy import Copied, checksum_file, copy_file, write_pieces
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.holds import hold_chunks, hold_log
from penstock.storage.rows.sqlite_snapshot import snapshot

Progress = Callable[[Mapping[str, int]], None]
_LOG = "wal"
_EPOCH = f"{_LOG}/EPOCH"
_DATABASE = "metadata/store.db"
_READ_BYTES = 8 << 20


@dataclass(slots=True, kw_only=True)
class CopiedFiles:
    """The copied files, by path below ``data`` of the backup. ``progress`` is called after each file."""

    progress: Progress | None = None
    files: dict[str, Copied] = field(default_factory=dict)
    _bytes: int = 0

    def note(self, path: str, copied: Copied) -> None:
        before = self.files.get(path)
        self._bytes += copied.size_bytes - (0 if before is None else before.size_bytes)
        self.files[path] = copied
        if self.progress is not None:
            self.progress({"files": len(self.files), "bytes": self._bytes})


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryCopy:
    """Copies the data directory ``source`` to ``target``, noting files under ``prefix``."""

    source: Path
    target: Path
    prefix: str
    settings: EmbeddedSettings
    offload: Offload
    copied: CopiedFiles

    async def run(self) -> tuple[LogPosition, str | None]:
        """Copy the directory. Returns the position, and where tier 2 is (None: in the directory itself).

        Raises InvalidArgumentError (``target`` lies in tier 2), UnsupportedError,
        UnavailableError (another backup runs; the store was restarted; tier 2 cannot be reached),
        CorruptDataError, VersionTooNewError, StorageFullError, OSError.
        """
        await self.offload.run(lambda: refuse_replicated(self.source, what="a backup"))
        files = RealFiles(self.source, self.offload, read_only=True)
        tier = await locate_tier(self.settings, files, offload=self.offload, read_only=True)
        _check_outside(tier, self.target)
        with ExitStack() as stack:
            await self.offload.run(lambda: stack.enter_context(hold_chunks(self.source)))
            # Copy most of the chunks first, without a hold on the log. Chunks that are new or have grown follow at the
            # end.
            known = await self._copy_chunks(tier, {})
            position = await self._copy_position(files)
            await self._copy_chunks(tier, known)
        return position, tier.place

    async def _copy_position(self, files: RealFiles) -> LogPosition:
        """Copy the metadata, then the log. The order matters: a start refuses a log that ends before the metadata's
        position."""
        with ExitStack() as stack:
            await self.offload.run(lambda: stack.enter_context(hold_log(self.source)))
            epoch = await _epoch(files)
            await self.offload.run(lambda: snapshot(self.source / _DATABASE, self.target / _DATABASE))
            await self._note_checksum(_DATABASE)
            await self._copy(_EPOCH)
            await self._copy_log(files, epoch)
            if await _epoch(files) != epoch:
                raise UnavailableError("the store was restarted during the backup; try again", path=str(self.source))
        own = RealFiles(self.target, self.offload)
        image = await read_log(own, _LOG, epoch=epoch.epoch, seed=epoch.seed)
        return LogPosition(directory=self.prefix or ".", epoch=epoch.epoch, last=image.last)

    async def _copy_log(self, files: RealFiles, epoch: EpochRecord) -> None:
        """Copy the files in use; the newest one up to its last complete frame. Later files are not needed."""
        used = [item for item in await list_log(files, _LOG) if item.in_use]
        used.sort(key=lambda item: item.header.incarnation if item.header is not None else 0)
        for item in used[:-1]:
            await self._copy(item.path)
        for item in used[-1:]:
            accepted = await _whole_frames(files, item, epoch)
            await self._copy(item.path, upto_bytes=accepted.end, size_bytes=accepted.header.file_bytes)

    async def _copy_chunks(self, tier: TierPlace, known: Mapping[str, int]) -> Mapping[str, int]:
        """Copy the chunks whose size differs from that in ``known``; return all chunks with their sizes."""
        listed = await tier.objects.list(CHUNKS)
        root = Path(tier.place) if tier.place is not None else self.source
        for path, size in listed.items():
            if known.get(path) == size:
                continue
            # An abandoned chunk may be deleted during the copy. A missing chunk that the metadata names is reported.
            with suppress(FileNotFoundError):
                if tier.files is None:
                    await self._download(tier, path, size)
                else:
                    await self._copy(path, root)
        return listed

    async def _download(self, tier: TierPlace, path: str, size: int) -> None:
        pieces = [await tier.objects.read(path, start, _READ_BYTES) for start in range(0, size, _READ_BYTES)]
        self._note(path, await self.offload.run(lambda: write_pieces(pieces, self.target / path)))

    async def _copy(
        self, path: str, root: Path | None = None, *, upto_bytes: int | None = None, size_bytes: int = 0
    ) -> None:
        source, target = (self.source if root is None else root) / path, self.target / path
        copied = await self.offload.run(lambda: copy_file(source, target, upto_bytes=upto_bytes, size_bytes=size_bytes))
        self._note(path, copied)

    async def _note_checksum(self, path: str) -> None:
        self._note(path, await self.offload.run(lambda: checksum_file(self.target / path)))

    def _note(self, path: str, copied: Copied) -> None:
        self.copied.note(os.path.normpath(os.path.join(self.prefix, path)), copied)


def _check_outside(tier: TierPlace, target: Path) -> None:
    """Raises InvalidArgumentError: the target lies in tier 2. Its files would count as chunks and be copied into the
    backup itself."""
    if tier.files is not None and tier.place is not None:
        place = Path(tier.place).resolve()
        if target.resolve().is_relative_to(place):
            raise InvalidArgumentError("a backup must not lie in tier 2 of the store", tier2=str(place))


async def _whole_frames(files: RealFiles, item: LogFile, epoch: EpochRecord) -> Accepted:
    """The frames of the newest file up to the last complete one. Raises CorruptDataError if a durable frame is
    damaged."""
    accepted = await accept_file(files, item, seed=epoch.seed)
    promised = await promised_behind(files, accepted, seed=epoch.seed)
    if promised > accepted.last:
        # These frames were written after the first read, or are damaged. A frame that was durable then is readable now.
        accepted = await accept_file(files, item, seed=epoch.seed)
    if promised > accepted.last:
        raise CorruptDataError(
            "durable frame of the log is damaged", file=item.path, offset=accepted.end, sequence=accepted.last + 1
        )
    return accepted


async def _epoch(files: RealFiles) -> EpochRecord:
    found = await read_epoch(files, _LOG)
    if found is None:
        raise CorruptDataError("the log's EPOCH file is missing or damaged; run penstock doctor", file=_EPOCH)
    return found
