"""Erasures of single events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from penstock.model.answers.erasure import Erasure, ErasureCase, ErasurePart, ErasurePreview
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
        cover), ErasureWithdrawnError, InvalidArgumentError (no event begins there, pages are missing, or there are no
        positions and ``looked_for["by"]`` names no search that found none), TruncatedError.
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
        """One part, from 0, of the lists whose digests the receipt holds; ``parts`` is their number. Raises
        NotFoundError."""
        ...

    async def list(self, stream: StreamName | None = None) -> Sequence[Erasure]:
        """All erasures, or those of a stream, in the order of their receipts. Raises StreamNotFoundError: there is no such
        stream, and no erasure of a deleted one of its name."""
        ...

    async def withdraw(self, erasure: str, *, who: str, why: str) -> Erasure:
        """Withdraw an erasure that is not decided (``deferred``, ``gathering``), and return its state ``withdrawn``.

        It erased nothing, and its id cannot be used again. A repeated call changes nothing. Raises NotFoundError,
        ConflictError (it was decided: its events are erased), InvalidArgumentError.
        """
        ...

    async def note_table(self, erasure: str, table: str, *, rows: int) -> Erasure:
        """Record that so many rows of a done erasure's events were deleted from a table, in all versions and files.

        ``table``: its name as a subscriber of the stream (``delta PLACE``). Repeating the call changes nothing. Raises
        NotFoundError, InvalidArgumentError (there is no receipt yet, or no such table).
        """
        ...

    async def confirm_table(self, erasure: str, table: str, *, who: str, why: str) -> Erasure:
        """Record the statement that a table of a deleted stream has no rows of a done erasure's events. Nothing verifies it.

        ``table``: as in the erasure's ``tables``. Repeating the call, and a call for a table that is done, change nothing.
        Raises NotFoundError, ConflictError (the stream exists or can be restored: erase the rows with the job),
        InvalidArgumentError (there is no receipt yet, or no such table).
        """
        ...


class Cases(Protocol):
    """Cases: the erasure of a person's events in streams or scopes, from the request to the proof.

    The controller searches, erases and verifies by itself, and goes on after a crash and when holds end. Until a case
    is closed, matching events that arrive are erased too.
    """

    async def open(
        self,
        case: str,
        *,
        targets: Sequence[str],
        subject: Mapping[str, Any],
        who: str,
        why: str,
        due_ms: int | None = None,
        keep_values: bool = True,
    ) -> ErasureCase:
        """Open a case. It is durable when this returns; the search begins then.

        ``targets``: streams (``scope/stream``), scopes, or ``*``. ``subject``: ``by`` is ``json field`` (with
        ``field``) or ``payload contains``, and ``values`` or, for a field, hex ``digests``. ``due_ms``: wall clock;
        None: in 30 days. Without ``keep_values`` only keyed digests of the values are stored, which needs a field.
        Repeating the call with the same content does nothing. Raises AlreadyExistsError, InvalidArgumentError;
        ScopeNotFoundError and StreamNotFoundError for a target that does not exist.
        """
        ...

    async def get(self, case: str) -> ErasureCase:
        """Raises NotFoundError."""
        ...

    async def list(self) -> Sequence[ErasureCase]:
        """All cases, those due first before the others."""
        ...

    async def look(self, case: str) -> ErasureCase:
        """Search, erase and verify now, and return the resulting state. Raises NotFoundError, and what stops it."""
        ...

    async def close(self, case: str, *, who: str, why: str, pending_tables: bool = False) -> ErasureCase:
        """Close a verified case after a last search. Repeating the call does nothing.

        ``pending_tables``: also while tables have rows of its events; the end then names them. Raises NotFoundError,
        ConflictError (it is not verified, was withdrawn, or is pending in tables), InvalidArgumentError.
        """
        ...

    async def confirm_table(self, case: str, table: str, *, stream: StreamName, who: str, why: str) -> ErasureCase:
        """Record the statement that a table of a deleted stream has no rows of the person's events. Nothing verifies it.

        It counts for all deleted streams of the name whose rows in the table are pending, and for their erasures by the
        case; not for a stream that is deleted later. Repeating the call changes nothing. Raises NotFoundError, ConflictError
        (the case has ended or waits for approval; nothing of a deleted stream is pending there; the stream can be
        restored), InvalidArgumentError. An error may leave the statement recorded for some of the erasures.
        """
        ...

    async def withdraw(self, case: str, *, who: str, why: str) -> ErasureCase:
        """End a case without its proof. What it has erased stays erased; an erasure that a hold defers is withdrawn.

        Raises NotFoundError, ConflictError (it is closed), InvalidArgumentError.
        """
        ...

    async def subject(self, case: str, *, with_values: bool = False) -> Mapping[str, Any]:
        """The matcher, for a ledger that is kept outside of the store: keyed digests in place of values where possible.

        Values that must be searched for in whole payloads are left out unless ``with_values``. Raises NotFoundError.
        """
        ...

    async def key(self) -> str | None:
        """Identifies the key of digests, without revealing it. None: the store has none."""
        ...
