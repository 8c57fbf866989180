"""Randomness of this machine."""

from __future__ import annotations

import random
import uuid


class RealRng:
    """Implements ``ports.rng.Rng`` from the operating system's source: nobody can guess a value from earlier ones."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def random(self) -> float:
        return self._random.random()

    def randrange(self, stop: int) -> int:
        return self._random.randrange(stop)

    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()
