"""One reader of a reader group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType

from penstock.client.reading.async_reading import AsyncBlockReader
from penstock.client.reading.blocks import Block, Event
from penstock.client.reading.fetching import SegmentFailure, SegmentFetcher
from penstock.client.reading.group_state import GroupState, SegmentKey
from penstock.client.reading.group_table import GroupTable
from penstock.client.reading.liveness import GroupTimes, SilenceTracker
from penstock.client.reading.reader import OnTruncated
from penstock.client.retry import DEADLINE_S, retrying
from penstock.client.tasks import TaskOwner
from penstock.model.errors import (
    NotFoundError,
    PenstockError,
    ReaderFencedError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    SubscriberNotFoundError,
    TruncatedError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import SegmentId, number_of
from penstock.ports import forks
from penstock.ports.clock import Clock
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import Successor
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)

Reported = Callable[[GroupState, bool], Awaitable[None]]
"""Called after each report of a reader. The flag is True if the reader has nothing to read."""


async def is_deleted(controller: ControlPlane, rng: Rng, stream: StreamName, segments: Iterable[SegmentId]) -> bool:
    """Whether the stream that has, or had, these segments was deleted. Another stream may have its name now.

    Raises: SegmentNotFoundError if the stream that exists should have had them; CorruptDataError, UnavailableError.
    """
    wanted = list(segments)
    try:
        try:
            await retrying(lambda: controller.layout.ranges(stream, wanted), rng)
        except SegmentNotFoundError:
            first = await retrying(lambda: controller.layout.of_epoch(stream, 0), rng)
            # Streams of one name never share a number: those of an earlier stream are all lower.
            lowest = min(number_of(item.segment) for item in first)
            if any(number_of(segment) < lowest for segment in wanted):
                return True
            raise
    except (ScopeNotFoundError, StreamNotFoundError):
        return True
    return False


def log_departure(group: str, stream: StreamName, unread: Mapping[SegmentKey, int]) -> None:
    """Log that a deleted stream has left the group; a warning if some of its segments were not read to their end."""
    if not unread:
        log.info("deleted stream left its reader group", extra={"group": group, "stream": str(stream)})
        return
    # The segment may end at the last position: then everything was read, but not reported.
    log.warning(
        "stream was deleted before its reader group had reported all of it as read; data after the positions is lost",
        extra={"group": group, "stream": str(stream), "positions": {key[1]: at for key, at in sorted(unread.items())}},
    )


class AsyncGroupReader(AsyncBlockReader):
    """Reads a share of the group's segments; the group's readers together read every event, in order per key.

    At least once: an event counts as read when the next one is requested, or when ``async with`` ends without an
    exception. A block or Arrow batch counts as a whole, unless the program iterates the block: then its events count
    one by one. Events that a dead reader had not reported go to another reader. Every ``refresh_s`` the reader reports,
    takes free segments, gives up a surplus, and removes readers that have not reported for ``lease_s``. A newer reader
    of the same name replaces it: then it returns no more events and raises ReaderFencedError.

    A stream that is deleted leaves the group, and the reader continues with the others. If the group had not read all of it,
    a warning is logged with the positions. Iteration ends when all streams are sealed and read, or deleted. Not for several
    tasks at once.
    """

    def __init__(
        self,
        name: str,
        config: ReaderGroupConfig,
        table: GroupTable,
        segments: SegmentService,
        controller: ControlPlane,
        clock: Clock,
        rng: Rng,
        reported: Reported,
        *,
        times: GroupTimes,
        on_truncated: OnTruncated,
    ) -> None:
        self.name = name
        self._config = config
        self._table = table
        self._controller = controller
        self._clock = clock
        self._rng = rng
        self._reported = reported
        self._refresh_s = times.refresh_s
        self._fetcher = SegmentFetcher(segments, rng, skip_truncated=on_truncated == "skip")
        self._done_with: dict[SegmentKey, int] = {}
        self._ended: dict[SegmentKey, Sequence[Successor]] = {}
        self._ending: SegmentKey | None = None
        self._cut_short = False  # The segment that ends was deleted before it was read to its end.
        self._failure: SegmentFailure | None = None
        self._deleted: dict[StreamName, None] = {}
        self._current: Block | None = None
        self._events: Iterator[Event] = iter(())
        self._silence = SilenceTracker(lease_s=times.lease_s, refresh_s=times.refresh_s)
        self._incarnation = ""
        # Chosen before it is used: a cancelled change may have joined the group under this number.
        self._next_incarnation = rng.uuid().hex
        self._finished = False
        self._idle = False
        self._crash: BaseException | None = None
        self._syncing = asyncio.Lock()
        self._tasks = TaskOwner(self._crashed)

    async def open(self) -> None:
        """Join, and replace an older reader of the same name.

        Raises ReaderGroupNotFoundError, UnavailableError; SubscriberNotFoundError (a rule or a person has ended the group's
        subscription, so no data is held for its readers).
        """
        await self._check_subscribed()
        self._incarnation = incarnation = self._rng.uuid().hex
        await self._table.update(lambda state: state.join(self.name, incarnation))
        await self.sync()
        self._tasks.start(self._keep_alive())

    async def _check_subscribed(self) -> None:
        config = self._config
        if config.retention is ReaderGroupRetention.NONE:
            return
        for stream in sorted(config.start_cuts):
            try:
                names = await retrying(partial(self._controller.subscribers.list, stream), self._rng)
            except StreamNotFoundError:
                continue  # A read of the stream reports the error.
            if config.full_name not in names:
                raise SubscriberNotFoundError(
                    "the group's subscription was removed, or was idle for too long, and no longer holds data; create "
                    "the group again to register the subscription again",
                    subscriber=config.full_name,
                    stream=str(stream),
                )

    def _crashed(self, error: BaseException) -> None:
        self._crash = error
        self._fetcher.wake()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self.sync()

    # --- sharing -------------------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Report to the group now, and take or give up segments.

        Raises ReaderGroupNotFoundError, ReaderFencedError, UnavailableError. Cancelled: the group may know the report, and
        the next call continues from there.
        """
        async with self._syncing:
            ended, deleted = dict(self._ended), {stream: dict[SegmentKey, int]() for stream in self._deleted}
            try:
                # A running reader waits for space: a disk that is full for a moment must not end it.
                state, lost = await self._table.update(partial(self._change, ended, deleted), full_s=DEADLINE_S)
            except ReaderFencedError as error:
                self._give_up(error)
                raise
            for key in ended:
                del self._ended[key]
            for stream, unread in deleted.items():
                del self._deleted[stream]
                log_departure(self._table.full_name, stream, unread)
            if lost:
                self._incarnation, self._next_incarnation = self._next_incarnation, self._rng.uuid().hex
            others = {name: (item.incarnation, item.beat) for name, item in state.members.items() if name != self.name}
            self._silence.observe(others, asyncio.get_running_loop().time())
            self._follow(state, lost=lost)
        await self._reported(state, self._idle)

    def _positions(self) -> dict[SegmentKey, int]:
        positions = dict(self._done_with)
        if self._current is not None:
            positions[self._current.stream, self._current.segment] = self._current.position
        return positions

    def _change(
        self,
        ended: dict[SegmentKey, Sequence[Successor]],
        deleted: dict[StreamName, dict[SegmentKey, int]],
        state: GroupState,
    ) -> bool:
        """Report, or join again where the group has removed us, as the next incarnation; then True.

        ``deleted``: these streams leave the group. What the group had not read of them is added to it.

        Raises ReaderFencedError.
        """
        self._begin_checkpoint(state)
        lost = not state.has(self.name, self._incarnation)
        if not lost:
            state.report(self.name, self._positions(), self._incarnation)
            for key, successors in ended.items():
                state.finish(self.name, key, successors)
        elif state.fences(self.name, self._next_incarnation):
            raise ReaderFencedError(
                "another reader of this name has joined the group; give each reader its own name",
                group=self._table.full_name,
                reader=self.name,
            )
        elif self.name not in state.members:
            # Otherwise an earlier try made this change, and its answer was lost or the call cancelled: positions from before
            # no longer count.
            state.join(self.name, self._next_incarnation)
        for stream, unread in deleted.items():
            # Repeats after a lost answer add nothing. What was read to its end here is not lost.
            unread.update({key: at for key, at in state.remove_stream(stream).items() if not self._is_read(key)})
        for name in self._dead(state):
            log.warning("reader is taken to be dead", extra={"group": self._table.full_name, "reader": name})
            state.leave(name)
        surplus = state.surplus(self.name)
        if surplus:
            state.release(self.name, self._spare(state)[:surplus])
        else:
            state.acquire(self.name)
        return lost

    def _is_read(self, key: SegmentKey) -> bool:
        """Whether this reader has read the segment to its end."""
        return (key == self._ending and not self._cut_short) or self._fetcher.is_read(*key)

    def _begin_checkpoint(self, state: GroupState) -> None:
        now_ms = self._clock.now_ms()
        interval_ms = self._config.checkpoint_interval_ms
        due = not 0 <= now_ms - state.last_ms < interval_ms
        if self._config.retention is ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT and due:
            state.start_checkpoint(now_ms)

    def _spare(self, state: GroupState) -> list[SegmentKey]:
        """Segments that can be given up now: not the one whose events are being handed out. The youngest first."""
        current = None if self._current is None else (self._current.stream, self._current.segment)
        held = state.members[self.name].held
        return [key for key in sorted(held, reverse=True) if key not in (current, self._ending)]

    def _dead(self, state: GroupState) -> list[str]:
        now = asyncio.get_running_loop().time()
        return [
            name
            for name, member in state.members.items()
            if name != self.name and self._silence.is_dead(name, (member.incarnation, member.beat), now)
        ]

    def _give_up(self, error: BaseException) -> None:
        """Return no more events: the segments belong to another reader."""
        for key in list(self._done_with):
            self._drop(key)
        self._ended.clear()
        self._crashed(error)

    def _follow(self, state: GroupState, *, lost: bool) -> None:
        """Read what the state says that we hold, and nothing else."""
        held, here = state.members[self.name].held, self._positions()
        for key in list(self._done_with):
            # The state is ahead: a change whose answer was lost gave the segment up, and another reader then read on.
            if lost or key not in held or held[key] > here[key]:
                self._drop(key)
        for key, offset in held.items():
            if key not in self._done_with:
                self._done_with[key] = offset
                self._fetcher.add(*key, offset)
        self._finished = not (state.free or state.future or any(other.held for other in state.members.values()))
        self._fetcher.wake()

    def _drop(self, key: SegmentKey) -> None:
        del self._done_with[key]
        self._fetcher.remove(*key)
        if self._ending == key:
            self._ending = None
        if self._failure is not None and (self._failure.stream, self._failure.segment) == key:
            self._failure = None
        if self._current is not None and (self._current.stream, self._current.segment) == key:
            self._current = None

    def assigned(self) -> list[SegmentKey]:
        """The segments that this reader reads now."""
        return sorted(self._done_with)

    # --- reading -------------------------------------------------------------------------------------------

    async def take_block(self) -> Block | None:
        """See ``AsyncBlockReader``.

        Raises: TruncatedError, ReaderGroupNotFoundError, ReaderFencedError, CorruptDataError, UnavailableError. Cancelled:
        nothing is lost.
        """
        self._settle_current()
        self._events = iter(())
        while True:
            if self._crash is not None:
                raise self._crash
            if self._ending is not None:
                await self._end_segment(self._ending)
                continue
            if self._failure is not None:
                await self._judge(self._failure)
                continue
            item = self._fetcher.take()
            if item is None:
                if self._finished:
                    return None
                self._idle = True
                try:
                    await self._fetcher.arrived()
                finally:
                    self._idle = False
            elif isinstance(item, Block):
                self._current = item
                return item
            elif isinstance(item, SegmentFailure):
                self._failure = item
            else:
                self._ending, self._cut_short = (item.stream, item.segment), item.truncated

    def holds(self, block: Block) -> bool:
        """Whether the block last handed out is still this reader's."""
        return self._current is block

    def _settle_current(self) -> None:
        if self._current is not None:
            self._done_with[self._current.stream, self._current.segment] = self._current.end_offset
            self._current = None

    async def _end_segment(self, key: SegmentKey) -> None:
        try:
            found = await retrying(partial(self._controller.layout.successors, *key), self._rng)
        except (ScopeNotFoundError, StreamNotFoundError, SegmentNotFoundError):
            # ``is_deleted`` decides whether it was deleted: damaged metadata can make a single segment unknown.
            if not await is_deleted(self._controller, self._rng, key[0], [key[1]]):
                raise
            await self._leave_stream(key[0])
            return
        if self._ending == key:  # else another reader took it meanwhile
            self._ended[key] = found
            self._ending = None
            await self.sync()

    async def _judge(self, failure: SegmentFailure) -> None:
        """Raise the error, unless the stream was deleted: then the stream leaves the group."""
        error, segments = failure.error, [failure.segment]
        if isinstance(error, NotFoundError | TruncatedError) and await is_deleted(
            self._controller, self._rng, failure.stream, segments
        ):
            await self._leave_stream(failure.stream)
            return
        self._failure = None
        raise error

    async def _leave_stream(self, stream: StreamName) -> None:
        self._deleted[stream] = None
        await self.sync()

    def usable(self, block: Block) -> Iterator[Event]:
        """The events of the block, as long as it is this reader's."""
        for event in block:
            if self._fetcher.is_inherited:
                raise forks.refusal()
            if not self.holds(block):
                return  # the group took the segment from this reader; another one continues it
            yield event

    # --- leaving -------------------------------------------------------------------------------------------

    async def close(self, *, clean: bool = True) -> None:
        """Leave the group; its other readers continue where this one was. ``clean``: the program has processed all
        events.

        Raises UnavailableError if the departure could not be reported: the group removes the reader after ``lease_s``.
        """
        if self._fetcher.is_inherited:
            return
        await self._tasks.close()
        await self._fetcher.close()
        if clean and self._current is not None:
            self._current.finish_handed_out()
        try:
            async with self._syncing:
                await self._table.update(self._leave)
        except NotFoundError:
            return  # the group was deleted, and with it this reader's membership

    def _leave(self, state: GroupState) -> None:
        if state.has(self.name, self._incarnation):
            state.report(self.name, self._positions(), self._incarnation)
            for key, successors in self._ended.items():
                state.finish(self.name, key, successors)
            state.leave(self.name)
        elif state.has(self.name, self._next_incarnation):
            state.leave(self.name)  # A cancelled call joined us again. Positions from before no longer count.

    async def abandon(self) -> None:
        """Stop without a report, as in a crash: the group removes the reader after ``lease_s``."""
        if self._fetcher.is_inherited:
            return
        await self._tasks.close()
        await self._fetcher.close()

    async def __aenter__(self) -> AsyncGroupReader:
        try:
            await self.open()
        except BaseException:
            await self.abandon()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(clean=kind is None)
        except PenstockError:
            if kind is None:
                raise
            log.warning("reader could not leave its group", extra={"group": self._table.full_name, "reader": self.name})
