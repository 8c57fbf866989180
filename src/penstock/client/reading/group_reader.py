"""One reader of a reader group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import NoReturn

from penstock.client.processing.positions import PositionCommitter
from penstock.client.reading.blocks import Block, Event
from penstock.client.reading.commits import Progress
from penstock.client.reading.fetching import SegmentFailure, SegmentFetcher
from penstock.client.reading.group_state import Ends, GroupState, Positions, SegmentKey
from penstock.client.reading.group_streams import check_subscribed, is_deleted, log_departure
from penstock.client.reading.group_table import GroupTable
from penstock.client.reading.liveness import Beat, GroupTimes, SilenceTracker
from penstock.client.reading.rebalancing import Change, GroupReaderOptions, ListeningReader
from penstock.client.retry import DEADLINE_S, retrying
from penstock.client.tasks import TaskOwner
from penstock.model.errors import (
    InvalidArgumentError,
    NotCommittedError,
    NotFoundError,
    PenstockError,
    ReaderFencedError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StreamNotFoundError,
    TruncatedError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.ports import forks
from penstock.ports.clock import Clock
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.plane import ControlPlane
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)

Reported = Callable[[GroupState, bool], Awaitable[None]]
"""Called after each report of a reader. The flag is True if the reader has nothing to read."""


class AsyncGroupReader(ListeningReader, PositionCommitter):
    """Reads a share of the group's segments; the group's readers together read every event, in order per key.

    At least once: an event counts as processed when the next one is requested, when it is committed, or when
    ``async with`` ends without an exception. A block or Arrow batch counts as a whole, unless the program iterates the
    block: then its events count one by one. With ``auto_commit=False`` only ``commit`` counts. Every ``refresh_s`` the
    reader records what was processed, takes free segments, gives up a surplus, and removes readers that have not
    reported for ``lease_s``; others then read again what those had not recorded. A newer reader of the same name
    replaces it: then it returns no more events and raises ReaderFencedError.

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
        options: GroupReaderOptions,
    ) -> None:
        super().__init__(options)
        self.name = name
        self._config = config
        self._table = table
        self._controller = controller
        self._clock = clock
        self._rng = rng
        self._reported = reported
        self._refresh_s = times.refresh_s
        self._segments = segments
        self._fetcher = SegmentFetcher(
            segments, rng, skip_truncated=options.on_truncated == "skip", append_times=options.append_times
        )
        self._progress = Progress(auto=options.auto_commit)
        self._revocable: list[SegmentKey] = []  # what the group's state says that this reader holds
        self._failure: SegmentFailure | None = None
        self._deleted: dict[StreamName, None] = {}
        self._silence = SilenceTracker(lease_s=times.lease_s, refresh_s=times.refresh_s)
        self._incarnation = ""
        # Chosen before it is used: a cancelled change may have joined the group under this number.
        self._next_incarnation = rng.uuid().hex
        self._finished = False
        self._closed = False
        self._has_lost = False  # A segment with events that wait for a commit.
        self._idle = False
        self._crash: BaseException | None = None
        self._syncing = asyncio.Lock()
        self._tasks = TaskOwner(self._crashed)

    async def open(self) -> None:
        """Join, and replace an older reader of the same name.

        Raises ReaderGroupNotFoundError, UnavailableError; SubscriberNotFoundError (a rule or a person has ended the group's
        subscription, so no data is held for its readers).
        """
        await check_subscribed(self._controller, self._rng, self._config)
        self._incarnation = incarnation = self._rng.uuid().hex
        await self._table.update(lambda state: state.join(self.name, incarnation))
        await self.sync()
        self._tasks.start(self._keep_alive())

    def _crashed(self, error: BaseException) -> None:
        self._crash = error
        self._fetcher.wake()

    async def _keep_alive(self) -> None:
        while True:
            await asyncio.sleep(self._refresh_s)
            await self.sync()

    # --- sharing -------------------------------------------------------------------------------------------

    async def sync(self) -> None:
        """Report to the group now: record what was processed, show that this reader lives, take or give up segments.

        It happens every ``refresh_s`` by itself. It does not count the last event that was returned: ``commit`` does.
        Raises ReaderGroupNotFoundError, ReaderFencedError, UnavailableError; InvalidArgumentError (closed). Cancelled: the
        group may know the report, and the next call continues from there.
        """
        self._check_usable()
        async with self._syncing:
            state = await self._report()
        await self._reported(state, self._idle)

    async def _report(self, marked: Positions | None = None) -> GroupState:
        """As ``sync``, with the lock. ``marked``: positions to commit; NotCommittedError if the group has given some of these
        segments up. Then nothing was reported, and the next report drops them."""
        ended = self._progress.finishable()
        deleted = {stream: dict[SegmentKey, int]() for stream in self._deleted}
        try:
            # A running reader waits for space: a disk that is full for a moment must not end it.
            state, lost = await self._table.update(
                partial(self._change, ended, deleted, marked or {}), full_s=DEADLINE_S
            )
        except ReaderFencedError as error:
            self._give_up(error)
            raise
        for key in ended:
            self._progress.ended.pop(key, None)
        for stream, unread in deleted.items():
            del self._deleted[stream]
            log_departure(self._table.full_name, stream, unread)
        if lost:
            self._incarnation, self._next_incarnation = self._next_incarnation, self._rng.uuid().hex
        self._silence.observe(self._others(state), asyncio.get_running_loop().time())
        self._follow(state, ended, lost=lost)
        return state

    def _change(
        self,
        ended: Ends,
        deleted: dict[StreamName, dict[SegmentKey, int]],
        marked: Positions,
        state: GroupState,
    ) -> bool:
        """Report, or join again where the group has removed us, as the next incarnation; then True.

        ``deleted``: these streams leave the group. What the group had not read of them is added to it.

        Raises ReaderFencedError; NotCommittedError (``marked`` cannot be committed).
        """
        if self._config.retention is ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT:
            state.start_checkpoint_if_due(self._clock.now_ms(), self._config.checkpoint_interval_ms)
        lost = not state.has(self.name, self._incarnation)
        if not lost:
            recorded = self._progress.recordable()
            state.report(self.name, recorded, self._incarnation)
            state.finish_all(self.name, ended, recorded)
            if not state.covers(marked):
                raise self._not_committed()  # An earlier report was cancelled, and has given a segment up.
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
        for name in self._silence.dead(self._others(state), asyncio.get_running_loop().time()):
            log.warning(
                "reader sent no heartbeat and is taken to be dead",
                extra={"group": self._table.full_name, "reader": name},
            )
            state.leave(name)
        self._rebalancing.share(state, self.name, self._progress.spare(state.members[self.name].held))
        return lost

    def _is_read(self, key: SegmentKey) -> bool:
        """Whether this reader has read the segment to its end."""
        return (key == self._progress.ending and not self._progress.cut_short) or self._fetcher.is_read(*key)

    def _given_back(self) -> list[SegmentKey]:
        """Segments that the program may be asked to give up, the youngest first. It may commit them in its callback."""
        progress = self._progress
        return [
            key
            for key in sorted(self._revocable, reverse=True)
            if key in progress.read_to and key not in progress.ended
        ]

    def _others(self, state: GroupState) -> Mapping[str, Beat]:
        return {name: (item.incarnation, item.beat) for name, item in state.members.items() if name != self.name}

    def _give_up(self, error: BaseException) -> None:
        """Return no more events: the segments belong to another reader."""
        self._drop_all()
        self._progress.ended.clear()
        self._rebalancing.follow(())
        self._crashed(error)

    def _follow(self, state: GroupState, ended: Collection[SegmentKey], *, lost: bool) -> None:
        """Read what the state says that we hold, and nothing else. ``ended``: what this report finished."""
        progress = self._progress
        held, here = dict(state.members[self.name].held), progress.positions()
        self._revocable = list(held)
        recorded, surplus = state, state.surplus(self.name)
        if not lost and (waiting := progress.commits.waiting(progress.ended)):
            # Nobody else can read what follows a segment that only waits for a commit: this reader reads on there.
            state = GroupState.decode(state.encode())
            held |= state.finish_all(self.name, waiting, None)
        for key in list(progress.read_to):
            # The state is ahead: a change whose answer was lost gave the segment up, and another reader then read on.
            if lost or key not in held or held[key] > here[key]:
                if state.reads(key[0]) and not self._is_recorded(recorded, key):
                    given_up = not lost and self._rebalancing.gives_up(key)
                    self._has_lost, self._has_yielded = self._has_lost or not given_up, self._has_yielded or given_up
                self._drop(key)
        for key, offset in held.items():
            if key not in progress.read_to:
                progress.begin(key, offset)
                self._fetcher.add(*key, offset)
        self._rebalancing.follow(progress.read_to, ended=ended, rejoined=lost, surplus=surplus)
        self._finished = not (state.free or state.future or any(other.held for other in state.members.values()))
        self._fetcher.wake()

    def _is_recorded(self, state: GroupState, key: SegmentKey) -> bool:
        """Whether the group knows all events of the segment as processed that the program got. A commit that has marked them
        and waits is not enough."""
        returned = self._progress.returned(key)
        return self._progress.commits.covers(key, returned) and (
            not self._progress.commits.is_explicit or state.covers({key: returned})
        )

    def _drop(self, key: SegmentKey) -> None:
        self._progress.drop(key)
        self._fetcher.remove(*key)
        if self._failure is not None and (self._failure.stream, self._failure.segment) == key:
            self._failure = None

    def _drop_all(self) -> None:
        for key in list(self._progress.read_to):
            self._drop(key)

    def assigned(self) -> list[SegmentKey]:
        """The segments that this reader reads now."""
        return sorted(self._progress.read_to)

    # --- commits -------------------------------------------------------------------------------------------

    async def commit(self, event: Event | None = None) -> None:
        """Record with the group that the program has processed all events that were returned, the last one included.

        ``event``: only this event and those before it in its segment. When this returns, a reader that takes over begins
        after them, also after a crash. What a block, an iteration or a batch returned counts as in the reader itself.
        Raises:
            NotCommittedError: The group has given a segment to another reader, because this one did not report for
                ``lease_s``; or this reader has not returned the event. Nothing was recorded. All events since the last
                commit are returned again, by this reader or another.
            InvalidArgumentError: This is no event of a reader, or the reader is closed. Nothing was recorded.
            ReaderFencedError, ReaderGroupNotFoundError: As ``sync``.
            UnavailableError: It may be recorded; the reader continues to try with each report.

        Cancelled: as UnavailableError. Source: docs/design/0031-reader-groups.md, "Commits".
        """
        self._check_usable()
        self._check_no_transaction()
        if self._crash is not None:
            raise self._crash
        if not self._incarnation and event is None:
            return  # Not opened: it has returned nothing.
        async with self._syncing:
            # A report that had the lock may have lost segments.
            state = await self._commit(event)
        await self._reported(state, self._idle)

    async def _commit(self, event: Event | None) -> GroupState:
        if self._crash is not None:
            raise self._crash
        if event is None and self._has_lost:
            await self._refuse_commit(event)
        incarnation, marked = self._incarnation, self._progress.mark(event)
        if marked is None:
            raise self._not_committed()
        if event is None:
            self._has_yielded = False
        try:
            state = await self._report(marked)
        except NotCommittedError:
            await self._refuse_commit(event)
        if self._incarnation != incarnation:
            self._has_lost &= event is not None
            raise self._not_committed()
        return state

    async def _refuse_commit(self, event: Event | None) -> NoReturn:
        """Begin again after the last commit: the program gives up its work since then, or in the segment of the event."""
        self._has_lost = (
            True  # until the group knows; and after a commit of one event its earlier events may wait for one
        )
        if event is None:
            self._drop_all()
        else:
            self._drop((event.stream, event.segment))
        await self._report()
        if event is None:
            self._has_lost = self._has_yielded = False
        raise self._not_committed()

    def _not_committed(self) -> NotCommittedError:
        return NotCommittedError(
            "nothing was committed: this reader has lost the segment; its events since the last commit are returned again",
            group=self._table.full_name,
            reader=self.name,
        )

    def _check_usable(self) -> None:
        if self._fetcher.is_inherited:
            raise forks.refusal()
        if self._closed:
            raise InvalidArgumentError("reader is closed", group=self._table.full_name, reader=self.name)

    # --- reading -------------------------------------------------------------------------------------------

    async def take(self) -> Block | Change | None:
        """See ``ListeningReader``.

        Raises: TruncatedError, ReaderGroupNotFoundError, ReaderFencedError, CorruptDataError, UnavailableError. Cancelled:
        nothing is lost.
        """
        self.check_may_read()
        self._progress.settle_current()
        self._events = iter(())
        while True:
            if self._rebalancing.releasing:  # its report was cancelled, or failed
                await self.sync()
            if (change := self._rebalancing.next(self._given_back())) is not None:
                return change
            if self._crash is not None:
                raise self._crash
            if self._progress.ending is not None:
                await self._end_segment(self._progress.ending)
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
                self._progress.current = item
                return item
            elif isinstance(item, SegmentFailure):
                self._failure = item
            else:
                self._progress.ending, self._progress.cut_short = (item.stream, item.segment), item.truncated

    def holds(self, block: Block) -> bool:
        """Whether the block last handed out is still this reader's."""
        return self._progress.current is block

    async def _end_segment(self, key: SegmentKey) -> None:
        try:
            found = await retrying(partial(self._controller.layout.successors, *key), self._rng)
        except (ScopeNotFoundError, StreamNotFoundError, SegmentNotFoundError):
            # ``is_deleted`` decides whether it was deleted: damaged metadata can make a single segment unknown.
            if not await is_deleted(self._controller, self._rng, key[0], [key[1]]):
                raise
            await self._leave_stream(key[0])
            return
        if self._progress.ending == key:  # else another reader took it meanwhile
            self._progress.ended[key] = [item.range for item in found]
            self._progress.ending = None
            await self.sync()

    async def _judge(self, failure: SegmentFailure) -> None:
        """Raise the error, unless the stream was deleted: then the stream leaves the group."""
        error, segments = failure.error, [failure.segment]
        if isinstance(error, NotFoundError | TruncatedError) and await is_deleted(
            self._controller, self._rng, failure.stream, segments
        ):
            await self._leave_stream(failure.stream)
            return
        # It stays: nobody fetches this segment any more, and other readers get it only once this one has left.
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

    def is_left(self) -> bool:
        """See ``ListeningReader``."""
        return self._closed or self._fetcher.is_inherited

    async def leave(self, *, clean: bool) -> None:
        """As ``close``, without a callback."""
        if self._fetcher.is_inherited:
            return
        self._closed = True
        await self._tasks.close()
        await self._fetcher.close()
        if clean and self._progress.current is not None:
            self._progress.current.finish_returned()
        try:
            async with self._syncing:
                await self._table.update(self._leave)
        except NotFoundError:
            return  # the group was deleted, and with it this reader's membership

    def _leave(self, state: GroupState) -> None:
        if state.has(self.name, self._incarnation):
            recorded = self._progress.recordable()
            state.report(self.name, recorded, self._incarnation)
            state.finish_all(self.name, self._progress.finishable(), recorded)
            state.leave(self.name)
        elif state.has(self.name, self._next_incarnation):
            state.leave(self.name)  # A cancelled call joined us again. Positions from before no longer count.

    async def abandon(self) -> None:
        """Stop without a report, as in a crash: the group removes the reader after ``lease_s``."""
        if self._fetcher.is_inherited:
            return
        self._closed = True
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
