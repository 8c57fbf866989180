"""Small versioned values of a coordinator, as the metadata of ledgers need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


class VersionedNodes(Protocol):
    """Nodes with data and versions. Writes are linearizable; versions begin at 0 and grow by 1.

    Every call raises NotConnectedError if its outcome is unknown: read back, and compare.
    """

    async def read(self, path: str) -> tuple[bytes, int]:
        """Data and version. Raises NotFoundError."""
        ...

    async def create(self, path: str, data: bytes) -> None:
        """Make a node, and its parents where they are missing. Raises AlreadyExistsError."""
        ...

    async def set(self, path: str, data: bytes, *, version: int) -> int:
        """Replace the data, and return the new version. Raises ConditionFailedError (another version), NotFoundError."""
        ...


@runtime_checkable
class Nodes(VersionedNodes, Protocol):
    """A tree of such nodes, with those that only ledgers need. Errors are those of ``VersionedNodes``."""

    async def next_number(self, prefix: str) -> int:
        """A number that no other call with this prefix gets. It comes from a sequential node, which is deleted at
        once."""
        ...

    async def delete(self, path: str) -> None:
        """Delete the node, whatever its version. Raises NotFoundError."""
        ...

    async def children(self, path: str) -> Sequence[str]:
        """Names of the nodes below, sorted. Raises NotFoundError."""
        ...
