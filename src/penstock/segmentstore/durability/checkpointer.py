"""Checkpoints: all changed rows in one atomic commit, with the log address up to which they are complete."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from penstock.codec.store import rows as records
from penstock.model.errors import PenstockError, StorageFullError, UnavailableError
from penstock.model.values.dataclass import dataclass
from penstock.ports.data.segments import NO_EVENT
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tiering.catalogue import Catalogue
from penstock.segmentstore.tiering.flushed import write_flushed
from penstock.segmentstore.tiering.reclaimer import Reclaimer
from penstock.segmentstore.writer_memory import WriterMemory

_log = logging.getLogger(__name__)

_FREE_S = 1.0  # how long files are deleted between two checkpoints
Released: TypeAlias = tuple[dict[str, records.FreeRecord], dict[int, None]]


@dataclass(slots=True, kw_only=True)
class _Point:
    """A checkpoint: its batch in the catalogue, the lowest log address not tiered, and the chunks released by then.

    ``next_frame``: the address of the container's first frame that its rows do not hold; None: none yet. Frames in
    between belong to other containers: an idle container must not keep them all when it writes again.
    """

    sequence: int
    lowest_untiered: int | None
    released: Released
    next_frame: int | None = None

    def needed_from(self) -> int | None:
        """The lowest address that the container needs after this checkpoint; None: it needs no durable frame."""
        return min((one for one in (self.lowest_untiered, self.next_frame) if one is not None), default=None)


class Checkpointer:
    """Commits the changes of a container periodically, then releases log frames and files.

    The order matters. Chunks are synced before a row names them. Rows are durable, here and in the catalogue of tier 2,
    and the catalogue's position is published, before the log is truncated. Rows no longer name a chunk, durably and in
    the published catalogue, before its file is deleted.
    """

    def __init__(
        self,
        state: ContainerState,
        parts: StoreParts,
        *,
        catalogue: Catalogue,
        reclaimer: Reclaimer,
        writers: WriterMemory,
        lowest_untiered: Callable[[], int | None],
    ) -> None:
        """``lowest_untiered`` returns the lowest log address that holds a byte not tiered."""
        self._state = state
        self._parts = parts
        self._catalogue = catalogue
        self._reclaimer = reclaimer
        self._writers = writers
        self._lowest_untiered = lowest_untiered
        self._wake = asyncio.Event()
        self._asked = False
        self._lock = asyncio.Lock()
        self._complete_upto = 0
        self._covered = _Point(sequence=0, lowest_untiered=None, released=({}, {}))
        """The newest checkpoint that tier 2 alone gives back."""
        self._next_frame: int | None = None
        """The first frame since rows were last taken for a commit."""
        self._points: deque[_Point] = deque()
        self._committed = asyncio.Event()
        """Set, and replaced, at the next commit of rows."""
        self.truncate_log = self._no_log

    async def _no_log(self) -> None:
        """A placeholder until the store connects the shared log."""

    def recovered(self, complete_upto: int, lowest_untiered: int | None) -> None:
        """Start from the recovered state."""
        self._complete_upto = complete_upto
        applied = self._state.applied_address
        # Until tier 2 alone can restore the present state, the log keeps all frames.
        self._covered.next_frame = 1 if applied else None
        self._points.append(
            _Point(
                sequence=self._catalogue.sequence,
                lowest_untiered=lowest_untiered,
                released=({}, {}),
                next_frame=complete_upto + 1 if applied > complete_upto else None,
            )
        )
        self._settle()

    # --- what the log must keep ---------------------------------------------------------------------------

    def framed(self, address: int) -> None:
        """A frame of the container became durable at the address, above all earlier ones."""
        if self._next_frame is None:
            self._next_frame = address
            for point in (*self._points, self._covered):
                if point.next_frame is None:
                    point.next_frame = address

    def needed_from(self) -> int | None:
        """Frames below this address are no longer needed: their rows are committed, their bytes tiered. None: no
        durable frame is needed."""
        return self._covered.needed_from()

    # --- the loop -----------------------------------------------------------------------------------------

    def ask_if_large(self) -> None:
        """Ask for a checkpoint if the changed rows take too much memory."""
        if self._state.rows.changed_bytes >= self._parts.settings.checkpoint_rows_bytes:
            self.ask()

    def ask(self) -> None:
        """Checkpoint soon."""
        self._asked = True
        self._wake.set()

    async def next_commit(self) -> None:
        """Ask for a checkpoint, and return once rows are committed, or the container has gone offline."""
        self.ask()
        await self._committed.wait()

    def wake(self) -> None:
        """Wake all callers that wait for a commit."""
        self._committed.set()
        self._committed = asyncio.Event()

    async def run(self) -> None:
        state, parts, settings = self._state, self._parts, self._parts.settings
        pause_s = settings.checkpoint_interval_s
        failures = 0
        while True:
            asked = await self._sleep(pause_s, interruptible=not failures)
            try:
                await self._checkpoint(everything=asked)
                # Without a limit, a large deletion would keep the log from being truncated, so that appends wait.
                has_more = await self._reclaimer.free(within_s=_FREE_S)
                await self._reclaimer.forget_merges()
                await self._writers.forget_some()
            except (OSError, UnavailableError) as error:
                state.log.shortage.settle(self, error)
                failures += 1
                parts.telemetry.add("checkpoint_failures")
                if failures == 1:
                    _log.warning(
                        "checkpoint failed, will be tried again", extra={"container": state.index}, exc_info=error
                    )
                # Random jitter, so that containers that failed together do not retry together.
                longest = min(settings.retry_max_s, settings.retry_min_s * 2 ** min(failures, 16))
                pause_s = longest * (0.5 + parts.rng.random() / 2)
            else:
                state.log.shortage.settle(self, None)
                failures = 0
                pause_s = 0 if has_more else settings.checkpoint_interval_s
            state.segments.evict_idle(settings.max_loaded_segments)

    async def _sleep(self, seconds: float, *, interruptible: bool) -> bool:
        """Wait until the time is over or a checkpoint is requested. Returns whether one was requested."""
        if not interruptible:
            await asyncio.sleep(seconds)
            return True
        if not self._asked:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass  # No request: the interval is over.
        asked, self._asked = self._asked, False
        self._wake.clear()
        return asked

    async def last(self) -> None:
        """The checkpoint of a clean close. If it fails, only the next start takes longer."""
        self._writers.put_if_old()
        try:
            await self.checkpoint()
            await self._catalogue.tidy_outbox()
        except (OSError, PenstockError) as error:
            _log.warning("last checkpoint failed", extra={"container": self._state.index}, exc_info=error)

    async def checkpoint(self) -> None:
        """Commit all changes, here and in tier 2, then truncate the log.

        Raises what the key-value store, tier 2 and the log raise.
        """
        await self._checkpoint(everything=True)
        if self._catalogue.safe < 0:
            await self._catalogue.begin()
            await self._checkpoint(everything=True)

    async def _checkpoint(self, *, everything: bool) -> None:
        catalogue = self._catalogue
        async with self._lock:
            await self._commit()
            if everything or catalogue.is_due():
                try:
                    await catalogue.write()
                except StorageFullError:
                    # Space comes from files that rows no longer name. The catalogue still names them, so a rebuilt
                    # store would report damage: that is better than a disk that stays full. Where positions are
                    # published, another owner may begin with the one that names them.
                    if self._parts.publications is None:
                        self._release_all()
                        await self._reclaimer.free()
                    raise
            self._settle()
            await self.truncate_log()

    async def _commit(self) -> None:
        state = self._state
        if not state.dirty and not state.rows.changed and state.applied_address == self._complete_upto:
            return
        # No await from here until the commit's first await: the rows are the state at exactly this address.
        upto, self._next_frame = state.applied_address, None
        lowest = self._lowest_untiered()
        released = self._reclaimer.released_by_now()
        self._write_rows(upto)
        self._parts.telemetry.add("checkpoints")
        await state.rows.commit()
        self.wake()
        self._complete_upto = upto
        self._points.append(
            _Point(
                sequence=self._catalogue.sequence,
                lowest_untiered=lowest,
                released=released,
                next_frame=self._next_frame,
            )
        )

    def _settle(self) -> None:
        """Use the newest checkpoint that tier 2 alone can restore."""
        safe = self._catalogue.safe
        while self._points and self._points[0].sequence <= safe:
            self._covered = self._points.popleft()
            self._reclaimer.committed(self._covered.released)

    def _release_all(self) -> None:
        for index, point in enumerate(self._points):
            self._reclaimer.committed(point.released)
            self._points[index] = replace(point, released=({}, {}))

    def _write_rows(self, upto: int) -> None:
        state = self._state
        rows, index = state.rows, state.index
        self._writers.put_if_old()
        used_s = self._writers.age_s
        for segment in state.dirty:
            segment.stored = True
            place, record = records.uid_key(records.TAG_SEGMENT, index, segment.uid), segment.record()
            rows.put(place, records.encode_segment(record))
            if segment.table is not None:
                rows.put(records.copy_key(place), records.encode_segment(record))
            for key in segment.dirty_attributes:
                attribute = segment.attributes[key]
                value = attribute.durable
                row = state.segments.attribute_key(segment, key)
                if value == NO_EVENT:
                    rows.delete(row)
                else:
                    fixed = attribute.fixed
                    rows.put(row, records.encode_int(value) if fixed else records.encode_writer(value, used_s))
            segment.dirty_attributes.clear()
            write_flushed(rows, index, segment)
            segment.dirty = False
        state.dirty.clear()
        row = records.encode_container(records.ContainerRecord(epoch=state.log.epoch, complete_upto=upto))
        rows.put(records.prefix(records.TAG_CONTAINER, index), row)
        rows.put(records.container_copy_key(index), row)
