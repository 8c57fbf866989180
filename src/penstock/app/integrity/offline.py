"""Open the parts of a store for checks while no process uses it. Nothing in its directory is changed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from penstock.app.integrity.source import Source, open_source
from penstock.app.workers.layout import owned_containers
from penstock.codec.store import rows as records
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError, DamagedRowError, InvalidArgumentError, VersionTooNewError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Files
from penstock.ports.integrity import FrameCheck
from penstock.ports.offload import Offload
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair.scrub import Scrubber
from penstock.storage.log.check import LogReport, check_file, look_at_log
from penstock.storage.machine.data_directory import parse_version
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

_METADATA = ("store.db", "store.db-wal")


class ClosedLog:
    """Implements ``ports.integrity.CheckedLog`` for a log that no process has open."""

    def __init__(self, files: Files, report: LogReport) -> None:
        self._files = files
        self._report = report

    async def check_frames(self, after: int) -> FrameCheck:
        """Frames of the next file; before the first file, the error that recovery would raise."""
        report = self._report
        if report.image is None:
            return FrameCheck(upto=None, frames=0, size_bytes=0, damage=report.damage)
        for index, item in enumerate(report.image.chain):
            last = report.image.last_of(index)
            if last > after and report.epoch is not None:
                seed = report.epoch.seed
                found = await check_file(self._files, item.path, item.header.incarnation, seed=seed, upto=last)
                return FrameCheck(upto=last, frames=found.frames, size_bytes=found.size_bytes, damage=found.damage)
        return FrameCheck(upto=None, frames=0, size_bytes=0, damage=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Offline:
    """A store's parts, unchanged. ``keyvalue`` is None if the metadata cannot be opened; ``damage`` has the reason."""

    source: Source
    data: Path
    files: Files
    log: LogReport
    keyvalue: SqliteKeyValue | None
    containers: int | None
    rows: Mapping[int, MetadataRows]
    damage: list[Damage]

    def scrubber(self, offload: Offload) -> Scrubber:
        """A scrubber of all parts that can be opened."""
        return Scrubber(
            self.rows,
            keyvalue=self.keyvalue,
            log=ClosedLog(self.files, self.log),
            chunks=self.source.chunks,
            objects=self.source.objects,
            offload=offload,
        )


@asynccontextmanager
async def open_offline(
    data: Path, *, offload: Offload, endpoint: str | None = None, insecure: bool = False
) -> AsyncIterator[Offline]:
    """Open the parts of the data directory, and lock it against other processes meanwhile.

    The metadata is read from a copy in the temporary directory, because SQLite may write even to read.
    Raises: DirectoryInUseError, InvalidArgumentError (no data directory), UnavailableError (tier 2), VersionTooNewError.
    """
    async with open_source(str(data), offload=offload, endpoint=endpoint, insecure=insecure) as source:
        if source.data is None or source.files is None:
            raise InvalidArgumentError(
                "this is a directory of tier 2, not the data directory of a store", path=str(data)
            )
        damage: list[Damage] = []
        await _check_version(source.data, source.files, damage)
        with tempfile.TemporaryDirectory(prefix="penstock-") as scratch:
            keyvalue = await _open_metadata(source, Path(scratch), offload, damage)
            try:
                containers, rows = await _rows(keyvalue, owned_containers(source.data), damage)
                yield Offline(
                    source=source,
                    data=source.data,
                    files=source.files,
                    log=await look_at_log(source.files, "wal"),
                    keyvalue=keyvalue,
                    containers=containers,
                    rows=rows,
                    damage=damage,
                )
            finally:
                if keyvalue is not None:
                    await keyvalue.close()


async def _check_version(data: Path, files: Files, damage: list[Damage]) -> None:
    why: str | None = None
    try:
        file = await files.open("VERSION")
        try:
            text = await file.read_at(0, 40)
        finally:
            await file.close()
        parse_version(text, data / "VERSION")
    except FileNotFoundError:
        why = "missing"
    except VersionTooNewError as error:
        why = f"written by a newer version: {error.fields['version']}"
    except CorruptDataError:
        why = "cannot be read"
    if why is not None:
        damage.append(Damage(kind=DamageKind.DIRECTORY, place="VERSION", why=why))


async def _open_metadata(
    source: Source, scratch: Path, offload: Offload, damage: list[Damage]
) -> SqliteKeyValue | None:
    data = source.data
    if data is None or not await offload.run(lambda: _copy_metadata(data / "metadata", scratch)):
        damage.append(Damage(kind=DamageKind.PAGE, place="metadata/store.db", why="the metadata is missing"))
        return None
    try:
        return await SqliteKeyValue.open(scratch / "store.db", offload, room=False)
    except CorruptDataError as error:
        damage.append(Damage(kind=DamageKind.PAGE, place="metadata/store.db", why=str(error)[:300]))
        return None


def _copy_metadata(directory: Path, scratch: Path) -> bool:
    if not (directory / _METADATA[0]).exists():
        return False
    for name in _METADATA:
        if (directory / name).exists():
            shutil.copyfile(directory / name, scratch / name)
    return True


async def _rows(
    keyvalue: SqliteKeyValue | None, owned: range | None, damage: list[Damage]
) -> tuple[int | None, Mapping[int, MetadataRows]]:
    if keyvalue is None:
        return None, {}
    key, copy = records.STORE_KEY, records.STORE_COPY_KEY
    try:
        row = await _row_or_copy(keyvalue, key, copy, damage)
        containers = None if row is None else records.decode_store(row)
    except CorruptDataError as error:
        damage.append(Damage(kind=DamageKind.ROW, place=key.hex(), why=str(error)[:300]))
        return None, {}
    if containers is None:
        if await keyvalue.scan(*records.range_of(records.TAG_CONTAINER), limit=1):
            why = "the row of the store and its copy are missing"
            damage.append(Damage(kind=DamageKind.ROW, place=key.hex(), why=why))
        return None, {}
    indexes = owned or range(containers)
    for index in indexes:
        key, copy = records.prefix(records.TAG_CONTAINER, index), records.container_copy_key(index)
        with suppress(DamagedRowError):  # Reported among the rows.
            await _row_or_copy(keyvalue, key, copy, damage)
    return containers, {index: MetadataRows(keyvalue) for index in indexes}


async def _row_or_copy(keyvalue: SqliteKeyValue, key: bytes, copy: bytes, damage: list[Damage]) -> bytes | None:
    """The value of both; None if both are missing. Reports one that is missing alone.

    Raises DamagedRowError: none is sound.
    """
    found: list[bytes] = []
    missing: list[bytes] = []
    rotten: DamagedRowError | None = None
    for place in (key, copy):
        try:
            (row,) = await keyvalue.get_many([place])
        except DamagedRowError as error:
            rotten = error
            continue
        if row is None:
            missing.append(place)
        else:
            found.append(row)
    if len(missing) == 1:
        why = "row of the metadata is missing" + ("; there is a copy with the same value" if found else "")
        damage.append(Damage(kind=DamageKind.ROW, place=missing[0].hex(), why=why))
    if not found and rotten is not None:
        raise rotten
    return found[0] if found else None
