"""Closed blocks of a writer: framed events that are appended as one. Source: docs/design/0030-writing.md."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.codec.events import HEADER_BYTES, frame_events
from penstock.model.errors import PenstockError
from penstock.ports.data.segments import Appended
from penstock.ports.files import Buffer

Keys = Callable[[], Sequence[str | None]]
"""Gives the routing key of each event of a block. Called only if the block has to be routed anew."""


@dataclass(slots=True, eq=False)
class WriteBlock:
    """Framed events that are appended as one. ``keys=None``: none of them has a key.

    ``group`` counts flushes: a flush waits for the blocks of its group and of those before. ``number`` is the event
    number of the last event in its segment. ``large``: one event beyond the size of an append. ``rejected``: written
    before a refusal by a quota was reported, so it is not sent again. The block itself is the callback of its append
    and passes the outcome to ``answer``: this saves the garbage collector one object per block, of tens of thousands.
    """

    data: Buffer
    count: int
    keys: Keys | None
    group: int
    large: bool = False
    number: int = 0
    done: bool = False
    rejected: bool = False
    answer: Callable[[WriteBlock, Appended | PenstockError], None] | None = None

    def __call__(self, result: Appended | PenstockError) -> None:
        if self.answer is not None:
            self.answer(self, result)

    @property
    def size(self) -> int:
        return len(self.data)


def close_blocks(
    events: list[bytes], keys: Sequence[str | None] | None, group: int, block_bytes: int
) -> list[WriteBlock]:
    """Frame the events into blocks of about ``block_bytes``, at most twice that unless one event alone is larger."""
    count = len(events)
    limit = 2 * block_bytes
    # Framing yields the size: all lengths are added up only where the first event's makes more than one block likely.
    if count == 1 or count * (HEADER_BYTES + len(events[0])) <= limit or _framed_bytes(events) <= limit:
        data = frame_events(events)
        if count == 1 or len(data) <= limit:
            if keys is not None and all(key is None for key in keys):
                keys = None
            # A method of the list, not a closure over it, which would be three objects.
            return [WriteBlock(data, count, None if keys is None else _given(keys), group)]
    step = -(-count // -(-_framed_bytes(events) // block_bytes))
    blocks: list[WriteBlock] = []
    for start in range(0, count, step):
        part = None if keys is None else keys[start : start + step]
        blocks += close_blocks(events[start : start + step], part, group, block_bytes)
    return blocks


def _given(keys: Sequence[str | None]) -> Keys:
    if type(keys) is list:
        return keys.copy
    return lambda: keys


def _framed_bytes(events: Sequence[bytes]) -> int:
    return sum(map(len, events)) + HEADER_BYTES * len(events)
