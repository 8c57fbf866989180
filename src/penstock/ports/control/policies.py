"""Retention policies of the store, of scopes and of streams."""

from __future__ import annotations

from typing import Protocol

from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, PolicyDocument, PolicyTarget


class Policies(Protocol):
    """Policy documents by level."""

    async def get(self, target: PolicyTarget) -> PolicyDocument:
        """The document of this level only. Raises ScopeNotFoundError, StreamNotFoundError."""
        ...

    async def set(self, target: PolicyTarget, document: PolicyDocument) -> None:
        """Replace the document of a level; an empty one leaves everything to the next level. In force when this
        returns; above the stream's own level, writers' limits follow within a second.

        A stream's Pravega policy is a view of its document. Raises InvalidArgumentError, with ``field``, ``value``, ``rule``
        and ``level``, if the document, or the resulting policy of a stream below, is contradictory; the old one stays.
        """
        ...

    async def effective(self, stream: StreamName) -> EffectivePolicy:
        """What applies to the stream, with the origin of each value."""
        ...
