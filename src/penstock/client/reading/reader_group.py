"""Reader groups: several readers share streams; their progress can hold and release data."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar, Unpack, overload

from penstock.client.moments import BothServices
from penstock.client.options import check_printable, cut_of, number
from penstock.client.reading.cursor import resolve_cut
from penstock.client.reading.group_reader import AsyncGroupReader
from penstock.client.reading.group_state import GroupState, SegmentKey, initial_state
from penstock.client.reading.group_streams import is_deleted, log_departure
from penstock.client.reading.group_table import GroupTable
from penstock.client.reading.liveness import RENEWAL_MAX_S, GroupTimes, renewal_s
from penstock.client.reading.reader import OnTruncated
from penstock.client.reading.rebalancing import Callback, GroupReaderArguments, GroupReaderOptions
from penstock.client.retry import DEADLINE_S, RETRYABLE, Backoff, retrying
from penstock.client.serializing.events import form_of
from penstock.client.serializing.serializer import Serializer
from penstock.client.serializing.typed_group_reader import AsyncTypedGroupReader
from penstock.model.cuts import StreamCut
from penstock.model.errors import (
    DeadlineExceededError,
    GenerationMismatchError,
    InvalidArgumentError,
    InvalidCutError,
    NotFoundError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    SegmentNotFoundError,
    StorageFullError,
    StreamNotFoundError,
    UnsupportedError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ReaderGroupRetention
from penstock.model.segments import KeyRange
from penstock.ports.clock import Clock
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.plane import ControlPlane
from penstock.ports.control.watermarks import TimeWindow
from penstock.ports.data.service import SegmentService
from penstock.ports.rng import Rng

log = logging.getLogger(__name__)

T = TypeVar("T")

GroupRetention: TypeAlias = Literal["none", "manual", "automatic"]
"""When the progress of a group releases data of its streams."""

RETENTION_WORDS: dict[GroupRetention, ReaderGroupRetention] = {
    "none": ReaderGroupRetention.NONE,
    "manual": ReaderGroupRetention.MANUAL,
    "automatic": ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT,
}


def retention_of(word: GroupRetention) -> ReaderGroupRetention:
    """The retention type named "none", "manual" or "automatic". Raises InvalidArgumentError."""
    found = RETENTION_WORDS.get(word)
    if found is None:
        raise InvalidArgumentError("retention of a reader group must be none, manual or automatic", retention=word)
    return found


def _check_name(name: str) -> None:
    """Raise InvalidArgumentError unless it is the name of a reader."""
    if not name or not isinstance(name, str):
        raise InvalidArgumentError("a reader needs a name", name=repr(name)[:60])
    check_printable("name", name)


class AsyncReaderGroup:
    """A reader group that exists. ``retention`` says when its progress releases data of its streams:

    none: never; manual: when ``publish`` is called; automatic: at each completed checkpoint, which its readers begin every
    ``checkpoint_interval_ms`` while they read. Registering published the start, so no data after it is released before
    it is read.
    """

    def __init__(
        self,
        config: ReaderGroupConfig,
        segments: SegmentService,
        controller: ControlPlane,
        clock: Clock,
        rng: Rng,
        times: GroupTimes,
    ) -> None:
        self.config = config
        self._segments = segments
        self._controller = controller
        self._clock = clock
        self._rng = rng
        self._times = times
        self._renew_at = 0.0
        self._table = GroupTable(BothServices(segments=segments, controller=controller), rng, config)

    def __repr__(self) -> str:
        streams = [str(name) for name in self.streams]
        words = {value: word for word, value in RETENTION_WORDS.items()}
        return f"<ReaderGroup {self.config.full_name} of {', '.join(streams)}, retention {words[self.retention]}>"

    @property
    def scope(self) -> str:
        """The scope that the group is in."""
        return self.config.scope

    @property
    def name(self) -> str:
        """The group's name, without its scope."""
        return self.config.name

    @property
    def streams(self) -> Sequence[StreamName]:
        """The streams that the group reads, sorted."""
        return sorted(self.config.start_cuts)

    @property
    def retention(self) -> ReaderGroupRetention:
        """When its progress releases data of its streams."""
        return self.config.retention

    async def initialise(self) -> None:
        """Store the start positions, unless that was done before. A stream that was deleted leaves the group.

        Raises InvalidCutError, StreamNotFoundError (all streams were deleted before the group began), GenerationMismatchError
        (a stream was deleted and created again since then).
        """
        starts: dict[StreamName, StreamCut] = {}
        ranges: dict[SegmentKey, KeyRange] = {}
        deleted: dict[StreamName, NotFoundError] = {}
        for stream, cut in self.config.start_cuts.items():
            try:
                start = await retrying(partial(resolve_cut, self._controller, stream, cut), self._rng)
                found = partial(self._controller.layout.ranges, stream, list(start.positions))
                known = await retrying(found, self._rng)
            except SegmentNotFoundError as error:
                raise GenerationMismatchError(
                    "stream was deleted and created anew since the reader group was made; delete the group and make it again",
                    group=self.config.full_name,
                    stream=str(stream),
                ) from error
            except (ScopeNotFoundError, StreamNotFoundError) as error:
                deleted[stream] = error
                continue
            starts[stream] = start
            ranges.update({(stream, segment): keys for segment, keys in known.items()})
        if deleted and await self._has_begun():
            await self._leave_streams(deleted)
        elif deleted and not starts:
            raise next(iter(deleted.values()))
        else:
            for stream in deleted:
                unread = {(stream, segment): at for segment, at in self.config.start_cuts[stream].positions.items()}
                log_departure(self.config.full_name, stream, unread)
            await self._table.create(initial_state(str(self.config.id), starts, ranges), self._is_current)

    async def _has_begun(self) -> bool:
        try:
            await self._table.load()
        except ReaderGroupNotFoundError:
            return False
        return True

    async def _leave_streams(self, streams: Iterable[StreamName]) -> None:
        """Take deleted streams out of the group's state."""
        unread: dict[StreamName, dict[SegmentKey, int]] = {stream: {} for stream in streams}

        def leave(state: GroupState) -> set[StreamName]:
            here = set(state.cuts())
            for stream, positions in unread.items():
                positions.update(state.remove_stream(stream))
            return here

        _, were_here = await self._table.update(leave)
        for stream, positions in unread.items():
            if positions or stream in were_here:
                log_departure(self.config.full_name, stream, positions)

    async def _is_current(self) -> bool:
        config = self.config
        found = await retrying(lambda: self._controller.groups.get(config.scope, config.name), self._rng)
        return found.id == config.id

    @overload
    def reader(
        self, name: str, *, serializer: None = None, **options: Unpack[GroupReaderArguments]
    ) -> AsyncGroupReader: ...

    @overload
    def reader(
        self, name: str, *, serializer: Serializer[T], records: bool = False, **options: Unpack[GroupReaderArguments]
    ) -> AsyncTypedGroupReader[T]: ...

    def reader(
        self,
        name: str,
        *,
        serializer: Serializer[Any] | None = None,
        records: bool = False,
        on_truncated: OnTruncated = "raise",
        auto_commit: bool = True,
        append_times: bool = False,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> AsyncGroupReader | AsyncTypedGroupReader[Any]:
        """A reader that has not joined yet: use it in a ``with`` or ``async with`` block. A second reader of the
        ``name`` replaces the first, which raises ReaderFencedError.

        Args:
            name: A text that no other running reader of the group has.
            serializer: None, or what decodes each event: the reader then returns events with a ``value``.
            records: With a serializer: the values are those of records.
            on_truncated: If data was truncated before it was read, "raise" TruncatedError or "skip" it.
            auto_commit: An event counts as processed when the next one is requested, and is recorded every ``refresh_s``
                of the group. False: only ``commit`` records what was processed. A segment with uncommitted events stays
                with its reader until the next commit, unless the reader is dead.
            append_times: Ask the store when the events were appended: ``Event.appended_at``. One more request per block.
            on_assigned: Called with the segments that the reader has got, before it returns an event of them.
            on_revoked: Called with segments that the group gives to another reader, before they are released: it may still
                commit. Also on a clean close, with all segments.
            on_lost: Called with segments that this reader has lost: it was taken for dead or replaced, or the stream
            was deleted. A commit is refused. Also called if an exception ends the ``with`` block.
                The three are called within the calls that read, ``close`` and the end of ``with``, in the thread or task of
                the program, with a list of (stream, segment). Those of an asynchronous reader may be coroutine functions.
                What they raise is raised by that call; after ``on_revoked`` the segments then stay, and it is called again.
                A callback cannot read. A segment that was read to its end is not reported.
        Raises:
            InvalidArgumentError: Any other argument.
        """
        _check_name(name)
        form = form_of(serializer, records=records)
        reader = AsyncGroupReader(
            name,
            self.config,
            self._table,
            self._segments,
            self._controller,
            self._clock,
            self._rng,
            self._reported,
            times=self._times,
            options=GroupReaderOptions(
                on_truncated=on_truncated,
                auto_commit=auto_commit,
                append_times=bool(append_times),
                on_assigned=on_assigned,
                on_revoked=on_revoked,
                on_lost=on_lost,
            ),
        )
        return reader if form is None else AsyncTypedGroupReader(reader, form)

    async def readers(self) -> list[str]:
        """Names of the readers in the group, sorted. Dead readers stay until their lease ends."""
        return sorted((await self._table.load()).members)

    async def remove_reader(self, name: str) -> None:
        """Release the segments of the dead reader ``name`` now, without waiting for the end of its lease."""
        check_printable("name", name)
        await self._table.update(lambda state: state.leave(name))

    async def positions(self) -> Mapping[StreamName, StreamCut]:
        """The position of the group, as its readers last reported it: one cut per stream."""
        return (await self._table.load()).cuts()

    async def time_windows(self) -> Mapping[StreamName, TimeWindow]:
        """What is known of the times of the events that the group has read, by stream, as ``time_window`` of a
        reader.

        The slowest reader of the group decides, by what the readers last reported. Raises StreamNotFoundError,
        UnavailableError.
        """
        cuts = await self.positions()
        return {stream: await self._controller.cuts.time_window(cut) for stream, cut in cuts.items()}

    async def checkpoint(self, *, deadline_s: float = DEADLINE_S) -> Mapping[StreamName, StreamCut]:
        """Collect what all readers have processed by now, as one consistent cut per stream. They must stay open during the
        call.

        It records nothing about single events (``commit`` of a reader does) and deletes nothing (``publish`` allows that).
        Raises DeadlineExceededError after ``deadline_s``, naming the readers that did not take part. Under automatic
        retention the cuts are published.
        """
        number("deadline_s", deadline_s, least=0)
        _, wanted = await self._table.update(lambda state: state.start_checkpoint(self._clock.now_ms()))
        backoff = Backoff(self._rng)
        give_up_at = asyncio.get_running_loop().time() + deadline_s
        while True:
            state = await self._table.load()
            if state.last_number >= wanted:
                if self.retention is ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT:
                    await self._publish_last(state)
                return state.last_cuts()
            if asyncio.get_running_loop().time() > give_up_at:
                waiting = state.checkpoint.waiting if state.checkpoint is not None else []
                raise DeadlineExceededError("readers did not take part in the checkpoint", readers=waiting)
            await backoff.sleep()

    async def publish(self, cuts: StreamCut | str | Mapping[StreamName, StreamCut]) -> None:
        """Acknowledge everything before the cuts, so that retention may delete it. It moves no reader: readers continue
        after what they have committed.

        ``cuts``: one cut, its text, or a mapping as ``positions`` returns it. Raises UnsupportedError (retention is not
        manual), InvalidCutError (before the last one, or not a position of its stream), SubscriberNotFoundError,
        GenerationMismatchError. Cuts of deleted streams of the group are ignored: they have nothing to release.
        """
        if self.retention is not ReaderGroupRetention.MANUAL:
            raise UnsupportedError("only a group with manual retention publishes cuts", retention=self.retention.name)
        given = list(cuts.values()) if isinstance(cuts, Mapping) else [cuts]
        for cut in [cut_of(cut, name="cuts") for cut in given]:
            await self._publish_unless_deleted(cut)

    async def _publish_unless_deleted(self, cut: StreamCut) -> None:
        try:
            await self._publish_cut(cut)
        except NotFoundError as error:
            ours = cut.stream in self.config.start_cuts
            if not ours or not await is_deleted(self._controller, self._rng, cut.stream, cut.positions):
                raise
            log.info("cut belongs to a deleted stream", extra={"group": self.config.full_name, "error": str(error)})

    async def _publish_cut(self, cut: StreamCut) -> None:
        config = self.config
        try:
            await self._send_cut(config, cut)
        except GenerationMismatchError:
            # Its configuration was updated since we opened it; the positions are as good as before.
            found = await retrying(lambda: self._controller.groups.get(config.scope, config.name), self._rng)
            if found.id != config.id:
                raise  # A later group has the name: this handle must not change that group.
            self.config = found
            await self._send_cut(found, cut)

    async def _send_cut(self, config: ReaderGroupConfig, cut: StreamCut) -> None:
        await retrying(
            lambda: self._controller.subscribers.publish(
                config.full_name, group_id=config.id, generation=config.generation, cut=cut
            ),
            self._rng,
        )

    async def _reported(self, state: GroupState, idle: bool) -> None:
        """Called after a report of a reader; ``idle``: its program waits for events, and there are none."""
        if self.retention is ReaderGroupRetention.AUTOMATIC_AT_LAST_CHECKPOINT:
            try:
                await self._publish_last(state)
            except StorageFullError as error:
                # The next report tries again.
                log.warning("checkpoint was not published", extra={"group": self.config.full_name, "error": str(error)})
        elif self.retention is ReaderGroupRetention.MANUAL and idle:
            await self._renew()

    async def _renew(self) -> None:
        """Renew the subscription from time to time if the program has published everything that it could read.

        A reader that reads but does not publish renews nothing: the rule on idle subscribers is meant for it.
        """
        now = asyncio.get_running_loop().time()
        if now < self._renew_at:
            return
        self._renew_at = now + RENEWAL_MAX_S
        for stream in self.streams:
            try:
                idle_ms = (await self._controller.policies.effective(stream)).subscriber_idle_ms
                if idle_ms is not None:
                    self._renew_at = min(self._renew_at, now + renewal_s(idle_ms))
                    await self._renew_at_tail(stream)
            except (*RETRYABLE, NotFoundError, InvalidCutError, UnsupportedError) as error:
                # The next report tries again. A deleted stream or subscription has nothing to renew. If another reader has
                # published a later cut, that publication has renewed the subscription.
                log.info("subscription was not renewed", extra={"group": self.config.full_name, "error": str(error)})

    async def _renew_at_tail(self, stream: StreamName) -> None:
        for info in await self._controller.subscribers.describe(stream):
            if info.name == self.config.full_name and info.cut is not None and info.lag_bytes == 0:
                await self._publish_cut(info.cut)

    async def _publish_last(self, state: GroupState) -> None:
        """Publish the last checkpoint, unless that was done. Any reader may do it, and doing it twice is harmless."""
        last = state.last_number
        if state.published >= last:
            return
        for cut in state.last_cuts().values():
            try:
                await self._publish_unless_deleted(cut)
            except InvalidCutError as error:
                # Another reader published a later checkpoint first; the next one is published anyway.
                log.warning("checkpoint was not published", extra={"group": self.config.full_name, "error": str(error)})

        def mark(shared: GroupState) -> None:
            shared.published = max(shared.published, last)

        await self._table.update(mark)

    async def delete(self) -> None:
        """Remove the group, its state and its subscriptions. Its readers fail with ReaderGroupNotFoundError."""
        config = self.config
        await retrying(lambda: self._controller.groups.delete(config.scope, config.name, group_id=config.id), self._rng)
        await self._table.delete()

    async def close(self) -> None:
        """Does nothing: a group holds no resources; its readers are closed by themselves."""
