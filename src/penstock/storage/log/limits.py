"""Sizes of a local log, and their constraints."""

from __future__ import annotations

from penstock.codec.store.wal import BLOCK_BYTES, FRAMES_AT, PAYLOAD_MAX, frame_bytes
from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

SEGMENT_BYTES = 32 << 20
BUDGET_BYTES = 1 << 30
FRAME_MAX_BYTES = 17 << 20
QUEUE_BYTES = 64 << 20
_FILES_MIN = 4
"""One in use, one closed, two spare: with fewer, a truncation could be waited for that never comes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLimits:
    """Sizes of a log, in bytes: one file; all files together; the payload of one frame; the queue of appends."""

    segment_bytes: int = SEGMENT_BYTES
    budget_bytes: int = BUDGET_BYTES
    max_frame_bytes: int = FRAME_MAX_BYTES
    queue_bytes: int = QUEUE_BYTES

    def __post_init__(self) -> None:
        if self.segment_bytes % BLOCK_BYTES:
            raise InvalidArgumentError(f"log files are multiples of {BLOCK_BYTES}", segment_bytes=self.segment_bytes)
        if not 0 < self.max_frame_bytes <= PAYLOAD_MAX:
            raise InvalidArgumentError("frame limit is out of range", max_frame_bytes=self.max_frame_bytes)
        if FRAMES_AT + frame_bytes(self.max_frame_bytes) > self.segment_bytes:
            raise InvalidArgumentError(
                "a log file must hold one frame of the largest size",
                segment_bytes=self.segment_bytes,
                max_frame_bytes=self.max_frame_bytes,
            )
        if self.budget_bytes < _FILES_MIN * self.segment_bytes:
            raise InvalidArgumentError(
                f"log budget is less than {_FILES_MIN} files",
                budget_bytes=self.budget_bytes,
                segment_bytes=self.segment_bytes,
            )
