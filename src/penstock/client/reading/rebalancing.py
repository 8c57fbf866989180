"""What the program of a group's reader learns of the segments that its reader gets and loses. No I/O.

Source: docs/design/0031-reader-groups.md, "Callbacks".
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Literal, TypeAlias, TypedDict

from penstock.client.options import one_of
from penstock.client.reading.async_reading import AsyncBlockReader
from penstock.client.reading.blocks import Block
from penstock.client.reading.group_state import GroupState, SegmentKey
from penstock.client.reading.reader import OnTruncated
from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

Callback: TypeAlias = Callable[[Sequence[SegmentKey]], Awaitable[None] | None]
"""Called with segments as (stream, segment), sorted. It may be a coroutine function for an asynchronous reader."""
Kind: TypeAlias = Literal["assigned", "revoked", "lost"]


class GroupReaderArguments(TypedDict, total=False):
    """The keyword arguments of a group's ``reader``, but for its serializer."""

    on_truncated: OnTruncated
    auto_commit: bool
    append_times: bool
    on_assigned: Callback | None
    on_revoked: Callback | None
    on_lost: Callback | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReaderOptions:
    """How a reader treats truncated data, what records its progress, and its callbacks; see ``AsyncReaderGroup.reader``."""

    on_truncated: OnTruncated
    auto_commit: bool
    append_times: bool
    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None

    def __post_init__(self) -> None:
        one_of(self.on_truncated, "on_truncated", ("raise", "skip"))
        if not isinstance(self.auto_commit, bool):
            raise InvalidArgumentError("auto_commit must be True or False", auto_commit=repr(self.auto_commit)[:60])
        for name in ("on_assigned", "on_revoked", "on_lost"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InvalidArgumentError(f"{name} must be a function", **{name: repr(given)[:60]})

    @property
    def listens(self) -> bool:
        """Whether the program has any callback."""
        return not (self.on_assigned is None and self.on_revoked is None and self.on_lost is None)

    def callback(self, kind: Kind) -> Callback | None:
        """What to call for a change of this kind."""
        return {"assigned": self.on_assigned, "revoked": self.on_revoked, "lost": self.on_lost}[kind]


@dataclass(frozen=True, slots=True)
class Change:
    """The reader got the segments, is about to give them up, or has lost them."""

    kind: Kind
    segments: Sequence[SegmentKey]


class Rebalancing:
    """The changes that the program has not seen yet, in order, and what the reader gives up.

    Laws: for each segment, the program sees "assigned" first, and then at most one of "revoked" and "lost", before it sees
    "assigned" again. A segment that was read to its end is only dropped. With ``listens``, a segment is not given up before
    the program has seen "revoked" for it.
    """

    def __init__(self, *, listens: bool) -> None:
        self._listens = listens
        self._unseen: deque[Change] = deque()
        self._known: set[SegmentKey] = set()
        self._surplus = 0
        self.releasing: Sequence[SegmentKey] = ()
        """What the program has agreed to give up, until the group knows."""
        self._reported: Sequence[SegmentKey] = ()
        """Those of ``releasing`` that the last report gives up. The program may agree to more while it is on its way."""

    def share(self, state: GroupState, reader: str, spare: Sequence[SegmentKey]) -> None:
        """Give up or take segments in the state. ``spare``: what can be given up now, in this order. Repeatable."""
        surplus = state.surplus(reader)
        if self._listens:
            self._reported = self.releasing
            state.release(reader, self._reported)
            if not surplus and not self._reported:
                state.acquire(reader)
        elif surplus:
            state.release(reader, spare[:surplus])
        else:
            state.acquire(reader)

    def follow(
        self, now: Iterable[SegmentKey], *, ended: Collection[SegmentKey] = (), rejoined: bool = False, surplus: int = 0
    ) -> None:
        """The reader reads these segments now. ``ended``: those that it has read to their end. ``rejoined``: the group had
        removed the reader, so it has lost all that it had. ``surplus``: how many segments the group wants back."""
        held, released = set(now), set(self._reported)
        self.releasing = [key for key in self.releasing if key not in released]
        self._surplus, self._reported = surplus, ()
        if not self._listens:
            return
        before = self._known - released
        self._tell("lost", before if rejoined else before - held - set(ended))
        self._tell("assigned", held if rejoined else held - before)
        self._known = held

    def gives_up(self, key: SegmentKey) -> bool:
        """Whether the last report gives the segment up, as the program has agreed."""
        return key in self._reported

    def _tell(self, kind: Kind, segments: Iterable[SegmentKey]) -> None:
        if found := sorted(segments):
            self._unseen.append(Change(kind, found))

    def next(self, spare: Sequence[SegmentKey]) -> Change | None:
        """The next change for the program; "revoked" again until the group takes no more, or ``release`` was called."""
        if self._unseen:
            return self._unseen.popleft()
        if self._surplus and not self.releasing and (given := spare[: self._surplus]):
            return Change("revoked", sorted(given))
        return None

    def release(self, segments: Iterable[SegmentKey]) -> None:
        """The program has seen "revoked" for these: the next report gives them up."""
        self.releasing = [key for key in segments if key in self._known]

    def leave(self, *, clean: bool) -> Change | None:
        """The last change for a program that closes its reader; None if it has no segments."""
        self._unseen.clear()
        self._listens = False  # its last callback may still commit, and a report must not assign anything again
        known, self._known = sorted(self._known), set()
        return Change("revoked" if clean else "lost", known) if known else None


class ListeningReader(AsyncBlockReader):
    """A reader that calls the program's callbacks within its own calls, in the program's task.

    A blocking reader does the same in the program's thread: it calls ``take``, ``call`` and ``seen``.
    """

    def __init__(self, options: GroupReaderOptions) -> None:
        self._options = options
        self._rebalancing = Rebalancing(listens=options.listens)
        self._in_callback = False

    @abstractmethod
    async def take(self) -> Block | Change | None:
        """The next block, or None at the end; or a change of segments that the program has to see first. Cancelled: nothing
        is lost."""

    @abstractmethod
    async def sync(self) -> None:
        """Report to the group now, and give up what was released."""

    @abstractmethod
    async def leave(self, *, clean: bool) -> None:
        """Leave the group without a callback."""

    @abstractmethod
    def is_left(self) -> bool:
        """Whether the reader has left the group, or belongs to another process."""

    async def take_block(self) -> Block | None:
        """See ``AsyncBlockReader``. The callbacks are called here, before a block is returned. Raises as ``take``, and what
        a callback raises."""
        while isinstance(item := await self.take(), Change):
            await self._await(self.call(item))
            await self.seen(item)
        return item

    def check_may_read(self) -> None:
        """Raises InvalidArgumentError in a callback."""
        if self._in_callback:
            raise InvalidArgumentError("a callback cannot read")

    def call(self, change: Change) -> Awaitable[None] | None:
        """Call the callback for the change, and return what it returns."""
        callback = self._options.callback(change.kind)
        if callback is None:
            return None
        self._in_callback = True
        try:
            return callback(change.segments)
        finally:
            self._in_callback = False

    async def _await(self, result: Awaitable[None] | None) -> None:
        if result is None:
            return
        self._in_callback = True
        try:
            await result
        finally:
            self._in_callback = False

    async def seen(self, change: Change) -> None:
        """The callback for the change has returned: give up what it has seen as revoked."""
        if change.kind == "revoked" and not self.is_left():
            self._rebalancing.release(change.segments)
            await self.sync()

    async def close(self, *, clean: bool = True) -> None:
        """Leave the group; its other readers continue where this one was. ``clean``: the program has processed all
        events that were returned, which counts only with automatic commits.

        First ``on_revoked`` is called for all segments, or ``on_lost`` unless ``clean``. What it raises is raised after the
        reader has left. Raises UnavailableError if the departure could not be reported: the group removes the reader after
        ``lease_s``.
        """
        try:
            if (change := self.leaving(clean=clean)) is not None:
                await self._await(self.call(change))
        finally:
            await self.leave(clean=clean)

    def leaving(self, *, clean: bool) -> Change | None:
        """The last change that the program sees; None if it has no segments or no callback."""
        return None if self.is_left() else self._rebalancing.leave(clean=clean)
