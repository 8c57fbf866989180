"""Replicated ledgers: sequences of entries. One client writes a ledger, any client can take it over, and a closed one
never changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from penstock.model.ledgers import Bookie, LedgerInfo, LedgerSpec
from penstock.ports.files import Buffer


class LedgerWriter(Protocol):
    """An open ledger. Entry 0 is its header, which all its bookies have; entries of the caller follow.

    Guarantees. Entries are acknowledged in order: once entry n is acknowledged, all before it are. After the first
    failure nothing more is acknowledged, and an answer that arrives after ``close`` has begun acknowledges nothing.
    """

    @property
    def ledger(self) -> int: ...

    @property
    def confirmed(self) -> int:
        """The last entry that is acknowledged."""
        ...

    @property
    def failed(self) -> Sequence[str]:
        """Bookies that no longer accept entries of this ledger. It continues while enough are left; begin another
        soon."""
        ...

    def add(self, parts: Sequence[Buffer]) -> Awaitable[int]:
        """Send one entry made of the parts, which are copied. Awaiting the result returns the entry's number, once it
        is acknowledged. Abandoning the result does not stop the entry.

        Raises: InvalidArgumentError (over 4 MiB), ThrottledError (too many bytes in flight): nothing was sent. The
        result raises FencedError (another client took the ledger over, perhaps BookKeeper's own recovery) or
        UnavailableError (too few bookies are left).
        """
        ...

    async def close(self) -> int:
        """Close the ledger after the last acknowledged entry, and return that entry's number. May be repeated.

        Cancelled: the ledger may or may not be closed; repeat. Raises: FencedError: another client took it over, and
        decides where it ends. UnavailableError: the outcome is unknown.
        """
        ...


class Ledgers(Protocol):
    """Makes, reads, takes over and deletes ledgers. All errors of ``UnavailableError`` may be retried."""

    async def bookies(self) -> Sequence[Bookie]:
        """Those that take new entries now, by name. Raises UnavailableError."""
        ...

    async def create(self, spec: LedgerSpec, header: bytes | Callable[[int], bytes]) -> LedgerWriter:
        """A new ledger, whose entry 0 is ``header``, or what it returns for the ledger's number. All its bookies have synced
        it.

        Cancelled or failed: a ledger may be left that nobody writes to. Raises: NotEnoughBookiesError, UnavailableError.
        """
        ...

    async def find(self, ledger: int) -> LedgerInfo:
        """What the coordinator knows about the ledger. Raises NotFoundError, CorruptDataError, VersionTooNewError,
        UnavailableError."""
        ...

    async def take_over(self, ledger: int) -> LedgerInfo:
        """Fence the ledger's writer, find the last entry that it may have acknowledged, and close the ledger there.

        Any number of clients may do it at once, with the same result. Cancelled or failed: the writer may be fenced;
        repeat. Raises as ``find``; UnavailableError: too few bookies answer, so that the end cannot be known.
        UnsupportedError: the ledger spreads its entries over more bookies than it has copies.
        """
        ...

    def read(self, ledger: int, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """Entries ``first`` to ``last`` of a closed ledger, both included, in order, with their numbers.

        Raises: CorruptDataError: no bookie has an entry undamaged, and all were asked. UnavailableError: some did not
        answer. NotFoundError.
        """
        ...

    async def delete(self, ledger: int) -> None:
        """Delete the ledger; bookies free its space later. A missing ledger is not an error. Raises
        UnavailableError."""
        ...
