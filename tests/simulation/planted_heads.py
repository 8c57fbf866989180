"""Bugs planted in what becomes of truncated heads, and in runs of one erasure."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from penstock.codec.store import rows as records
from penstock.controller.erasure import decisions
from penstock.controller.erasure import subjects as erasure_facts
from penstock.segmentstore.erasure import eraser
from penstock.segmentstore.tiering.reclaimer import Reclaimer


def a_head_is_freed_for_an_object_that_left_memory() -> Any:
    """While the head is punched, the segment may leave memory, come back, and release the chunk: its row comes back."""

    async def free_head(self: Reclaimer, segment: Any) -> None:
        chunk = segment.chunks.items[0] if segment.chunks.items else None
        if chunk is None:
            return
        upto = await self._dead_bytes(segment, chunk)
        if upto == chunk.freed or not segment.chunks.holds(chunk):
            return
        if segment.uid in self._leases.segments():
            self._committed_heads[segment.uid] = None
            return
        await self._parts.chunks.free_head(chunk.name, upto)
        freed, chunk.freed = upto - chunk.freed, upto
        if segment.chunks.holds(chunk):
            row = records.chunk_key(self._state.index, segment.uid, chunk.start)
            self._state.rows.put(row, records.encode_chunk(chunk.record()))
            self._count_freed(segment.uid, freed)

    return patch.object(Reclaimer, "_free_head", free_head)


def dead_headers_are_blanked() -> Any:
    """What nobody can read is blanked whole, headers included, so that counts of events in its block are wrong."""
    return patch.object(eraser, "dead_payloads", lambda data, events, end: [(0, end)])


def runs_of_an_erasure_share_their_pages() -> Any:
    """Pages are kept under the id alone, and the last one decides whatever is there."""
    stack = ExitStack()
    stack.enter_context(patch.object(erasure_facts.Request, "run", lambda self, incarnation: "run"))
    stack.enter_context(patch.object(decisions, "check_complete", lambda request, parts: None))
    return stack


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        a_head_is_freed_for_an_object_that_left_memory,
        dead_headers_are_blanked,
        runs_of_an_erasure_share_their_pages,
    )
}
