"""Key-value tables: Pravega's tables of users, each a set of sorted table segments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import SEGMENTS_MAX
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.scopes import PAGE_MAX
from penstock.ports.data.tables import KEY_MAX_BYTES

__all__ = ["TableConfig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """A key-value table. A key is a primary and a secondary part of fixed lengths; the primary chooses the partition.

    ``rollover_bytes``: Pravega's setting; it is stored and has no effect.
    """

    partitions: int
    primary_key_bytes: int
    secondary_key_bytes: int
    rollover_bytes: int

    def __post_init__(self) -> None:
        key_bytes = self.primary_key_bytes + self.secondary_key_bytes
        if not 1 <= self.partitions <= SEGMENTS_MAX:
            raise InvalidArgumentError(f"a table must have 1 to {SEGMENTS_MAX} partitions", partitions=self.partitions)
        if self.primary_key_bytes < 1 or self.secondary_key_bytes < 0 or key_bytes > KEY_MAX_BYTES:
            raise InvalidArgumentError(
                f"a key must have a primary part, and at most {KEY_MAX_BYTES} bytes in all",
                primary_key_bytes=self.primary_key_bytes,
                secondary_key_bytes=self.secondary_key_bytes,
            )
        if self.rollover_bytes < 0:
            raise InvalidArgumentError("rollover size is negative", rollover_bytes=self.rollover_bytes)


class KeyValueTables(Protocol):
    """Key-value tables of a scope. Their entries are read and changed through the segment store, partition by partition."""

    async def create(self, scope: str, name: str, config: TableConfig) -> None:
        """Create an empty table. Raises: ScopeNotFoundError, InvalidNameError, AlreadyExistsError; UnavailableError
        (another server changed it)."""
        ...

    async def get(self, scope: str, name: str) -> TableConfig:
        """The configuration of the table. Raises TableNotFoundError."""
        ...

    async def delete(self, scope: str, name: str) -> None:
        """Delete the table with its entries, also if its record cannot be read.

        Raises: TableNotFoundError; VersionTooNewError (a newer version wrote the record); UnavailableError (another server
        changed it).
        """
        ...

    async def list(self, scope: str, *, after: str = "", limit: int = PAGE_MAX) -> Sequence[str]:
        """Names after ``after``, sorted; also of tables that are being created or deleted. Empty: the end."""
        ...
