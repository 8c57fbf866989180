"""Whether files may be deleted now, or a backup is copying them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol


class SpaceHolds(Protocol):
    """Asked before a store deletes, punches or recycles a file that a backup may be reading.

    Each call returns a context manager. Its value says whether space may be freed inside the block; if so, no backup
    begins before its end. If not, the caller frees nothing and tries again later. A hold ends when its backup process
    dies.
    """

    def chunks(self) -> AbstractContextManager[bool]:
        """For chunks of tier 2."""
        ...

    def log(self) -> AbstractContextManager[bool]:
        """For files of the log."""
        ...


class NoHolds:
    """For a store that cannot be backed up while it runs: space may always be freed."""

    @contextmanager
    def chunks(self) -> Iterator[bool]:
        yield True

    @contextmanager
    def log(self) -> Iterator[bool]:
        yield True
