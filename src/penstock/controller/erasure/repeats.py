"""Requests under a used erasure id: a repeat gets the erasure, any other request is refused.

Source: docs/how-to/erasure.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import TypeAlias

from penstock.codec.control.erasures import ErasurePartRecord, ErasureRecord
from penstock.controller import keys
from penstock.controller.erasure.subjects import Request
from penstock.controller.metadata import Metadata
from penstock.core.segments.erasure_receipt import request_fields, undecided
from penstock.model.errors import AlreadyExistsError
from penstock.model.segments import SegmentId

_Offsets: TypeAlias = Mapping[SegmentId, Set[int]]


class Repeats:
    """Compares requests with decided erasures. A decision never changes."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._read: tuple[str, _Offsets] | None = None

    async def check(
        self,
        request: Request,
        known: ErasureRecord,
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        last: bool,
    ) -> None:
        """Compare a page of a request with the decision under its id. ``last``: no page follows.

        A request repeats the erasure if its stream and its texts are the same, and the erasure covers all its positions. A
        search that runs again may find fewer events, because it does not find erased ones. Raises AlreadyExistsError; if
        positions are not covered, ``undecided`` is their number in this page.
        """
        if known.request is not None and known.request["sha256"] == request.digest:
            return
        if request_fields(known.stream, known.asked) != request_fields(str(request.stream), request.asked):
            raise AlreadyExistsError(
                "erasure id belongs to another request; show that erasure, or use another id",
                erasure=request.erasure,
                stream=known.stream,
            )
        decided = await self._decided(request.erasure, known)
        if last:
            self._read = None
        count = undecided(positions, decided)
        if count:
            raise AlreadyExistsError(
                "erasure id is decided and does not cover some of these events; erase those under another id",
                erasure=request.erasure,
                stream=known.stream,
                undecided=count,
                events=sum(len(set(offsets)) for offsets in positions.values()),
            )

    async def _decided(self, erasure: str, known: ErasureRecord) -> _Offsets:
        """Positions of the decided events. Cached until the last page, because each page is compared with all of them."""
        if self._read is not None and self._read[0] == erasure:
            return self._read[1]
        found: dict[SegmentId, set[int]] = {}
        async for entry in self._metadata.scan_all(keys.erasure_parts(erasure, known.run)):
            part = ErasurePartRecord.decode(entry.value)
            found.setdefault(part.segment, set()).update(part.offsets)
        self._read = erasure, found
        return found
