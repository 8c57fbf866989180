"""The blocking face of erasures: the same names as ``penstock.client.erasure``, no ``await``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.client.blocking.loop_thread import LoopThread
from penstock.client.erasure import AsyncErasures
from penstock.client.erasure_proof import Progress, Verification


class Erasures:
    """Erasures of a stream, or all of the store, with their receipts. Iterating lists them."""

    def __init__(self, thread: LoopThread, inner: AsyncErasures) -> None:
        self._thread = thread
        self._inner = inner

    def list(self) -> Sequence[Mapping[str, Any]]:
        """Erasures with their receipts, in the order of the chain; those under way last."""
        return self._thread.call(self._inner.list())

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self.list())

    def show(self, erasure: str) -> Mapping[str, Any]:
        """One erasure: who asked for what, how it stands, its receipt. Raises NotFoundError."""
        return self._thread.call(self._inner.show(erasure))

    def wait(self, erasure: str) -> Mapping[str, Any]:
        """Wait until a requested erasure is done and return its receipt. Waits also while holds defer it or attempts
        fail.

        Raises NotFoundError, ErasureWithdrawnError.
        """
        return self._thread.call(self._inner.wait(erasure))

    def withdraw(self, erasure: str, *, who: str, why: str) -> Mapping[str, Any]:
        """Withdraw an erasure that is not decided yet, because holds defer it or pages are missing; return its state.

        It has erased nothing, and its id cannot be used again. ``who`` and ``why`` are recorded. A repeated call changes
        nothing. Raises NotFoundError, ConflictError (it was decided: its events are erased), InvalidArgumentError.
        """
        return self._thread.call(self._inner.withdraw(erasure, who=who, why=why))

    def verify(self, erasure: str, *, progress: Progress | None = None) -> Verification:
        """Read what the receipt speaks of, and compare: every listed event is blank, and no other byte has changed.

        Trusts the store with nothing but the bytes that it serves to everybody. Raises NotFoundError, CorruptDataError.
        """
        return self._thread.call(self._inner.verify(erasure, progress=progress))
