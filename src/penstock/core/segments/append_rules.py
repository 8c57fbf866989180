"""Decide whether an append is accepted, from the pending state of its segment, without I/O."""

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

_NUMBER_BITS = 63
"""Size of an event number without its sign, in bits: the log and the rows hold no more."""


def fits_int64(value: int) -> bool:
    """Whether the number can be stored. Other numbers must be refused before anything is queued for them."""
    return -(1 << 63) <= value < 1 << 63


def is_text(value: str) -> bool:
    """Whether the text can be written as UTF-8. Half of a surrogate pair cannot."""
    return value.isascii() or not any("\ud800" <= char <= "\udfff" for char in value)


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
    forgotten: bool = False,
    limit_bytes: int = APPEND_MAX_BYTES,
) -> PenstockError | None:
    """Why the append must be refused, or None.

    ``sealed``, ``length`` (bytes) and ``stored`` (the writer's last event number) include all accepted appends, durable
    or not. ``forgotten``: the number of a writer that has none may have been forgotten
    (``core.segments.writer_memory``). ``limit_bytes``: the largest append that the log takes. The checks run in this
    order: the form of the append, the seal, the writer's number, the condition. So a failed condition shows that the
    writer's number was right.
    """
    if data_bytes > limit_bytes:
        return InvalidArgumentError("append is too large", size_bytes=data_bytes, limit_bytes=limit_bytes)
    if not 0 < event_count <= EVENTS_MAX:
        return InvalidArgumentError("append must hold at least one event", event_count=event_count)
    if event_number <= previous:
        return InvalidArgumentError("event number must grow", event_number=event_number, previous=previous)
    if event_number.bit_length() > _NUMBER_BITS:
        return InvalidArgumentError("event number does not fit in 64 bits", event_number=event_number)
    if sealed:
        return SegmentSealedError("segment is sealed", segment=segment, length_bytes=length)
    if stored != previous or forgotten:
        return WriterFencedError(
            "writer's event number does not continue what is stored", segment=segment, stored=stored, previous=previous
        )
    if expected_offset is not None and expected_offset != length:
        return ConditionFailedError(
            "segment has another length", segment=segment, expected=expected_offset, actual=length
        )
    return None
