"""Scopes: the first part of every stream's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.values.dataclass import dataclass

__all__ = ["ScopeContents"]

PAGE_MAX = 1000  # names of one page


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeContents:
    """How many objects a scope holds, including those that are being created or deleted.

    The scope can be deleted once all numbers are 0, unless a hold is placed on it. ``internal_streams``: those of the
    system itself. ``tables``: key-value tables.
    """

    streams: int
    internal_streams: int
    reader_groups: int
    tables: int


class Scopes(Protocol):
    """Scopes of the store."""

    async def create(self, scope: str) -> None:
        """Raises AlreadyExistsError, InvalidNameError."""
        ...

    async def delete(self, scope: str) -> None:
        """Raises ScopeNotFoundError, RetentionHoldError (a hold is placed on it), NotEmptyError."""
        ...

    async def exists(self, scope: str) -> bool: ...

    async def describe(self, scope: str) -> ScopeContents:
        """How much the scope holds. Not a snapshot: objects created or deleted during the call may be missing.

        Raises ScopeNotFoundError.
        """
        ...

    async def list(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        """Names behind ``after``, sorted. Empty: the end."""
        ...
