"""A container: segments that share one queue of operations, one state, and one stream of log frames."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from penstock.codec.store.operations import Change
from penstock.codec.store.rows import ContainerRecord
from penstock.model.errors import ContainerOfflineError, PenstockError, StorageFullError
from penstock.ports.files import Buffer
from penstock.segmentstore.append_limits import AppendLimits
from penstock.segmentstore.calls.appends import Appends
from penstock.segmentstore.calls.imports import Imports
from penstock.segmentstore.calls.reads import Reads
from penstock.segmentstore.changes import Changes
from penstock.segmentstore.durability.checkpointer import Checkpointer
from penstock.segmentstore.durability.shared_log import SharedLog
from penstock.segmentstore.erasure.eraser import Eraser
from penstock.segmentstore.mutations import Done, Mutation, OperationMutation, frame_parts, take_batch, waking
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.segment import Segment
from penstock.segmentstore.state import ContainerState
from penstock.segmentstore.tasks import TaskOwner, end_tasks
from penstock.segmentstore.tiering.blocks import BlockReader
from penstock.segmentstore.tiering.catalogue import Catalogue
from penstock.segmentstore.tiering.chunk_writes import ChunkWrites
from penstock.segmentstore.tiering.event_counts import EventCounter
from penstock.segmentstore.tiering.import_garbage import ImportGarbage
from penstock.segmentstore.tiering.leases import Leases
from penstock.segmentstore.tiering.reclaimer import Reclaimer
from penstock.segmentstore.tiering.tail_cache import CacheMemory
from penstock.segmentstore.tiering.tier_writer import TierWriter
from penstock.segmentstore.transitions import Transitions
from penstock.segmentstore.writer_memory import WriterMemory

_log = logging.getLogger(__name__)


class Container:
    """Owns segments, and orders the operations on them. Arguments are borrowed; ``start`` begins background work,
    ``close`` ends it.

    State changes twice: the ``next_`` fields when an operation is queued, so that the next one is decided against them;
    the rest when its frame is durable. Readers and answers see only durable state.

    Tiering, checkpoints, freeing and erasure share ``state``. The container gives them the few functions of each other
    that they need; none of them depends on the container.
    """

    def __init__(
        self,
        index: int,
        parts: StoreParts,
        *,
        log: SharedLog,
        memory: CacheMemory,
        limits: AppendLimits,
        changes: Changes,
    ) -> None:
        """``log``, ``memory``, ``limits`` and ``changes`` are shared with the other containers of the store."""
        self.index = index
        self.parts = parts
        self.state = ContainerState(
            index,
            parts,
            log=log,
            memory=memory,
            limits=limits,
            changes=changes,
            loaded=self._loaded,
            crowded=self._crowded,
            check=self.check_online,
        )
        self.rows = self.state.rows
        self.segments = self.state.segments
        self._log = log
        self._memory = memory
        self._settings = parts.settings
        self._queue: deque[Mutation] = deque()
        self._in_flight: Sequence[Mutation] = ()
        self._taken: tuple[list[Buffer], int, int] | None = None
        """The frame of what is in flight (parts, size, time), unless the commit loop has made it itself."""
        self._log_floor: int | None = None
        """While a frame is in flight: its address, not known yet, is above this one."""
        self._wake: asyncio.Future[None] | None = None
        self._offline: ContainerOfflineError | None = None
        self.went_offline: Callable[[], None] | None = None
        """Called once, when the container stops."""
        self._tasks = TaskOwner(self._task_failed)
        self._wire()

    def _wire(self) -> None:
        """Create the parts that work on the state, each from those before it."""
        state, parts = self.state, self.parts
        self.writers = WriterMemory(state, parts.clock, parts.telemetry)
        self.catalogue = Catalogue(state, parts, self._ask_checkpoint)
        self.rows.outbox = self.catalogue
        writes = ChunkWrites(self.index, self._log.epoch)
        self.blocks = BlockReader(state, parts)
        self.leases = Leases(state, parts.clock, parts.settings, self._ask_checkpoint, self._log_leases)
        self.import_garbage = ImportGarbage(state, parts.chunks, parts.telemetry)
        self.reclaimer = Reclaimer(
            state,
            parts,
            writes=writes,
            leases=self.leases,
            garbage=self.import_garbage,
            check_online=self.check_online,
            forget_blocks=self.blocks.forget,
        )
        self.tiering = TierWriter(
            state, parts, writes, head_moved=self.reclaimer.head_moved, ask_checkpoint=self._ask_checkpoint
        )
        self.checkpointer = Checkpointer(
            state,
            parts,
            catalogue=self.catalogue,
            reclaimer=self.reclaimer,
            writers=self.writers,
            lowest_untiered=self.tiering.lowest_address,
        )
        self.steps = Transitions(
            state,
            parts.telemetry,
            tiering=self.tiering,
            reclaimer=self.reclaimer,
            leases=self.leases,
            garbage=self.import_garbage,
        )
        self.appends = Appends(
            state,
            parts,
            writers=self.writers,
            submit=self.submit,
            offline=lambda: self._offline,
            spawn=self._tasks.spawn,
        )
        self.reads = Reads(state, parts, self.blocks, serves=lambda: self._offline is None)
        self.events = EventCounter(state, self.blocks, parts.offload)
        self.eraser = Eraser(
            state,
            parts,
            writes=writes,
            blocks=self.blocks,
            tiering=self.tiering,
            reclaimer=self.reclaimer,
            checkpoint=self.checkpointer.checkpoint,
        )
        self.imports = Imports(self, parts, self.import_garbage)

    # --- life ---------------------------------------------------------------------------------------------

    async def load(self, checkpoint: ContainerRecord | None) -> None:
        """Load the rows that are not segments, before the log is replayed. ``checkpoint``: None in a new store."""
        await self.catalogue.recover(checkpoint)
        await self.writers.recover()
        await self.reclaimer.recover()

    def recovered(self, complete_upto: int, lowest_aside: int | None) -> None:
        """The log is replayed. The rows are complete up to ``complete_upto``. For segments that were set aside, data
        that only the log holds begins at ``lowest_aside``."""
        lowest = [address for address in (self.tiering.lowest_address(), lowest_aside) if address]
        self.checkpointer.recovered(complete_upto, min(lowest, default=None))

    def start(self) -> None:
        """Begin to serve. Recovery has rebuilt the state."""
        self._tasks.spawn(self._commit_loop(), f"container-{self.index}-commit")
        self._tasks.spawn(self.tiering.run(), f"container-{self.index}-tier")
        self._tasks.spawn(self.checkpointer.run(), f"container-{self.index}-checkpoint")
        if self.catalogue.enabled:
            self._tasks.spawn(self.catalogue.run(), f"container-{self.index}-catalogue")
        self._tasks.spawn(self.reclaimer.collect_orphans(), f"container-{self.index}-orphans")

    async def settle(self) -> None:
        """Answer the queued calls, and checkpoint, unless the container is offline. Waits for log and tier 2 without a
        limit. May be cancelled."""
        if self._offline is None:
            await self.drain()
            if self._offline is None:  # the log may have ended while what was queued waited for it
                await self.checkpointer.last()

    async def close(self) -> None:
        """Refuse new calls, queued calls and parked reads, and end background work."""
        await self._tasks.cancel()
        self.go_offline("container is closed", None)
        # Other stores may share the memory.
        self.segments.drop_bytes()

    async def drain(self) -> None:
        """Wait until everything queued before is durable and answered."""
        if self._queue or self._in_flight:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.submit(Mutation(None, waking(waiter)))
            await waiter

    def check_online(self) -> None:
        if self._offline is not None:
            raise ContainerOfflineError(self._offline.message, **self._offline.fields)

    def _task_failed(self, name: str, error: BaseException) -> None:
        self.go_offline(f"background work failed: {name}", error)

    @property
    def offline(self) -> ContainerOfflineError | None:
        """Why the container has stopped, or None while it serves."""
        return self._offline

    def go_offline(self, reason: str, error: BaseException | None) -> None:
        """Stop: everything queued is refused, parked reads end. What was in flight may or may not be durable."""
        if self._offline is not None:
            return
        if error is not None:
            self.parts.telemetry.add("containers_offline")
            _log.error("container went offline", extra={"container": self.index, "reason": reason}, exc_info=error)
        fields = {"container": self.index} | ({"cause": repr(error)} if error is not None else {})
        self._offline = ContainerOfflineError(reason, **fields)
        failed = [*self._in_flight, *self._queue]
        self._in_flight = ()
        self._queue.clear()
        for mutation in failed:
            mutation.withdraw(self._memory)
            self._call(mutation.done, ContainerOfflineError(self._offline.message, **self._offline.fields))
        for done in self.appends.withdraw_parked():
            self._call(done, ContainerOfflineError(self._offline.message, **self._offline.fields))
        for segment in self.segments.loaded():
            segment.wake()
        self.checkpointer.wake()
        self._tasks.cancel_others()
        if self.went_offline is not None:
            self.went_offline()

    def _loaded(self, segment: Segment) -> None:
        self.reclaimer.loaded(segment)

    def _ask_checkpoint(self) -> None:
        self.checkpointer.ask()

    def _log_leases(self, operations: Sequence[Change], done: Done) -> None:
        """See ``Leases``. The leases have changed already, so nothing is left to do when the operations are durable."""
        *before, last = operations
        self.submit(OperationMutation(None, last, lambda _: None, done, before=before))

    async def next_commit(self) -> None:
        """Request a checkpoint, and return once rows are committed or the container is offline."""
        await self.checkpointer.next_commit()

    def _crowded(self) -> None:
        """Too many segments are in memory, and none is idle: tier and checkpoint so that they become idle."""
        self.tiering.force()
        self.checkpointer.ask()

    async def parked_decided(self, name: str) -> None:
        """See ``Operations``."""
        await self.appends.parked_decided(name)

    # --- commit -------------------------------------------------------------------------------------------

    def submit(self, mutation: Mutation) -> None:
        """Queue a mutation. It is answered exactly once, after all mutations queued before it."""
        if self._offline is not None:
            mutation.withdraw(self._memory)
            error = ContainerOfflineError(self._offline.message, **self._offline.fields)
            # Never answer from within the call: the caller may not be ready yet.
            asyncio.get_running_loop().call_soon(self._call, mutation.done, error)
            return
        mutation.queued()
        self._queue.append(mutation)
        if self._rests and not self._in_flight:
            self._log.commit_soon(self)

    @property
    def _rests(self) -> bool:
        """Whether the commit loop is idle."""
        return self._wake is not None and not self._wake.done()

    def take_frame(self) -> tuple[Sequence[Buffer], int] | None:
        """See ``shared_log.Committer``."""
        if not self._queue or not self._rests or self._in_flight:
            return None
        try:
            self._in_flight = batch = take_batch(self._queue, self._settings)
            now_ms = self.parts.clock.now_ms()
            parts, size_bytes = frame_parts(batch, self.index, now_ms)
        except Exception as error:  # noqa: BLE001 - a bug in a commit stops the container, wherever the commit runs
            self.go_offline("commit failed", error)
            return None
        self._taken = parts, size_bytes, now_ms
        self._log_floor = self._log.last_address if parts else None
        return parts, size_bytes

    def committed(self, address: int) -> None:
        """See ``shared_log.Committer``."""
        taken, self._taken = self._taken, None
        self._log_floor = None
        if taken is None or self._offline is not None:
            return
        try:
            self._acknowledge(self._in_flight, address or self.state.applied_address, taken[2])
        except Exception as error:  # noqa: BLE001 - as above
            self.go_offline("commit failed", error)
        if self._queue:
            # Queued by an answer of another container, after this container's frame was taken.
            self._log.commit_soon(self)

    def commit_later(self) -> None:
        """See ``shared_log.Committer``."""
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def _commit_loop(self) -> None:
        while True:
            if not self._queue and self._taken is None:
                self._wake = asyncio.get_running_loop().create_future()
                await self._wake
                self._wake = None
                continue
            if self._taken is None:
                self._in_flight = take_batch(self._queue, self._settings)
                now_ms = self.parts.clock.now_ms()
                parts, size_bytes = frame_parts(self._in_flight, self.index, now_ms)
            else:
                (parts, size_bytes, now_ms), self._taken = self._taken, None
            batch = self._in_flight
            address = self.state.applied_address
            if parts:
                self._log_floor = self._log.last_address
                try:
                    address = await self._log.append(parts, size_bytes, vital=all(item.vital for item in batch))
                except StorageFullError as error:
                    self._refuse_all(error)
                    continue
                except (OSError, PenstockError) as error:
                    self.go_offline("log append failed", error)
                    return
                finally:
                    self._log_floor = None
            self._acknowledge(batch, address, now_ms)

    def _acknowledge(self, batch: Sequence[Mutation], address: int, now_ms: int) -> None:
        """The frame is durable: change durable state, answer in order, wake readers."""
        state, steps = self.state, self.steps
        if address > state.applied_address:
            self.checkpointer.framed(address)
            state.applied_address = address
        wake: dict[Segment, None] = {}
        for mutation in batch:
            mutation.apply(steps, address, now_ms, wake)
        self._in_flight = ()
        for mutation in batch:
            self._call(mutation.done, mutation.answer)
        for segment in wake:
            segment.wake()
        self.tiering.wake_if_urgent()
        self.checkpointer.ask_if_large()

    def _refuse_all(self, error: StorageFullError) -> None:
        """Nothing was written: refuse the batch and everything decided after it, and return to durable state."""
        self.parts.telemetry.add("log_full_refusals")
        failed = [*self._in_flight, *self._queue]
        self._in_flight = ()
        self._queue.clear()
        for mutation in failed:
            mutation.withdraw(self._memory)
        # Each once: it visits all writers of the segment, and thousands of appends may be queued for it.
        for segment in dict.fromkeys(segment for mutation in failed for segment in mutation.segments):
            self.segments.restore(segment)
        # Refusals too: the operations that they were decided against will not happen.
        for mutation in failed:
            self._call(mutation.done, StorageFullError(error.message, **error.fields))

    def _call(self, done: Done, result: object) -> None:
        try:
            done(result)
        except Exception as error:  # noqa: BLE001 - a caller's bug must neither stop the container nor stay unseen
            asyncio.get_running_loop().call_exception_handler(
                {"message": "callback of a segment operation failed", "exception": error}
            )

    def log_free_upto(self) -> int | None:
        """The address up to which the container needs no frame; None: it needs none of the known frames."""
        needed = self.checkpointer.needed_from()
        return self._log_floor if needed is None else needed - 1


async def close_all(containers: Sequence[Container], settling: Sequence[asyncio.Task[None]]) -> None:
    """End the tasks that settle containers, then close all containers together."""
    await end_tasks(settling)
    await asyncio.gather(*(container.close() for container in containers))
