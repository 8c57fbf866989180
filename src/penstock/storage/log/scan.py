"""Read the files of a local log: their content, the end of the accepted frames, and whether anything is missing.

Nothing here changes a file. Source: docs/design/0004-log.md, "What recovery believes".
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from penstock.codec.store.wal import (
    BLOCK_BYTES,
    FRAME_HEADER,
    FRAME_MAGIC,
    FRAMES_AT,
    HEADER_AT,
    MARK,
    FileHeader,
    FrameHeader,
    decode_file_header,
    decode_frame_header,
    decode_free_mark,
    frame_payload,
)
from penstock.model.errors import CorruptDataError
from penstock.model.values.dataclass import dataclass
from penstock.ports.files import File, Files

LOG_SUFFIX = ".log"
_WINDOW_BYTES = 4 << 20
"""Several frames of the usual 512 KiB: what a window cuts off is read again with the next one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """A file as its first blocks describe it. ``header=None``: never used, or damaged if ``damaged`` is set."""

    path: str
    size_bytes: int
    freed: int
    header: FileHeader | None
    damaged: bool

    @property
    def in_use(self) -> bool:
        return self.header is not None and self.header.incarnation > self.freed


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The valid frames of a used file: ``header.first_sequence`` to ``last``; ``end`` is the offset after them.

    ``proven`` is the highest sequence that a later write states to be durable; ``promised`` also counts the statement
    of the file's own header, which is not proven durable by itself.
    """

    path: str
    header: FileHeader
    last: int
    end: int
    proven: int

    @property
    def promised(self) -> int:
        return max(self.proven, self.header.durable_sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogImage:
    """A sound log: its used files, oldest first, and all other files in the directory.

    ``last`` is the last accepted sequence, ``proven`` the last one known to be durable. ``torn`` are files whose
    header was never completed.
    """

    chain: Sequence[Accepted]
    free: Sequence[LogFile]
    torn: Sequence[LogFile]
    last: int
    proven: int

    def last_of(self, index: int) -> int:
        """The last sequence to take from this file of the chain: where two files overlap, the later one counts."""
        if index + 1 < len(self.chain):
            return self.chain[index + 1].header.first_sequence - 1
        return self.chain[index].last


class FrameReader:
    """Frames of one file, read through a window of at least 4 MiB and returned as views of it."""

    def __init__(self, file: File, *, end: int, seed: int) -> None:
        self._file = file
        self._end = end
        self._seed = seed
        self._window = b""
        self._view = memoryview(self._window)
        self._window_at = 0

    async def header_at(self, offset: int) -> FrameHeader | None:
        """The header at ``offset``, or None if it is invalid or its frame would exceed the file."""
        header = decode_frame_header(await self._bytes(offset, FRAME_HEADER.size), seed=self._seed)
        return header if header is not None and offset + header.size_bytes <= self._end else None

    async def frame_at(self, offset: int) -> tuple[FrameHeader, memoryview] | None:
        """The whole valid frame at ``offset``, or None. Copy the payload to keep it: the view pins the window."""
        header = await self.header_at(offset)
        if header is None:
            return None
        payload = frame_payload(header, await self._bytes(offset, header.size_bytes))
        return None if payload is None else (header, payload)

    async def headers_behind(self, offset: int) -> AsyncIterator[FrameHeader]:
        """Every valid header at a block boundary at or after ``offset``."""
        async for _, header in self.headers_with_offsets(offset):
            yield header

    async def headers_with_offsets(self, offset: int) -> AsyncIterator[tuple[int, FrameHeader]]:
        """The same, each with its offset."""
        offset = -(-offset // BLOCK_BYTES) * BLOCK_BYTES
        while offset < self._end:
            await self._bytes(offset, min(BLOCK_BYTES, self._end - offset))
            # Most of a log file is zeros. A search for the magic in all bytes takes three times as long as reading them.
            firsts = self._window[offset - self._window_at :: BLOCK_BYTES]
            if not firsts:
                return
            index = firsts.find(FRAME_MAGIC[:1])
            while index >= 0:
                position = offset + index * BLOCK_BYTES
                header = await self.header_at(position)
                if header is not None:
                    yield position, header
                index = firsts.find(FRAME_MAGIC[:1], index + 1)
            offset += len(firsts) * BLOCK_BYTES

    async def _bytes(self, offset: int, length: int) -> memoryview:
        start = offset - self._window_at
        if start < 0 or start + length > len(self._window):
            wanted = min(max(length, _WINDOW_BYTES), self._end - offset)
            self._window = await self._file.read_at(offset, wanted) if wanted > 0 else b""
            self._view = memoryview(self._window)
            self._window_at = offset
            start = 0
        return self._view[start : start + length]


async def list_log(files: Files, directory: str) -> Sequence[LogFile]:
    """Describe every log file in the directory, in order of names. Raises VersionTooNewError."""
    found = []
    for name in await files.list(directory):
        if name.endswith(LOG_SUFFIX):
            path = f"{directory}/{name}"
            file = await files.open(path)
            try:
                found.append(await _describe(file, path))
            finally:
                await file.close()
    return found


async def read_log(files: Files, directory: str, *, epoch: int, seed: int) -> LogImage:
    """Validate the whole log. ``epoch`` is the highest that may have written to it.

    Raises CorruptDataError (fields ``file``, ``offset``): frames that were durable are missing or damaged.
    """
    listed = await list_log(files, directory)
    used = sorted((item for item in listed if item.in_use), key=_incarnation)
    chain: list[Accepted] = []
    for item in used:
        accepted = await accept_file(files, item, seed=seed)
        if accepted.header.epoch > epoch:
            raise CorruptDataError("log file is newer than the log's epoch", file=item.path, offset=HEADER_AT)
        if chain and accepted.header.first_sequence > chain[-1].last + 1:
            raise _missing(chain[-1].path, chain[-1].end, chain[-1].last + 1)
        chain.append(accepted)
    last = chain[-1].last if chain else 0
    proven = max((item.proven for item in chain), default=0)
    promised = max((item.promised for item in chain), default=0)
    if chain:
        promised = max(promised, await promised_behind(files, chain[-1], seed=seed))
        if promised > last:
            raise _missing(chain[-1].path, chain[-1].end, last + 1)
    torn = [item for item in listed if item.damaged]
    for item in torn:
        await _check_torn(files, item, chain, last=last, seed=seed)
    free = [item for item in listed if not item.in_use and not item.damaged]
    return LogImage(chain=chain, free=free, torn=torn, last=last, proven=min(proven, last))


async def _describe(file: File, path: str) -> LogFile:
    head = await file.read_at(0, FRAMES_AT)
    block = head[HEADER_AT:FRAMES_AT]
    header = decode_file_header(block)
    return LogFile(
        path=path,
        size_bytes=await file.size(),
        freed=decode_free_mark(head[:HEADER_AT]),
        header=header,
        damaged=header is None and any(block),
    )


async def accept_file(files: Files, item: LogFile, *, seed: int) -> Accepted:
    """The complete frames of one use of a file, up to the first incomplete one. Raises CorruptDataError."""
    header = item.header
    if header is None:
        raise CorruptDataError("log file has no header", file=item.path, offset=HEADER_AT)
    if item.size_bytes < header.file_bytes:
        # Files are written in full and synced before their first use: no crash shortens one.
        raise CorruptDataError(
            "log file is cut short", file=item.path, offset=item.size_bytes, expected_bytes=header.file_bytes
        )
    file = await files.open(item.path)
    try:
        reader = FrameReader(file, end=header.file_bytes, seed=seed)
        last, offset, proven = header.first_sequence - 1, FRAMES_AT, header.first_sequence - 1
        while (found := await reader.frame_at(offset)) is not None:
            frame, _ = found
            step = 0 if frame.flags & MARK else 1
            if frame.incarnation != header.incarnation or frame.sequence != last + step:
                break
            last += step
            proven = max(proven, frame.durable_sequence)
            offset += frame.size_bytes
        return Accepted(path=item.path, header=header, last=last, end=offset, proven=proven)
    finally:
        await file.close()


async def promised_behind(files: Files, newest: Accepted, *, seed: int) -> int:
    """The highest sequence that any frame after the accepted ones states to be durable; 0: none.

    Frames of one group share a write, and a crash may keep the later of them: such a frame alone proves nothing. A
    frame of a later group was written after the sync of the earlier group, and states that.
    """
    promised = 0
    file = await files.open(newest.path)
    try:
        reader = FrameReader(file, end=newest.header.file_bytes, seed=seed)
        async for frame in reader.headers_behind(newest.end):
            if frame.incarnation == newest.header.incarnation:
                promised = max(promised, frame.durable_sequence)
    finally:
        await file.close()
    return promised


async def _check_torn(files: Files, item: LogFile, chain: Sequence[Accepted], *, last: int, seed: int) -> None:
    """Distinguish a header that was never completed from one that has rotted: a rotted one has frames of its use."""
    newest = chain[-1].header.incarnation if chain else 0
    file = await files.open(item.path)
    try:
        reader = FrameReader(file, end=item.size_bytes, seed=seed)
        async for frame in reader.headers_behind(FRAMES_AT):
            if item.freed < frame.incarnation and (frame.incarnation < newest or frame.durable_sequence > last):
                raise CorruptDataError("header of a log file is damaged", file=item.path, offset=HEADER_AT)
    finally:
        await file.close()


def _incarnation(item: LogFile) -> int:
    return item.header.incarnation if item.header is not None else 0


def _missing(path: str, offset: int, sequence: int) -> CorruptDataError:
    return CorruptDataError("durable frame of the log is damaged", file=path, offset=offset, sequence=sequence)


async def frames_of(files: Files, accepted: Accepted, *, seed: int, upto: int) -> AsyncIterator[tuple[int, bytes]]:
    """Sequence and payload of each accepted frame of the file, up to sequence ``upto``. Raises CorruptDataError."""
    file = await files.open(accepted.path)
    try:
        reader = FrameReader(file, end=accepted.end, seed=seed)
        offset = FRAMES_AT
        while offset < accepted.end:
            found = await reader.frame_at(offset)
            if found is None:
                raise CorruptDataError("frame changed under the reader", file=accepted.path, offset=offset)
            frame, payload = found
            if frame.sequence > upto:
                return
            if not frame.flags & MARK:
                yield frame.sequence, bytes(payload)
            offset += frame.size_bytes
    finally:
        await file.close()
