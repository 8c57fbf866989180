"""What a local log works with: appends that wait, the file that is written, files that are full."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.codec.wal import FRAMES_AT, FileHeader
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Buffer, File


@dataclass(slots=True, eq=False)
class Entry:
    """An append that waits. Until ``flight`` is done its parts are being read: its caller must not get them back."""

    parts: Sequence[Buffer]
    payload_bytes: int
    done: asyncio.Future[LogAddress]
    vital: bool
    flight: asyncio.Future[None] | None = None


@dataclass(slots=True)
class ActiveFile:
    """The file being written. Its header is written together with its first frames."""

    path: str
    file: File
    header: FileHeader
    offset: int = FRAMES_AT
    header_written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedFile:
    path: str
    incarnation: int
    last: int


async def finished(flight: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait({flight})
    except asyncio.CancelledError:
        # Cancelled once more while it waits for its own buffers: the first cancellation is on its way already.
        return
