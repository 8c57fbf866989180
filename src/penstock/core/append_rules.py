"""May this append go through? Decided against the pending state of its segment, without I/O."""

from __future__ import annotations

from penstock.model.errors import (
    ConditionFailedError,
    InvalidArgumentError,
    PenstockError,
    SegmentSealedError,
    WriterFencedError,
)

APPEND_MAX_BYTES = (1 << 24) - 1
"""Largest append: what a frame of Pravega's wire protocol can carry."""

EVENTS_MAX = (1 << 32) - 1


def append_refusal(
    segment: str,
    *,
    data_bytes: int,
    event_number: int,
    event_count: int,
    previous: int,
    expected_offset: int | None,
    sealed: bool,
    length: int,
    stored: int,
) -> PenstockError | None:
    """Why the append must be refused, or None.

    ``sealed``, ``length`` (bytes) and ``stored`` (the writer's last event number) are what they will be once all
    appends accepted before are durable. A malformed append is told so first, then the seal, then the writer's number,
    then the condition: after a failed condition the writer is known to be the rightful one.
    """
    if data_bytes > APPEND_MAX_BYTES:
        return InvalidArgumentError("append is too large", size_bytes=data_bytes, limit_bytes=APPEND_MAX_BYTES)
    if not 0 < event_count <= EVENTS_MAX:
        return InvalidArgumentError("append must hold at least one event", event_count=event_count)
    if event_number <= previous:
        return InvalidArgumentError("event number must grow", event_number=event_number, previous=previous)
    if sealed:
        return SegmentSealedError("segment is sealed", segment=segment, length_bytes=length)
    if stored != previous:
        return WriterFencedError(
            "writer's event number does not continue what is stored", segment=segment, stored=stored, previous=previous
        )
    if expected_offset is not None and expected_offset != length:
        return ConditionFailedError(
            "segment has another length", segment=segment, expected=expected_offset, actual=length
        )
    return None
