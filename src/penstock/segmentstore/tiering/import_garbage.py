"""Chunks written into tier 2 for an import and never adopted: which are garbage, and when they are deleted.

Source: docs/design/0016-sink.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from penstock.codec.store import rows as records
from penstock.codec.store.chunk_index import index_name
from penstock.core.segments.garbage import imports_listed, parse_import_name
from penstock.core.segments.placement import is_transaction_name
from penstock.model.values.dataclass import dataclass
from penstock.ports.chunks import ChunkStorage
from penstock.ports.telemetry import Telemetry
from penstock.segmentstore.segment import Chunk, Segment
from penstock.segmentstore.state import ContainerState

_LOOK_AGAIN_S = 900.0
"""When to look a second time for what was written late: behind the longest lease of a transaction."""

_LOOK_PAUSE_S = 10.0
"""Between two looks: each lists the container's tier 2."""


@dataclass(slots=True)
class _Ended:
    """A deleted or merged segment: which of its imported chunks other segments name now, and when to look for the
    rest."""

    named: frozenset[str]
    look_at: float
    last: bool = False


class ImportGarbage:
    """The chunks of one container that were written for an import. The reclaimer calls ``free`` and ``sweep``."""

    def __init__(self, state: ContainerState, chunks: ChunkStorage, telemetry: Telemetry) -> None:
        self._state = state
        self._chunks = chunks
        self._telemetry = telemetry
        self._granted: dict[int, dict[tuple[int, int], None]] = {}
        self._ended: dict[int, _Ended] = {}
        self._looked_at = float("-inf")

    def granted(self, uid: int, epoch: int, grant: int) -> None:
        """A place to write was granted for the segment. Chunks there are garbage once the segment is gone, unless
        adopted."""
        self._granted.setdefault(uid, {})[epoch, grant] = None

    def ended(self, segment: Segment, chunks: Iterable[Chunk], *, merged: bool) -> None:
        """The segment is merged or deleted; those were its chunks."""
        if not is_transaction_name(segment.name):
            return
        granted = self._granted.pop(segment.uid, None)
        # The grants of an earlier opening are unknown.
        earlier = segment.uid >> 32 < self._state.log.epoch
        if granted is None and not earlier:
            return
        names = [name for chunk in chunks if (name := parse_import_name(chunk.name)) is not None]
        adopted = {(name.epoch, name.grant) for name in names if name.uid == segment.uid}
        # A commit adopts all chunks of an attempt or none; an abandoned attempt may have written some of them.
        if merged and not earlier and all(grant in adopted for grant in granted or ()):
            return
        now = asyncio.get_running_loop().time()
        self._ended[segment.uid] = _Ended(named=frozenset(str(name) for name in names), look_at=now)

    async def free(self) -> None:
        """Remove unadopted chunks of segments that are gone. Raises what the chunk storage raises."""
        now = asyncio.get_running_loop().time()
        due = {uid: item for uid, item in self._ended.items() if item.look_at <= now}
        if not due or now < self._looked_at + _LOOK_PAUSE_S:
            return
        self._looked_at = now
        listed = imports_listed(await self._chunks.list(), container=self._state.index)
        for uid, item in due.items():
            await self._remove(str(name) for name in listed.get(uid, ()) if str(name) not in item.named)
            if item.last:
                del self._ended[uid]
            else:
                item.look_at, item.last = now + _LOOK_AGAIN_S, True

    async def sweep(self) -> None:
        """As ``free``, but at once and with overwriting: unadopted chunks may hold copies of erased bytes."""
        if not self._ended:
            return
        listed = imports_listed(await self._chunks.list(), container=self._state.index)
        for uid, item in list(self._ended.items()):
            await self._remove((str(name) for name in listed.get(uid, ()) if str(name) not in item.named), wipe=True)

    async def _remove(self, names: Iterable[str], *, wipe: bool = False) -> None:
        for name in names:
            if wipe:
                await self._chunks.wipe(name)
            await self._chunks.delete(index_name(name))
            await self._chunks.delete(name)
            self._telemetry.add("unadopted_chunks")

    async def orphan_candidates(self, listed: Sequence[str]) -> Sequence[str]:
        """Of the listed names, imported chunks of earlier openings for segments that are gone: garbage unless named."""
        state = self._state
        found: list[str] = []
        for uid, names in imports_listed(listed, container=state.index).items():
            if uid in state.segments.by_uid or uid in self._granted:
                continue
            # Read the row last: a segment found in neither place no longer exists. A damaged row counts as present.
            bounds = records.range_of(records.uid_key(records.TAG_SEGMENT, state.index, uid))
            damaged: list[bytes] = []
            if not await state.rows.scan(bounds, limit=1, damaged=damaged) and not damaged:
                found += [str(name) for name in names if name.epoch < state.log.epoch]
        return found
