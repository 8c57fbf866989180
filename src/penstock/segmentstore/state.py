"""The in-memory state of one container."""

from __future__ import annotations

from collections.abc import Callable

from penstock.segmentstore.append_limits import AppendLimits
from penstock.segmentstore.changes import Changes
from penstock.segmentstore.directory import SegmentDirectory
from penstock.segmentstore.durability.shared_log import SharedLog
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Segment
from penstock.segmentstore.tiering.tail_cache import CacheMemory


class ContainerState:
    """The segments and the rows of one container. All parts of the container share it.

    Operations change it in the order that ``Container`` keeps, and only through ``Transitions``. Tiering, erasure and
    freeing change chunk lists between operations, without an await between their decision and the change.

    index: number of the container, which begins the keys of its rows.
    log, memory, changes: shared with the other containers of the store.
    rows: changes since the last checkpoint, layered over the key-value store.
    dirty: the segments whose rows are outdated.
    applied_address: the log address up to which the state includes the container's frames.
    """

    __slots__ = ("_next_uid", "applied_address", "changes", "dirty", "index", "log", "memory", "rows", "segments")

    def __init__(
        self,
        index: int,
        parts: StoreParts,
        *,
        log: SharedLog,
        memory: CacheMemory,
        limits: AppendLimits,
        changes: Changes,
        loaded: Callable[[Segment], None],
        crowded: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        """``loaded``, ``crowded`` and ``check`` as in ``SegmentDirectory``."""
        self.index = index
        self.log = log
        self.memory = memory
        self.changes = changes
        self.rows = MetadataRows(parts.keyvalue)
        self.segments = SegmentDirectory(
            index,
            rows=self.rows,
            memory=memory,
            settings=parts.settings,
            limits=limits,
            loaded=loaded,
            crowded=crowded,
            check=check,
        )
        self.dirty: dict[Segment, None] = {}
        self.applied_address = 0
        self._next_uid = 1

    def mark_dirty(self, segment: Segment) -> None:
        segment.dirty = True
        self.dirty[segment] = None

    def new_uid(self) -> int:
        """An id that no segment of this container ever had: neither epochs nor counts within one are reused."""
        uid = self.log.epoch << 32 | self._next_uid
        self._next_uid += 1
        return uid
