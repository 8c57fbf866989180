"""Checkpoints: all changed rows in one atomic commit, with the log address up to which they are complete."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.codec import records
from penstock.model.errors import PenstockError, UnavailableError
from penstock.ports.segment_service import NO_EVENT

if TYPE_CHECKING:
    from penstock.segmentstore.container import Container

_log = logging.getLogger(__name__)


class Checkpointer:
    """Commits the changes of a container from time to time, then lets go of log frames and of files.

    The order is the law: chunks are synced before a row names them, rows are durable before the log forgets, and rows
    that name a chunk no more are durable before its file goes.
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._wake = asyncio.Event()
        self._asked = False
        self._lock = asyncio.Lock()
        self._complete_upto = 0
        self._lowest_untiered: int | None = None
        self.truncate_log = self._no_log

    async def _no_log(self) -> None:
        """Until the store has wired the log of all its containers."""

    def recovered(self, complete_upto: int, lowest_untiered: int | None) -> None:
        """Take up after recovery."""
        self._complete_upto = complete_upto
        self._lowest_untiered = lowest_untiered

    # --- what the log must keep ---------------------------------------------------------------------------

    def covered_address(self) -> int:
        """Frames at and below this address are needed no more: their rows are committed, their bytes tiered."""
        if self._lowest_untiered is None:
            return self._complete_upto
        return min(self._complete_upto, self._lowest_untiered - 1)

    def is_clean(self) -> bool:
        """Whether nothing that became durable lives in the log alone."""
        return self._container.applied_address <= self._complete_upto and self._lowest_untiered is None

    # --- the loop -----------------------------------------------------------------------------------------

    def nudge(self) -> None:
        if self._container.rows.changed_bytes >= self._container.settings.checkpoint_rows_bytes:
            self.ask()

    def ask(self) -> None:
        """Checkpoint soon."""
        self._asked = True
        self._wake.set()

    async def run(self) -> None:
        container = self._container
        settings = container.settings
        pause_s = settings.checkpoint_interval_s
        failures = 0
        while True:
            await self._sleep(pause_s, interruptible=not failures)
            try:
                await self.checkpoint()
                await container.reclaimer.free()
                await container.reclaimer.forget_merges()
            except (OSError, UnavailableError) as error:
                container.log.shortage.settle(self, error)
                failures += 1
                container.telemetry.add("checkpoint_failures")
                if failures == 1:
                    _log.warning(
                        "checkpoint failed, will be tried again", extra={"container": container.index}, exc_info=error
                    )
                # A part of chance, so that containers that failed together do not return together.
                longest = min(settings.retry_max_s, settings.retry_min_s * 2 ** min(failures, 16))
                pause_s = longest * (0.5 + container.rng.random() / 2)
            else:
                container.log.shortage.settle(self, None)
                failures = 0
                pause_s = settings.checkpoint_interval_s
            container.segments.evict_idle(settings.max_loaded_segments)

    async def _sleep(self, seconds: float, *, interruptible: bool) -> None:
        if not interruptible:
            await asyncio.sleep(seconds)
            return
        if not self._asked:
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass  # Nobody asked: the interval is over.
        self._asked = False
        self._wake.clear()

    async def last(self) -> None:
        """The checkpoint of an orderly close. Its failure costs time at the next start, nothing else."""
        try:
            await self.checkpoint()
        except (OSError, PenstockError) as error:
            _log.warning("last checkpoint failed", extra={"container": self._container.index}, exc_info=error)

    async def checkpoint(self) -> None:
        """Commit what has changed, then let the log forget. Raises what the key-value store and the log raise."""
        async with self._lock:
            await self._commit()
            await self.truncate_log()

    async def _commit(self) -> None:
        container = self._container
        if not container.dirty and not container.rows.changed and container.applied_address == self._complete_upto:
            return
        # No await from here to the commit's own first one: the rows are the state at this very address.
        upto = container.applied_address
        lowest = container.tiering.lowest_address()
        released = container.reclaimer.released_by_now()
        self._write_rows(upto)
        container.telemetry.add("checkpoints")
        await container.rows.commit()
        self._complete_upto = upto
        self._lowest_untiered = lowest
        container.reclaimer.committed(released)

    def _write_rows(self, upto: int) -> None:
        container = self._container
        rows, index = container.rows, container.index
        for segment in container.dirty:
            rows.put(records.uid_key(records.TAG_SEGMENT, index, segment.uid), records.encode_segment(segment.record()))
            for key in segment.dirty_attributes:
                value = segment.attributes[key].durable
                row = container.segments.attribute_key(segment, key)
                if value == NO_EVENT:
                    rows.delete(row)
                else:
                    rows.put(row, records.encode_int(value))
            segment.dirty_attributes.clear()
            segment.dirty = False
        container.dirty.clear()
        record = records.ContainerRecord(epoch=container.log.epoch, complete_upto=upto)
        rows.put(records.prefix(records.TAG_CONTAINER, index), records.encode_container(record))
