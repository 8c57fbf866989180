"""Randomness and ids. One seed replays one run."""

from __future__ import annotations

from typing import Protocol
from uuid import UUID


class Rng(Protocol):
    """A source of randomness. Ids are unique within a run and, outside simulation, in the world."""

    def random(self) -> float:
        """A float in [0, 1)."""
        ...

    def randrange(self, stop: int) -> int:
        """An int in [0, stop)."""
        ...

    def uuid(self) -> UUID: ...
