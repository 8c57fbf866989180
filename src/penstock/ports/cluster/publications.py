"""Which part of each container's catalogue in tier 2 is valid, as all machines see it."""

from __future__ import annotations

from typing import Protocol

from penstock.codec.store.container_record import CataloguePosition


class Publications(Protocol):
    """The published position of each container of a log.

    Guarantees. Only the owner of the log publishes: once another opening owns it, nothing more is published by this one. A
    later owner begins with the position that was published last. So whatever that position names must not be deleted, and
    what it no longer names may be, however late.
    """

    def position(self, container: int) -> CataloguePosition | None:
        """The position published last; None: the container has published nothing."""
        ...

    async def publish(self, container: int, at: CataloguePosition) -> None:
        """Move the position; its ``begins`` are ignored. Repeating a call changes nothing more.

        Raises: ContainerOfflineError: a later opening owns the log. NotConnectedError: the outcome is unknown; repeat.
        """
        ...
