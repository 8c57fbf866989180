"""Makes the uncertain tail of a local log durable at its opening, in a file whose syncs are all known."""

from __future__ import annotations

from penstock.codec.store.wal import HEADER_AT, FileHeader, encode_file_header, encode_frame, frame_bytes
from penstock.ports.files import Buffer, Files
from penstock.storage.log.entries import ActiveFile
from penstock.storage.log.pool import Spare
from penstock.storage.log.scan import Accepted, LogImage, frames_of

_REWRITE_BYTES = 1 << 20


async def sync_all(files: Files, image: LogImage) -> None:
    """Make what was read durable: an opening that died may have left it only in the page cache. Otherwise a power loss
    could tear the header of a file whose frames have been copied by then, and a later recovery
        could not tell that from damage.
    """
    for item in image.chain:
        file = await files.open(item.path)
        try:
            await file.sync()
        finally:
            await file.close()


async def rewrite(
    files: Files, spare: Spare, header: FileHeader, newest: Accepted, *, image: LogImage, seed: int
) -> ActiveFile:
    """The frames of the newest file from the header's first sequence on, durable in the spare file."""
    active = ActiveFile(spare.path, spare.file, header)
    written = active.offset
    buffers: list[Buffer] = []
    async for sequence, payload in frames_of(files, newest, seed=seed, upto=image.last):
        if sequence >= header.first_sequence:
            buffers += encode_frame(
                [payload],
                payload_bytes=len(payload),
                incarnation=header.incarnation,
                sequence=sequence,
                durable_sequence=min(image.proven, sequence - 1),
                seed=seed,
            )
            active.offset += frame_bytes(len(payload))
        if active.offset - written > _REWRITE_BYTES:
            await active.file.write_at(written, buffers)
            written, buffers = active.offset, []
    await active.file.write_at(written, buffers)
    # The header comes last: until it is there, the file does not exist for any later recovery.
    await active.file.sync()
    await active.file.write_at(HEADER_AT, [encode_file_header(header)])
    await active.file.sync()
    active.header_written = True
    return active
