"""Bringing a log to where none of its files holds what was erased."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.codec.store import operation_frames as frames
from penstock.model.errors import UnavailableError
from penstock.segmentstore.durability.shared_log import SharedLog

_TRIES = 8  # flushes after which containers may still hold the older files of the log
_PAUSE_S = 0.02


class Flushed(Protocol):
    """A store: what its log must keep, it can bring to tier 2."""

    async def flush(self) -> None: ...


async def wipe_log(store: Flushed, log: SharedLog, container: int, now_ms: int) -> None:
    """Return once no file of the log holds a byte of a frame that is in it now.

    Frames go to a new file; what came before is tiered and checkpointed, so that the log lets go of its files, which are
    overwritten. A container that takes appends meanwhile may hold them a little longer: then once more.
    Raises: UnavailableError (they are held still), and what tiering, the metadata and the log raise.
    """
    header = frames.FrameHeader(container=container, count=0, time_ms=now_ms)
    await log.begin_wipe([frames.encode_frame_header(header)])
    for attempt in range(_TRIES):
        await store.flush()
        if await log.end_wipe():
            return
        await asyncio.sleep(_PAUSE_S * 2**attempt)
    raise UnavailableError("log still holds frames that were erased; try again", tries=_TRIES)
