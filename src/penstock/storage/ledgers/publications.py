"""Where the catalogues of a log's containers end, noted in the log's record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from penstock.codec.store.container_record import CataloguePosition
from penstock.core.cluster import ownership
from penstock.storage.ledgers.log_record import HeldRecord


class HeldPublications:
    """Implements ``ports.cluster.publications.Publications``, by the record that an opening of the log holds."""

    def __init__(self, held: HeldRecord) -> None:
        self._held = held

    def position(self, container: int) -> CataloguePosition | None:
        """As the port says."""
        return self._held.record.catalogue(container)

    def positions(self) -> Mapping[int, CataloguePosition]:
        """Of all containers that have published something."""
        return dict(self._held.record.catalogues)

    async def publish(self, container: int, at: CataloguePosition) -> None:
        """As the port says."""
        changed = partial(ownership.published, truncated=self._held.record.truncated, container=container, catalogue=at)
        await self._held.change(changed)
