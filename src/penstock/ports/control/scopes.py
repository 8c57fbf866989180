"""Scopes: the first part of every stream's name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

PAGE_MAX = 1000  # names of one page


class Scopes(Protocol):
    """Scopes of the store."""

    async def create(self, scope: str) -> None:
        """Raises AlreadyExistsError, InvalidNameError."""
        ...

    async def delete(self, scope: str) -> None:
        """Raises ScopeNotFoundError, NotEmptyError."""
        ...

    async def exists(self, scope: str) -> bool: ...

    async def list(self, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        """Names behind ``after``, sorted. Empty: the end."""
        ...
