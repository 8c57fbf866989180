"""Records of an erasure that come in parts: its positions, and the chunks that held them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import UNSET, UnsetType

from penstock.codec.control.erasures import ErasureChunksRecord, ErasurePartRecord, ErasureRecord, ErasureState
from penstock.controller import keys
from penstock.controller.erasure.subjects import ID_MAX
from penstock.controller.metadata import Metadata, overwrite
from penstock.core.segments.erasure import Range, joined
from penstock.model.answers.erasure import ErasureChunks, ErasurePart
from penstock.model.errors import InvalidArgumentError, NotFoundError
from penstock.model.segments import SegmentId

_CHUNKS_PER_RECORD = 1000  # chunks of one record, so that it fits in a value of the table
_LISTED_MAX = 16  # erasures whose lists of parts are remembered between two calls


def ranges_of(parts: Sequence[ErasurePartRecord]) -> dict[SegmentId, list[Range]]:
    """The payloads of all parts, joined, by segment."""
    found: dict[SegmentId, list[Range]] = {}
    for part in parts:
        found[part.segment] = joined(found.get(part.segment, ()), part.ranges)
    return found


_Lists: TypeAlias = tuple[list[bytes], list[bytes]]


class Parts:
    """Reads and writes these records. Remembers the keys of a few erasures that are done."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._listed: dict[str, _Lists] = {}

    async def of_run(self, erasure: str, run: str) -> list[ErasurePartRecord]:
        """The positions that a run of the request has sent, in the order of its parts. Raises CorruptDataError."""
        found = self._metadata.scan_all(keys.erasure_parts(erasure, run))
        return [ErasurePartRecord.decode(entry.value) async for entry in found]

    async def drop_other_runs(self, erasure: str, run: str) -> None:
        """Remove the pages of all runs except the one that decided."""
        own, metadata = keys.erasure_parts(erasure, run), self._metadata
        every = [entry.key async for entry in metadata.scan_all(keys.erasure_parts(erasure))]
        await metadata.remove_keys([key for key in every if not key.startswith(own)])

    async def answer(self, erasure: str, number: int) -> ErasurePart:
        """See ``ControlPlane.erasures.part``."""
        if number < 0:
            raise InvalidArgumentError("number of a part is negative", part=number)
        metadata = self._metadata
        parts, chunks = self._listed.get(erasure) or await self._list(erasure)
        positions: Mapping[str, Any] | UnsetType = UNSET
        changed: ErasureChunks | UnsetType = UNSET
        if number < len(parts):
            part = (await metadata.get(parts[number], ErasurePartRecord)).value
            if part is not None:
                positions = part.fields()
        if number < len(chunks):
            found = (await metadata.get(chunks[number], ErasureChunksRecord)).value
            if found is not None:
                changed = ErasureChunks(segment=found.segment, chunks=found.chunks)
        return ErasurePart(part=number, parts=max(len(parts), len(chunks)), positions=positions, chunks=changed)

    async def _list(self, erasure: str) -> _Lists:
        """The keys of the records of all parts. They are cached when they no longer change, because clients read many
        parts."""
        metadata = self._metadata
        record = (await metadata.get(keys.erasure(erasure), ErasureRecord)).value
        if record is None:
            # Empty lists would look like those of an erasure that had nothing to erase.
            raise NotFoundError("no such erasure", erasure=erasure[:ID_MAX])
        found = (
            [entry.key async for entry in metadata.scan_all(keys.erasure_parts(erasure, record.run))],
            [entry.key async for entry in metadata.scan_all(keys.erasure_chunks(erasure))],
        )
        if record.state is ErasureState.DONE:
            if len(self._listed) >= _LISTED_MAX:
                self._listed.pop(next(iter(self._listed)))
            self._listed[erasure] = found
        return found

    async def keep_chunks(self, erasure: str, chunks: Sequence[Mapping[str, Any]]) -> None:
        """Write the list of chunks that a receipt counts. Deletes records beyond it, which an attempt before a crash wrote
        for chunks that were truncated since."""
        metadata = self._metadata
        kept: dict[bytes, None] = {}
        for number, start in enumerate(range(0, len(chunks), _CHUNKS_PER_RECORD)):
            part = chunks[start : start + _CHUNKS_PER_RECORD]
            record = ErasureChunksRecord(segment=SegmentId(int(part[0]["segment"])), chunks=part)
            put = overwrite(keys.erasure_chunk(erasure, number), record)
            kept[bytes(put.key)] = None
            await metadata.put(put)
        gone = [entry.key async for entry in metadata.scan_all(keys.erasure_chunks(erasure)) if entry.key not in kept]
        await metadata.remove_keys(gone)
