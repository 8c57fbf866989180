"""Read-only inspection of log files: frames with their offsets and checksums."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.codec.store.wal import (
    EPOCH_FILE_BYTES,
    FRAMES_AT,
    HEADER_AT,
    MARK,
    EpochRecord,
    FileHeader,
    FrameHeader,
    decode_epoch,
    decode_file_header,
)
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import Files
from penstock.ports.integrity import FrameCheck
from penstock.storage.log.scan import FrameReader, LogFile, LogImage, list_log, read_log


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenFrame:
    """A frame at ``offset`` of its file. ``payload`` is None where its checksum fails."""

    path: str
    offset: int
    header: FrameHeader
    payload: bytes | None

    @property
    def is_mark(self) -> bool:
        return bool(self.header.flags & MARK)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    """A log directory that no process has open. ``image`` is None if recovery would refuse it; ``damage`` says why."""

    epoch: EpochRecord | None
    files: Sequence[LogFile]
    image: LogImage | None
    damage: Sequence[Damage]


async def check_file(files: Files, path: str, incarnation: int, *, seed: int, upto: int) -> FrameCheck:
    """Verify the frames of one use of a file, up to sequence ``upto``."""
    frames = offset = 0
    sequence: int | None = None
    try:
        file = await files.open(path)
    except FileNotFoundError:
        return FrameCheck(upto=None, frames=0, size_bytes=0, damage=[_damage(path, 0, "log file is missing")])
    try:
        header = decode_file_header((await file.read_at(0, FRAMES_AT))[HEADER_AT:])
        if header is None or header.incarnation != incarnation:
            damage = [_damage(path, HEADER_AT, "header of the log file is damaged")]
            return FrameCheck(upto=None, frames=0, size_bytes=FRAMES_AT, damage=damage)
        reader = FrameReader(file, end=header.file_bytes, seed=seed)
        offset, sequence = FRAMES_AT, header.first_sequence - 1
        while sequence < upto:
            found = await reader.frame_at(offset)
            step = 0 if found is not None and found[0].flags & MARK else 1
            if found is None or found[0].incarnation != incarnation or found[0].sequence != sequence + step:
                damage = [_damage(path, offset, "durable frame of the log is damaged", sequence=sequence + 1)]
                return FrameCheck(upto=None, frames=frames, size_bytes=offset, damage=damage)
            sequence += step
            frames += 1
            offset += found[0].size_bytes
    finally:
        await file.close()
    return FrameCheck(upto=None, frames=frames, size_bytes=offset, damage=())


def _damage(path: str, offset: int, why: str, **fields: int) -> Damage:
    return Damage(kind=DamageKind.LOG, place=path, why=why, fields={"at": offset} | fields)


async def read_epoch(files: Files, directory: str) -> EpochRecord | None:
    """The log's epoch, or None if the file is missing or damaged. Raises VersionTooNewError."""
    try:
        file = await files.open(f"{directory}/EPOCH")
    except FileNotFoundError:
        return None
    try:
        return decode_epoch(await file.read_at(0, EPOCH_FILE_BYTES))
    finally:
        await file.close()


async def look_at_log(files: Files, directory: str) -> LogReport:
    """What recovery would find. Raises VersionTooNewError, OSError."""
    epoch = await read_epoch(files, directory)
    listed = await list_log(files, directory)
    if epoch is None:
        damage = []
        if listed or await files.exists(f"{directory}/EPOCH"):
            damage = [
                _damage(f"{directory}/EPOCH", 0, "the log's EPOCH file is missing or damaged; run penstock doctor")
            ]
        return LogReport(epoch=None, files=listed, image=None, damage=damage)
    try:
        image = await read_log(files, directory, epoch=epoch.epoch, seed=epoch.seed)
    except CorruptDataError as error:
        found = Damage(
            kind=DamageKind.LOG,
            place=str(error.fields.get("file", directory)),
            why=error.message,
            fields={
                "at" if name == "offset" else name: value for name, value in error.fields.items() if name != "file"
            },
        )
        return LogReport(epoch=epoch, files=listed, image=None, damage=[found])
    return LogReport(epoch=epoch, files=listed, image=image, damage=())


async def frames_in(files: Files, path: str, *, seed: int) -> AsyncIterator[SeenFrame]:
    """Every frame of the file's current use with a valid header, by offset, including those with damaged payloads."""
    file = await files.open(path)
    try:
        header: FileHeader | None = decode_file_header((await file.read_at(0, FRAMES_AT))[HEADER_AT:])
        end = header.file_bytes if header is not None else await file.size()
        reader = FrameReader(file, end=end, seed=seed)
        offset = FRAMES_AT
        while offset < end:
            frame = await reader.header_at(offset)
            if frame is None or (header is not None and frame.incarnation != header.incarnation):
                offset = await _next_frame(reader, offset, header)
                if offset < 0:
                    return
                continue
            whole = await reader.frame_at(offset)
            yield SeenFrame(path=path, offset=offset, header=frame, payload=None if whole is None else bytes(whole[1]))
            offset += frame.size_bytes
    finally:
        await file.close()


async def _next_frame(reader: FrameReader, offset: int, header: FileHeader | None) -> int:
    """The offset of the next frame of this use after an unreadable one, or -1."""
    async for place, frame in reader.headers_with_offsets(offset):
        if header is None or frame.incarnation == header.incarnation:
            return place
    return -1
