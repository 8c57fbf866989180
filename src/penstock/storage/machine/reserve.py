"""Reserved disk space, so that a store can start, truncate and recover on a full disk."""

from __future__ import annotations

import logging

from penstock.model.errors import StorageFullError
from penstock.ports.files import Files

_log = logging.getLogger(__name__)

RESERVE_BYTES = 8 << 20
_STEP_BYTES = 1 << 20
_PLENTY = 8  # times the reserve: free space needed to create it again


async def keep_reserve(files: Files, *, path: str = "RESERVE", size_bytes: int = RESERVE_BYTES) -> None:
    """Create the reserve if there is plenty of room; give it up if less than its own size is free.

    Called at every opening, before anything else is written. The start immediately uses the freed space (the log's
    epoch, the room that the metadata keeps inside its own file), so user data cannot take it.
    """
    free_bytes = await files.free_bytes()
    if await files.exists(path):
        if free_bytes < size_bytes:
            await files.unlink(path)
            await files.sync_dir(".")
            _log.warning("disk is full, the reserve was given up", extra={"free_bytes": free_bytes})
        return
    if free_bytes < _PLENTY * size_bytes:
        return
    file = await files.open(path, create=True)
    try:
        for start in range(0, size_bytes, _STEP_BYTES):
            await file.write_at(start, [bytes(_STEP_BYTES)])
        await file.sync()
    except StorageFullError:
        await files.unlink(path)
    finally:
        await file.close()
    await files.sync_dir(".")
