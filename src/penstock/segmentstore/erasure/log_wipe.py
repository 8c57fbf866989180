"""Wipes the log until none of its files holds erased bytes."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.codec.store import operation_frames as frames
from penstock.model.errors import UnavailableError
from penstock.segmentstore.durability.shared_log import SharedLog

_TRIES = 8  # flushes after which containers may still hold the older files of the log
_PAUSE_S = 0.02


class Flushed(Protocol):
    """A store that can flush to tier 2 what its log must keep."""

    async def flush(self) -> None: ...


async def wipe_log(store: Flushed, log: SharedLog, container: int, now_ms: int) -> None:
    """Return once no file of the log holds bytes of the frames that are in it now.

    New frames go to a new file. Older ones are tiered and checkpointed, so that the log can release and overwrite their
    files. A container that takes appends meanwhile may hold files a little longer: then this repeats.
    Raises: UnavailableError (files are still held), and what tiering, the metadata and the log raise.
    """
    header = frames.FrameHeader(container=container, count=0, time_ms=now_ms)
    await log.begin_wipe([frames.encode_frame_header(header)])
    for attempt in range(_TRIES):
        await store.flush()
        if await log.end_wipe():
            return
        await asyncio.sleep(_PAUSE_S * 2**attempt)
    raise UnavailableError("log still holds frames that were erased; try again", tries=_TRIES)
