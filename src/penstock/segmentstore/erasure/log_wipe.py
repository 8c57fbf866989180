"""Wipes the log until none of its files holds erased bytes."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.codec.store import operation_frames as frames
from penstock.model.errors import UnavailableError
from penstock.model.ledgers import LogWipe
from penstock.segmentstore.durability.shared_log import SharedLog

_TRIES = 8  # flushes after which containers may still hold the older files of the log
_PAUSE_S = 0.02


class Flushed(Protocol):
    """A store that can flush to tier 2 what its log must keep."""

    async def flush(self) -> None: ...


class Wiped(Protocol):
    """A store that can wipe its log."""

    async def wipe_log(self) -> LogWipe: ...


async def wipes_from(store: Wiped, log: SharedLog) -> int:
    """See ``DurableLog.wipes_from_ms``. If the log still has frames that are not encrypted, they are tiered first, so that it
    can drop them: in containers that are idle, nothing else would. Raises as ``wipe_log``."""
    try:
        return await log.wipes_from_ms()
    except UnavailableError:
        await store.wipe_log()
    return await log.wipes_from_ms()


async def wipe_log(store: Flushed, log: SharedLog, container: int, now_ms: int) -> LogWipe:
    """Return once nobody can read bytes of the frames that are in the log now.

    New frames go to a new file. Older ones are tiered and checkpointed, so that the log can release and overwrite their
    files, or destroy their keys. A container that takes appends meanwhile may hold files a little longer: then this repeats.
    Raises: UnavailableError (files are still held), UnsupportedError (see ``DurableLog.wipes_from_ms``), and what
    tiering, the metadata and the log raise.
    """
    header = frames.FrameHeader(container=container, count=0, time_ms=now_ms)
    await log.begin_wipe([frames.encode_frame_header(header)])
    for attempt in range(_TRIES):
        await store.flush()
        found = await log.end_wipe()
        if found is not None:
            return found
        await asyncio.sleep(_PAUSE_S * 2**attempt)
    raise UnavailableError("log still holds frames that were erased; try again", tries=_TRIES)
