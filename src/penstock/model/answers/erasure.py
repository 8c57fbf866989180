"""How erasures stand. Receipts stay JSON, because their digests are of their text. Source: docs/formats/erasure.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct, UnsetType

__all__ = [
    "CaseDefect",
    "CaseEnd",
    "CaseHold",
    "CaseProgress",
    "CaseTable",
    "Erasure",
    "ErasureCase",
    "ErasureChunks",
    "ErasureDeferral",
    "ErasureDigest",
    "ErasureHold",
    "ErasurePart",
    "ErasurePreview",
    "ErasureProgress",
    "ErasureTable",
    "ErasureWithdrawal",
    "TableConfirmation",
]


class ErasureHold(Struct, frozen=True, kw_only=True):
    """A hold that covers events of an erasure. ``until_ms``: milliseconds since the Unix epoch; None: until released."""

    hold: str
    owner: str
    reason: str
    until_ms: int | None


class ErasurePreview(Struct, frozen=True, kw_only=True):
    """What an erasure would blank in so many segments, and the holds that would defer it. ``state``: ``dry run``."""

    stream: str
    state: str = "dry run"
    events: int
    bytes: int
    segments: int
    holds: Sequence[ErasureHold]


class ErasureDigest(Struct, frozen=True, kw_only=True):
    """A decided request: how many events, the digest of their positions, and that of the request; both as hex."""

    events: int
    positions_sha256: str
    sha256: str


class ErasureDeferral(Struct, frozen=True, kw_only=True):
    """Why an erasure waits. ``holds``: at most 16 of those that cover it; ``count``: how many there are. ``since_ms``:
    milliseconds since the Unix epoch."""

    holds: Sequence[ErasureHold]
    count: int
    since_ms: int


class ErasureWithdrawal(Struct, frozen=True, kw_only=True):
    """Who withdrew an erasure, why, and when, in milliseconds since the Unix epoch. ``identity``: the verified one of that
    caller; UNSET: none was verified."""

    who: str
    why: str
    at_ms: int
    identity: str | UnsetType = UNSET


class TableConfirmation(Struct, frozen=True, kw_only=True):
    """Who stated that a table of a deleted stream has no rows of erased events, why, and when, in milliseconds since the
    Unix epoch. The store has not verified it. ``identity``: the verified one of that caller; UNSET: none was verified."""

    who: str
    why: str
    at_ms: int
    identity: str | UnsetType = UNSET


class ErasureTable(Struct, frozen=True, kw_only=True):
    """A table with copies of the stream's events. ``state``: ``done``; ``confirmed``: somebody stated that no rows of the
    events are there, as ``confirmed`` records; or ``pending``: rows of the events may be there. ``rows``: deleted at
    ``at_ms``, milliseconds since the Unix epoch; both None unless it is done."""

    table: str
    state: str
    rows: int | None = None
    at_ms: int | None = None
    confirmed: TableConfirmation | UnsetType = UNSET


class ErasureProgress(Struct, frozen=True, kw_only=True):
    """``phase``: ``chunks``, then ``log``. ``segments``: done ones, ``of`` how many."""

    phase: str
    segments: int
    of: int


class Erasure(Struct, frozen=True, kw_only=True):
    """An erasure and how it stands.

    ``state``: ``gathering``, ``requested`` (it waits for approval), ``deferred``, ``asked`` (decided), ``done`` or
    ``withdrawn``. ``asked``: ``erasure``, ``who``, ``why``, ``looked_for`` as requested, at ``asked_ms`` (milliseconds since
    the Unix epoch). ``request``: None before it is complete, and for erasures of earlier versions. ``receipt``: None until
    it is done. UNSET where it does not apply: ``identity`` (the verified one of the requester); ``deferred``;
    ``withdrawn``; while attempts fail ``waits_for`` (the last
    error, for people), ``cause`` (``no space``, ``damage``, ``unavailable`` or ``error``) and ``tries`` without progress;
    ``progress`` while it is performed; ``tables`` in lists and before the receipt.
    """

    erasure: str
    stream: str
    state: str
    asked: Mapping[str, Any]
    asked_ms: int
    request: ErasureDigest | None
    receipt: Mapping[str, Any] | None
    identity: str | UnsetType = UNSET
    deferred: ErasureDeferral | UnsetType = UNSET
    withdrawn: ErasureWithdrawal | UnsetType = UNSET
    waits_for: str | UnsetType = UNSET
    cause: str | UnsetType = UNSET
    tries: int | UnsetType = UNSET
    progress: ErasureProgress | UnsetType = UNSET
    tables: Sequence[ErasureTable] | UnsetType = UNSET


class ErasureChunks(Struct, frozen=True, kw_only=True):
    """What was made of chunks of a segment, in the form whose text the receipt has the digest of."""

    segment: int
    chunks: Sequence[Mapping[str, Any]]


class ErasurePart(Struct, frozen=True, kw_only=True):
    """A part of the lists behind a receipt, of ``parts``. ``positions``: blanked ranges of a segment; ``chunks``; each UNSET
    if this part has none."""

    part: int
    parts: int
    positions: Mapping[str, Any] | UnsetType = UNSET
    chunks: ErasureChunks | UnsetType = UNSET


class CaseHold(Struct, frozen=True, kw_only=True):
    """A hold that defers a case in a stream. ``until_ms``: milliseconds since the Unix epoch; None: until released."""

    stream: str
    hold: str
    owner: str
    reason: str
    until_ms: int | None


class CaseTable(Struct, frozen=True, kw_only=True):
    """A table with copies of a stream's events. ``state``: ``done``; ``confirmed``: nothing is pending, for some of it only
    because somebody stated so; or ``pending``: it lacks the ``erasures``, or has rows of a deleted stream that the case
    has not searched to its end. ``confirmed``: the statements, one for each deleted stream of the name and each erasure."""

    stream: str
    table: str
    state: str
    erasures: Sequence[str] = ()
    confirmed: Sequence[TableConfirmation] = ()


class CaseDefect(Struct, frozen=True, kw_only=True):
    """A stream that a case cannot search completely, and why."""

    stream: str
    why: str


class CaseProgress(Struct, frozen=True, kw_only=True):
    """What a case does now: ``phase`` is ``search``, ``erase`` or ``verify``. ``streams``: done ones, ``of`` how many.
    ``bytes``: searched since the phase began."""

    phase: str
    stream: str
    streams: int
    of: int
    bytes: int


class CaseEnd(Struct, frozen=True, kw_only=True):
    """Who closed or withdrew a case, why, and when, in milliseconds since the Unix epoch. ``tables``: those that were
    pending then. ``identity``: the verified one of that caller; UNSET: none was verified."""

    who: str
    why: str
    at_ms: int
    tables: Sequence[str] = ()
    identity: str | UnsetType = UNSET


class ErasureCase(Struct, frozen=True, kw_only=True):
    """A case and how it stands. Times are milliseconds since the Unix epoch.

    ``state``: ``requested`` (it waits for approval), ``open``, ``deferred`` (``holds`` cover events), ``performed``,
    ``verified``, ``closed`` or ``withdrawn``.
    ``looked_for``: the search without its values. ``events``, ``bytes``: erased; ``late``: those of them that arrived
    after the first search. ``erasures``: ids of the erasures whose receipts prove it. ``defects``: what cannot be
    searched. ``verified_ms``: None until the second search has found nothing. ``waits_for``: the last error, while the
    case cannot go on. ``identity``: the verified one of who opened it; UNSET: none was verified.
    """

    case: str
    state: str
    targets: Sequence[str]
    looked_for: Mapping[str, Any]
    who: str
    why: str
    opened_ms: int
    due_ms: int
    is_overdue: bool
    events: int
    bytes: int
    late: int
    erasures: Sequence[str]
    performed_ms: int | None
    verified_ms: int | None
    holds: Sequence[CaseHold] = ()
    tables: Sequence[CaseTable] = ()
    defects: Sequence[CaseDefect] = ()
    ended: CaseEnd | None = None
    identity: str | UnsetType = UNSET
    waits_for: str | UnsetType = UNSET
    progress: CaseProgress | UnsetType = UNSET
