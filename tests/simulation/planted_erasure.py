"""Bugs planted in erasure and in the adoption of chunks: each is what somebody could write in good faith."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from penstock.codec.store import rows as records
from penstock.codec.store.erased import encode_erased
from penstock.controller.erasure import deferral as erasure_deferral
from penstock.controller.erasure import erasures
from penstock.controller.erasure.decisions import Decisions
from penstock.model.ledgers import LogWipe
from penstock.segmentstore.calls import imports
from penstock.segmentstore.calls.imports import Imports
from penstock.segmentstore.erasure.eraser import Eraser
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tiering.import_garbage import ImportGarbage
from penstock.segmentstore.tiering.reclaimer import Reclaimer
from penstock.segmentstore.tiering.tail_cache import TailCache
from penstock.storage.chunks.file_chunks import FileChunks
from penstock.storage.chunks.object_chunks import ObjectChunks


def _nothing() -> Any:
    async def nothing(*_: Any, **__: Any) -> None:
        """Nothing."""

    return nothing


def copies_are_named_in_memory_alone() -> Any:
    """The segment names the new chunk, its row names the old one: what was erased is back with the next recovery."""

    def swap(self: Eraser, segment: Any, chunk: Any, copy: Any) -> None:
        state, index = self._state, self._state.index
        segment.chunks.replace(chunk, copy.chunk)
        segment.open_chunk = None
        state.rows.put(records.erased_key(index, copy.chunk.name), encode_erased(copy.record))
        segment.cache.drop_tiered(copy.chunk.start, copy.chunk.end)
        self._blocks.forget(chunk.name)

    return patch.object(Eraser, "_swap", swap)


def copies_are_not_synced() -> Any:
    """The new chunk is in the page cache when the old one goes."""
    original = Eraser._copy
    copying = ContextVar("copying", default=False)  # per task: several erasers copy at once

    async def copy(self: Eraser, *arguments: Any) -> Any:
        token = copying.set(True)
        try:
            return await original(self, *arguments)
        finally:
            copying.reset(token)

    def unless_copying(sync: Callable[..., Any]) -> Callable[..., Any]:
        async def sync_unless_copying(self: Any, name: str) -> None:
            if not copying.get():
                await sync(self, name)

        return sync_unless_copying

    stack = ExitStack()
    stack.enter_context(patch.object(Eraser, "_copy", copy))
    for kind in (FileChunks, ObjectChunks):
        stack.enter_context(patch.object(kind, "sync", unless_copying(kind.sync)))
    return stack


def log_is_not_wiped() -> Any:
    """What was erased of the chunks is in the log, and in its spare files, for as long as nobody writes over it."""

    async def nothing(self: SegmentStore) -> LogWipe:
        return LogWipe()

    return patch.object(SegmentStore, "wipe_log", nothing)


def tail_cache_keeps_erased_bytes() -> Any:
    """Readers at the tail are shown what was erased, until it is evicted."""
    return patch.object(TailCache, "drop_tiered", lambda self, start, end: None)


def tails_of_chunks_are_left() -> Any:
    """Behind the end of a chunk lies what a failed write left, or one whose row a crash took: the bytes of a later chunk."""
    return patch.object(Eraser, "_trim", _nothing())


def orphans_are_left_to_their_leases() -> Any:
    """A chunk that a crash has orphaned holds what was erased, until somebody gives up a lease, or for some seconds more."""
    return patch.object(Reclaimer, "sweep", _nothing())


def losers_are_left_to_their_time() -> Any:
    """What attempts wrote that were not adopted holds the same events, and goes when it is looked for the next time."""
    return patch.object(ImportGarbage, "sweep", _nothing())


def what_was_erased_is_not_noted() -> Any:
    """The bytes are zeros, and nobody knows why: readers take them for events."""

    async def erased_ranges(self: Eraser, name: str, start: int, end: int) -> list[Any]:
        return []

    return patch.object(Eraser, "erased_ranges", erased_ranges)


def holds_are_not_looked_at() -> Any:
    """An erasure is no truncation, so nobody thought of holds."""
    return patch.object(erasure_deferral, "covering", lambda history, holds, ends: [])


def an_erasure_is_forgotten_by_a_restart() -> Any:
    """Who asked has an id, and only the process that decided works on it."""
    decide, take, status = Decisions.decide, erasures.Erasures._take, erasures.Erasures._status
    decided: set[str] = set()

    async def note(self: Any, request: Any, positions: Any) -> Any:
        record = await decide(self, request, positions)
        decided.add(request.erasure)
        return record

    async def take_and_perform(self: Any, request: Any, positions: Any, *, page: int, last: bool) -> Any:
        taken = await take(self, request, positions, page=page, last=last)
        if request.erasure in decided:
            decided.remove(request.erasure)
            self._perform_soon(request.erasure)
        return taken

    def tell(self: Any, erasure: str, record: Any) -> Any:
        with patch.object(self, "_perform_soon", lambda _: None):
            return status(self, erasure, record)

    stack = ExitStack()
    stack.enter_context(patch.object(Decisions, "decide", note))
    stack.enter_context(
        patch.multiple(erasures.Erasures, start=_nothing(), resume=_nothing(), _take=take_and_perform, _status=tell)
    )
    return stack


def headers_are_blanked_too() -> Any:
    """The length of an event goes with it: whatever follows is out of step."""
    original = Eraser._rewrite

    async def rewrite(self: Eraser, segment: Any, chunk: Any, wanted: Any, erasure: str) -> None:
        await original(self, segment, chunk, [(start - 8, end) for start, end in wanted], erasure)

    return patch.object(Eraser, "_rewrite", rewrite)


def adopt_is_replayed() -> Any:
    """A repeat whose answer was lost adopts the chunks once more, behind themselves."""
    original = Imports.adopt

    async def adopt(self: Imports, name: str, offset: int, chunks: Any) -> int:
        segment = await imports.segment_calls.find(self._operations, name)
        return await original(self, name, segment.next_length, chunks)

    stack = ExitStack()
    stack.enter_context(patch.object(Imports, "adopt", adopt))
    stack.enter_context(patch.object(imports, "_misplaced", lambda segment, names: None))
    return stack


def unadopted_chunks_are_forgotten() -> Any:
    """What losers wrote stays in tier 2 forever."""
    return patch.object(ImportGarbage, "ended", lambda self, segment, chunks, *, merged: None)


def adopted_chunks_are_taken_for_garbage() -> Any:
    """The transaction has ended, so its files go: also those that a merge has moved."""
    original = ImportGarbage.ended

    def ended(self: ImportGarbage, segment: Any, chunks: Any, *, merged: bool) -> None:
        original(self, segment, (), merged=merged)

    return patch.object(ImportGarbage, "ended", ended)


PLANTED: dict[str, Callable[[], Any]] = {
    item.__name__: item
    for item in (
        copies_are_named_in_memory_alone,
        copies_are_not_synced,
        log_is_not_wiped,
        tail_cache_keeps_erased_bytes,
        tails_of_chunks_are_left,
        orphans_are_left_to_their_leases,
        losers_are_left_to_their_time,
        what_was_erased_is_not_noted,
        holds_are_not_looked_at,
        an_erasure_is_forgotten_by_a_restart,
        headers_are_blanked_too,
        adopt_is_replayed,
        unadopted_chunks_are_forgotten,
        adopted_chunks_are_taken_for_garbage,
    )
}
