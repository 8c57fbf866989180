"""The chunks that are being written now: their names, and which files must not be deleted or grown."""

from __future__ import annotations

from penstock.core.segments.garbage import ChunkName


class ChunkWrites:
    """Writes of one container, shared by tiering, erasure and freeing.

    in_flight: chunks with a write in flight. Their files must not be deleted now.
    discarded: chunks that no segment ever named, left by a failed or obsolete write. Freeing deletes them.
    """

    __slots__ = ("_attempt", "_epoch", "_index", "discarded", "in_flight")

    def __init__(self, index: int, epoch: int) -> None:
        self._index = index
        self._epoch = epoch
        self._attempt = 0
        self.in_flight: dict[str, None] = {}
        self.discarded: dict[str, None] = {}

    def next_attempt(self) -> None:
        """Make later names differ from all earlier ones: a failed write may have left a file with that name."""
        self._attempt += 1

    def name(self, uid: int, start: int) -> str:
        """The name of a chunk that begins at ``start`` in the segment ``uid``."""
        return str(ChunkName(container=self._index, uid=uid, epoch=self._epoch, start=start, attempt=self._attempt))
