"""The segments of a container in memory, by name and by id; others are loaded on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError, DamagedRowError, SegmentNotFoundError
from penstock.ports.data.segments import NO_EVENT
from penstock.segmentstore.append_limits import AppendLimits
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.segment import AttributeState, Chunk, Segment
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.tiering.tail_cache import CacheMemory


class _Removed:
    """Stands for a segment whose removal is queued."""


_REMOVED: Final = _Removed()


class _Watch:
    """Whether a segment, or its attributes, left memory during a load."""

    __slots__ = ("departed",)

    def __init__(self) -> None:
        self.departed = False


class SegmentDirectory:
    """Two views of the names: as queued operations will leave them, and as they durably are.

    ``loaded`` is called for each segment that is loaded, ``crowded`` when too many are in memory and none can leave.
    ``check`` is called after possible waits; it raises once the container is offline.
    """

    def __init__(
        self,
        container: int,
        *,
        rows: MetadataRows,
        memory: CacheMemory,
        settings: StoreSettings,
        limits: AppendLimits,
        loaded: Callable[[Segment], None],
        crowded: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._container_index = container
        self._rows = rows
        self._memory = memory
        self._settings = settings
        self._limits = limits
        self._loaded = loaded
        self._crowded = crowded
        self._evict_at = _crowd(settings.max_loaded_segments)
        self._check = check
        self.held = 0
        """While above 0, no segment is evicted: a caller needs several in memory at the same time."""
        self.by_uid: dict[int, Segment] = {}
        self.aside: dict[int, None] = {}
        """Segments with damaged metadata that the log changes. They are neither served nor removed."""
        self._names: dict[str, Segment | _Removed] = {}
        self._visible: dict[str, Segment] = {}
        self._watches: dict[str, list[_Watch]] = {}

    def pending(self, name: str) -> Segment | None:
        """The segment in memory, including queued operations. None: it may be on disk, or not exist."""
        known = self._names.get(name)
        return known if isinstance(known, Segment) else None

    def visible(self, name: str) -> Segment | None:
        """The durable segment, if it is in memory."""
        return self._visible.get(name)

    def announce(self, segment: Segment) -> None:
        """A creation is queued: later operations find the segment, readers do not yet."""
        self._make_room()
        self._names[segment.name] = segment
        self._limits.segment_created(segment)

    def announce_removal(self, segment: Segment) -> None:
        """A removal is queued: the name is free for later operations, readers still find the segment."""
        segment.next_gone = True
        self._names[segment.name] = _REMOVED

    def show(self, segment: Segment) -> None:
        self._visible[segment.name] = segment
        self._names.setdefault(segment.name, segment)
        self.by_uid[segment.uid] = segment
        self._limits.segment_loaded(segment)
        self._loaded(segment)

    def hide(self, segment: Segment) -> None:
        self._visible.pop(segment.name, None)
        self.by_uid.pop(segment.uid, None)
        if self._names.get(segment.name) in (_REMOVED, segment):
            del self._names[segment.name]
        self._departed(segment)
        self._limits.segment_left(segment)

    async def find(self, name: str) -> Segment | None:
        """The segment, including queued operations, or None."""
        while True:
            self._check()
            known = self._names.get(name)
            if known is not None:
                if isinstance(known, _Removed):
                    return None
                known.touched = True
                return known
            with self._watching(name) as watch:
                found = await self._load_name(name)
            # During the read, another caller may have loaded the segment, and it may have left. Then our result is outdated.
            if watch.departed or name in self._names:
                continue
            if found is None:
                return None
            self._make_room()
            self.show(found)
            return found

    async def find_visible(self, name: str) -> Segment:
        """The durable segment. Raises SegmentNotFoundError."""
        if name not in self._visible:
            await self.find(name)
        self._check()
        segment = self._visible.get(name)
        if segment is None:
            raise SegmentNotFoundError("no such segment", segment=name)
        segment.touched = True
        return segment

    def is_current(self, segment: Segment) -> bool:
        """Whether queued operations still find the segment: it may have left since a lookup before an await."""
        return self._names.get(segment.name) is segment

    @contextmanager
    def _watching(self, name: str) -> Iterator[_Watch]:
        """Record whether the segment leaves memory during a load. Other segments do not count: they change nothing
        here, and if many came and went, a load might never end."""
        watch = _Watch()
        self._watches.setdefault(name, []).append(watch)
        try:
            yield watch
        finally:
            self._watches[name].remove(watch)
            if not self._watches[name]:
                del self._watches[name]

    def _departed(self, segment: Segment) -> None:
        for watch in self._watches.get(segment.name, ()):
            watch.departed = True

    async def _load_name(self, name: str) -> Segment | None:
        row = await self._row(records.name_key(self._container_index, name))
        return None if row is None else await self.load(records.parse_number(row))

    async def load(self, uid: int) -> Segment | None:
        """Read a segment from the key-value store, without registering it. Raises CorruptDataError."""
        if uid in self.aside:
            raise CorruptDataError(
                "segment was set aside, because its metadata is damaged",
                container=self._container_index,
                uid=f"{uid:x}",
            )
        row = await self._row(records.uid_key(records.TAG_SEGMENT, self._container_index, uid))
        if row is None:
            return None
        segment = Segment(uid, records.decode_segment(row), self._memory)
        segment.stored = True
        segment.marks = None
        bounds = records.range_of(records.uid_key(records.TAG_CHUNK, self._container_index, uid))
        for key, value in await self._rows.scan_all(bounds):
            record = records.decode_chunk(value)
            segment.chunks.add(
                Chunk(
                    record.name,
                    records.parse_number(key[-8:]),
                    length=record.length,
                    freed=record.freed,
                    block_count=record.block_count,
                    event_count=record.event_count,
                    joined_ms=record.joined_ms,
                )
            )
        return segment

    async def _row(self, key: bytes) -> bytes | None:
        """A row, or its copy if the row is damaged and has one. Raises DamagedRowError."""
        try:
            return await self._rows.get(key)
        except DamagedRowError:
            row = await self._rows.get(records.copy_key(key))
            if row is None:
                raise
            return row

    async def attribute(self, segment: Segment, key: int) -> AttributeState:
        """State of an attribute. When this returns, the segment may have left memory or have been reloaded."""
        while True:
            state = segment.attributes.get(key)
            if state is not None:
                return state
            if not segment.stored:
                state = segment.attributes[key] = AttributeState(NO_EVENT)
                return state
            with self._watching(segment.name) as watch:
                row = await self._rows.get(self.attribute_key(segment, key))
            if not watch.departed and key not in segment.attributes:
                value, used_s = (NO_EVENT, 0) if row is None else records.decode_writer(row)
                state = segment.attributes[key] = AttributeState(value, fixed=used_s is None)
                return state
            if segment.gone:
                return AttributeState(NO_EVENT)

    def forget_attribute(self, segment: Segment, key: int) -> bool:
        """Drop an attribute's state from memory, because its row is about to be deleted. False: queued operations,
        changes not yet in the rows, or untiered bytes still need it."""
        state = segment.attributes.get(key)
        if key in segment.dirty_attributes or key in segment.queued_attributes or key in segment.cache.behind:
            return False
        if state is not None and state.pending != state.durable:
            return False
        segment.attributes.pop(key, None)
        self._departed(segment)
        return True

    def attribute_key(self, segment: Segment, key: int) -> bytes:
        return records.uid_key(records.TAG_ATTRIBUTE, self._container_index, segment.uid, key.to_bytes(16, "big"))

    def _make_room(self) -> None:
        """Before another load: a client may request a million segments between two checkpoints."""
        if len(self._visible) < self._evict_at:
            return
        limit = self._settings.max_loaded_segments
        self.evict_idle(limit)
        if len(self._visible) > limit:
            self._crowded()

    def evict_idle(self, limit: int) -> None:
        """Evict idle segments, least recently used first, down to ``limit``; none while segments are held.

        A caller holds segments while it loads several. If each load evicted another, it would never end.
        """
        excess = 0 if self.held else len(self._visible) - limit
        if excess > 0:
            for segment in list(self._visible.values()):
                if excess <= 0:
                    break
                if segment.touched:
                    # A second chance: move it to the end. A segment in use is touched again before its next turn.
                    segment.touched = False
                    self._visible[segment.name] = self._visible.pop(segment.name)
                elif segment.is_idle and self.is_current(segment):
                    segment.cache.clear()
                    self.hide(segment)
                    excess -= 1
        for segment in self._visible.values():
            if len(segment.attributes) > self._settings.max_loaded_attributes:
                # Also for a segment that is never idle: a busy one may have had a million short-lived writers.
                segment.forget_settled()
                self._departed(segment)

        # Do not check the segments that could not leave again on each load.
        self._evict_at = _crowd(max(limit, len(self._visible)))

    def drop_bytes(self) -> None:
        """Empty the tail caches of all segments. Nothing is read or written any more."""
        for segment in self.by_uid.values():
            segment.cache.clear()

    def loaded(self) -> Iterable[Segment]:
        """The durable segments in memory."""
        return self._visible.values()

    def restore(self, segment: Segment) -> None:
        """The queued operations on the segment will not happen: return to the durable state."""
        segment.forget_pending()
        durable = self._visible.get(segment.name)
        if durable is None:
            self._names.pop(segment.name, None)
            self._departed(segment)
        else:
            durable.forget_pending()
            self._names[segment.name] = durable


def _crowd(count: int) -> int:
    """A quarter above the limit: this many may load between two searches for idle ones."""
    return count + max(1, count // 4)
