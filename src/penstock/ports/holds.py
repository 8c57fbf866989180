"""Whether space may be given back now, or somebody copies the files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class SpaceHolds(Protocol):
    """Asked before a store deletes, punches or recycles a file that a backup may be reading.

    Each call returns a block. Its value says whether space may be given back inside it; while it may, no backup begins.
    Where it may not, the caller does nothing and asks again later. A backup that dies holds nothing.
    """

    def chunks(self) -> AbstractContextManager[bool]:
        """For chunks of tier 2."""
        ...

    def log(self) -> AbstractContextManager[bool]:
        """For files of the log."""
        ...


class NoHolds:
    """For a store that nobody can back up while it runs: space may always be given back."""

    @contextmanager
    def chunks(self) -> Iterator[bool]:
        yield True

    @contextmanager
    def log(self) -> Iterator[bool]:
        yield True
