"""Attributes of segments: numbers that change by compare and set."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID

from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeChange:
    """A change of one attribute, applied only if it has the ``expected`` value (``NO_EVENT`` = absent; None =
    always)."""

    attribute: UUID
    value: int
    expected: int | None = None


class Attributes(Protocol):
    """64-bit numbers by UUID, for each segment."""

    async def get_attribute(self, name: str, attribute: UUID) -> int:
        """The value, or ``NO_EVENT`` if absent."""
        ...

    async def update_attribute(self, name: str, attribute: UUID, value: int, *, expected: int | None) -> bool:
        """Compare and set (``NO_EVENT`` = absent; None = always). Returns whether it was set."""
        ...
