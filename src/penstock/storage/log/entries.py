"""Data of a local log: waiting appends, the active file, full files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from penstock.codec.store.wal import FRAMES_AT, HEADER_AT, FileHeader, encode_file_header, encode_frame, join_small
from penstock.model.values.dataclass import dataclass
from penstock.ports.durable_log import LogAddress
from penstock.ports.files import Buffer, File

_PARTS_MAX = 512  # buffers of one vectored write

Frame: TypeAlias = tuple[Sequence[Buffer], int]
"""A payload in parts, and its size."""


@dataclass(slots=True, eq=False)
class Entry:
    """A waiting append. Its parts are being read until ``flight`` is done: the caller must not reuse them before."""

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


def encode_group(active: ActiveFile, frames: Sequence[Frame], *, last: int, seed: int) -> tuple[int, Sequence[Buffer]]:
    """The offset of the frames that follow address ``last``, and their bytes, for one write."""
    buffers: list[Buffer] = [] if active.header_written else [encode_file_header(active.header)]
    for sequence, (parts, payload_bytes) in enumerate(frames, last + 1):
        buffers += encode_frame(
            parts,
            payload_bytes=payload_bytes,
            incarnation=active.header.incarnation,
            sequence=sequence,
            durable_sequence=last,
            seed=seed,
        )
    if len(buffers) > _PARTS_MAX:
        buffers = join_small(buffers)
    return (active.offset if active.header_written else HEADER_AT), buffers


async def finished(flight: asyncio.Future[None]) -> None:
    try:
        await asyncio.wait({flight})
    except asyncio.CancelledError:
        # Cancelled again while it waits for its own buffers: the first cancellation is already propagating.
        return
