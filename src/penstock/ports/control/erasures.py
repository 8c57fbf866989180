"""Erasures of single events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.model.answers.erasure import Erasure, ErasurePart, ErasurePreview
from penstock.model.names import StreamName
from penstock.model.segments import SegmentId


class Erasures(Protocol):
    """Erasures by id. docs/formats/erasure.md describes every answer."""

    async def erase(
        self,
        stream: StreamName,
        asked: Mapping[str, Any],
        positions: Mapping[SegmentId, Sequence[int]],
        *,
        page: int | None = None,
        last: bool = True,
    ) -> Erasure:
        """Blank the events that begin at the positions, in place and for good. Answers with the erasure's state.

        ``asked``: ``erasure`` (its id), ``who``, ``why``, ``looked_for`` (a JSON object, without the values). Positions may
        come in numbered pages of at most 50,000; then ``run`` has the token of the attempt and the digest of all positions
        (docs/formats/erasure.md). The erasure is decided with the last page, once all have arrived. From then on it is
        always performed; ``get`` reports its progress. If a hold covers some of it, the state is ``deferred``: nothing
        is changed until no hold covers any of it; then it is decided without another call. Repeating the id with the
        same request, or with some of its positions, changes nothing.

        Raises AlreadyExistsError (the id has another request; ``undecided``: how many positions of the page it does not
        cover), ErasureWithdrawnError, InvalidArgumentError (no event begins there, or pages are missing), TruncatedError.
        """
        ...

    async def preview(self, stream: StreamName, positions: Mapping[SegmentId, Sequence[int]]) -> ErasurePreview:
        """What erasing the events at these positions, at most 50,000, would blank, and which holds would defer it. Changes
        nothing. Raises InvalidArgumentError (no event begins there), TruncatedError."""
        ...

    async def get(self, erasure: str) -> Erasure:
        """The state of an erasure, with its receipt once it is done. Raises NotFoundError."""
        ...

    async def part(self, erasure: str, part: int) -> ErasurePart:
        """One part, from 0, of the lists whose digests the receipt holds; ``parts`` is their number."""
        ...

    async def list(self, stream: StreamName | None = None) -> Sequence[Erasure]:
        """All erasures, or those of a stream, in the order of their receipts."""
        ...

    async def withdraw(self, erasure: str, *, who: str, why: str) -> Erasure:
        """Withdraw an erasure that is not decided (``deferred``, ``gathering``), and return its state ``withdrawn``.

        It erased nothing, and its id cannot be used again. A repeated call changes nothing. Raises NotFoundError,
        ConflictError (it was decided: its events are erased), InvalidArgumentError.
        """
        ...
