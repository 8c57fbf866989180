"""One transaction as it is now."""

from __future__ import annotations

from msgspec import Struct

from penstock.model.answers.plan import Offsets

__all__ = ["TransactionDescription"]


class TransactionDescription(Struct, frozen=True, kw_only=True):
    """A transaction. Times are wall clock, milliseconds since the Unix epoch; None: unknown, or it has ended.

    ``state``: ``open``, ``committing``, ``committed``, ``aborting`` or ``aborted``. An open one is aborted at
    ``expires_ms`` unless its lease is renewed, and at ``deadline_ms`` in any case. ``writer``: who commits it, if that is
    known: the writer of a ``batch``, or the one that notes a time with the commit. ``shared``: several writers fill it.
    ``bytes``: by segment, what it holds apart from the stream, as stored; a merged or removed segment is not listed.
    ``waits_for``: what ends it next, in words.
    """

    stream: str
    transaction: str
    state: str
    epoch: int
    begun_ms: int | None
    expires_ms: int | None
    deadline_ms: int | None
    writer: str
    batch: int | None
    shared: bool
    bytes: Offsets
    waits_for: str
