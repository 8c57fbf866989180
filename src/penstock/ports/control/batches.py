"""Numbered batches of transactions, each committed exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from penstock.model.names import StreamName
from penstock.model.queries import QuerySource


class Batches(Protocol):
    """Batches of a named writer. Source: docs/design/0016-sink.md."""

    async def commit(
        self,
        stream: StreamName,
        *,
        writer: str,
        batch: int,
        transactions: Sequence[UUID],
        source: QuerySource | None = None,
        one_job: bool = False,
    ) -> bool:
        """Commit the transactions as batch number ``batch`` of the named writer, exactly once.

        One compare-and-set decides: if the writer has committed this batch or a later one, the given transactions are
        aborted and the answer is False. Otherwise all of them commit, and the answer is True once they are readable. A
        repeat after a crash finishes what was decided. Raises TransactionNotFoundError (one has expired; nothing is
        committed).

        With a ``source`` the name belongs to its query, and to the latest run of it. Any other caller, also one without
        a source, gets WriterInUseError. A batch below the last one of an ordered source gets ConflictError. Nothing is
        committed then. A source without transactions only records that it writes under the name, not the batch's
        number.

        ``one_job``: the caller generated the name for this one batch, so it may be forgotten without a trace, oldest first.
        Of any other name only a digest may remain after 100 days of silence. Then WriterForgottenError: nothing is
        committed, and it is unknown whether the batch was already committed.
        """
        ...

    async def last(self, stream: StreamName, *, writer: str, source: QuerySource | None = None) -> int | None:
        """The last batch that the writer committed, or None. Also None for a source that takes the name over.

        Raises WriterInUseError if the name belongs to another source, or to any and none is given; WriterForgottenError (as
        ``commit_batch``).
        """
        ...
