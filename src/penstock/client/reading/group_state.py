"""The shared state of a reader group, and every decision on it, as functions of the state. No I/O, no clock.

The state is one table value, changed by compare-and-set: each change is made on a private copy and stored only if the
stored state is still the same. Positions count only events that were read, so any state is a safe place to resume from.

Source: docs/design/0031-reader-groups.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias
from uuid import UUID

from penstock.core.cuts.read_order import normalised, startable
from penstock.model.cuts import NOT_STARTED, StreamCut
from penstock.model.errors import CorruptDataError, InternalError, VersionTooNewError
from penstock.model.names import StreamName
from penstock.model.segments import KeyRange, SegmentId, SegmentRange
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.transactions import StreamTransaction

FORMAT = 2
"""Version 2 has prepared positions. A state without them is stored as version 1, which older programs read."""

SegmentKey: TypeAlias = tuple[StreamName, SegmentId]
Positions: TypeAlias = dict[SegmentKey, int]


Ends: TypeAlias = Mapping[SegmentKey, Sequence[SegmentRange]]
"""Segments that were read to their end, in the order in which they ended, with those that follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Positions of a reader that count once its transactions are committed, as one commit ``id``; else never."""

    id: UUID
    transactions: Sequence[StreamTransaction]
    positions: Mapping[SegmentKey, int]
    ended: Ends


class UndecidedError(Exception):
    """The reader's segments cannot move before its prepared positions are settled. ``GroupTable.update`` settles
    them."""

    def __init__(self, reader: str, prepared: Prepared) -> None:
        super().__init__(reader, prepared)
        self.reader = reader
        self.prepared = prepared


@dataclass(slots=True)
class Member:
    """A reader: the segments that it holds, its positions, and a number that grows while it lives.

    ``incarnation``: identifies this reader among readers of its name. Empty if an older program wrote the state.
    """

    held: Positions = field(default_factory=dict)
    beat: int = 0
    incarnation: str = ""
    prepared: Prepared | None = None


@dataclass(slots=True)
class Checkpoint:
    """Positions being collected: of free segments at once, of a reader's segments at its next report."""

    number: int
    waiting: list[str]
    positions: Positions


@dataclass(slots=True)
class GroupState:
    """``free``: segments that no reader has. ``future``: segments that wait for an older segment with the same keys.

    ``done``: finished segments that nothing follows (their stream is sealed), with their lengths. ``last``: positions of
    the last complete checkpoint, number ``last_number``; ``published`` is the number of the last one that was published.
    """

    group: str
    free: Positions = field(default_factory=dict)
    future: Positions = field(default_factory=dict)
    done: Positions = field(default_factory=dict)
    ranges: dict[SegmentKey, KeyRange] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None
    last: Positions = field(default_factory=dict)
    last_number: int = 0
    last_ms: int = 0
    published: int = 0

    # --- membership ----------------------------------------------------------------------------------------

    def join(self, reader: str, incarnation: str = "") -> None:
        """Add the reader. A present reader of the same name is fenced, and its segments become free."""
        self.leave(reader)
        self.members[reader] = Member(incarnation=incarnation)

    def has(self, reader: str, incarnation: str) -> bool:
        """Whether this incarnation of the reader is a member."""
        member = self.members.get(reader)
        return member is not None and member.incarnation in (incarnation, "")

    def fences(self, reader: str, incarnation: str) -> bool:
        """Whether a newer reader of that name is a member."""
        return reader in self.members and not self.has(reader, incarnation)

    def leave(self, reader: str) -> None:
        """Free the reader's segments at its last positions; the next reader that asks gets them. Raises
        UndecidedError."""
        member = self.members.get(reader)
        if member is None:
            return
        self._check_decided(reader, member)
        self._contribute(reader, member)
        del self.members[reader]
        self.free.update(member.held)

    def report(self, reader: str, positions: Mapping[SegmentKey, int], incarnation: str = "") -> bool:
        """Record the reader's positions. False: it is no longer a member, or a newer one of its name is, so it holds nothing.

        Positions of segments that it does not hold any more are ignored, and none moves back. Raises UndecidedError.
        """
        member = self.members.get(reader)
        if member is None or not self.has(reader, incarnation):
            return False
        self._check_decided(reader, member)
        member.incarnation = incarnation
        for key, offset in positions.items():
            if key in member.held:
                member.held[key] = max(member.held[key], offset)
        member.beat += 1
        self._contribute(reader, member)
        return True

    # --- positions that transactions commit ----------------------------------------------------------------

    def prepare(self, reader: str, prepared: Prepared) -> None:
        """Store positions that count once they are decided. Raises UndecidedError (earlier ones are not settled)."""
        member = self.members[reader]
        if member.prepared is None or member.prepared.id != prepared.id:
            self._check_decided(reader, member)
        member.prepared = prepared

    def may_prepare(self, reader: str, prepared: Prepared, since: Mapping[SegmentKey, int]) -> bool:
        """Whether no other reader had or will get the events between ``since``, the reader's last commit, and the prepared
        positions. False: a report of which the reader does not know has given some of their segments up."""
        held = self.members[reader].held
        follows: set[SegmentKey] = (
            set()
        )  # They are in ``future``, or not known yet, and the commit gives them to the reader.
        for key, successors in prepared.ended.items():
            if key in held or key in follows:
                follows |= {(key[0], item.segment) for item in successors}
        return all(
            held[key] <= since[key] if key in held else key in follows and key not in self.free
            for key, offset in prepared.positions.items()
            if offset > since[key]
        )

    def prepared(self) -> Mapping[UUID, str]:
        """The reader of each commit that is not settled."""
        return {item.prepared.id: name for name, item in self.members.items() if item.prepared is not None}

    def settle(self, decided: Mapping[UUID, bool]) -> Mapping[str, UUID]:
        """Apply or drop prepared positions of which it is known whether they are committed. Returns the commits by
        reader."""
        settled: dict[str, UUID] = {}
        for reader, member in self.members.items():
            prepared = member.prepared
            if prepared is not None and prepared.id in decided:
                member.prepared = None
                settled[reader] = prepared.id
                if decided[prepared.id]:
                    self.report(reader, prepared.positions, member.incarnation)
                    self.finish_all(reader, prepared.ended, prepared.positions)
        return settled

    def _check_decided(self, reader: str, member: Member) -> None:
        if member.prepared is not None:
            raise UndecidedError(reader, member.prepared)

    # --- who reads what ------------------------------------------------------------------------------------

    def acquire(self, reader: str) -> list[SegmentKey]:
        """Give the reader free segments up to its fair share, the oldest first; returns the new ones."""
        member = self.members[reader]
        total = len(self.free) + sum(len(other.held) for other in self.members.values())
        share, rest = divmod(total, len(self.members))
        got: list[SegmentKey] = []
        for key in sorted(self.free):
            mine = len(member.held)
            least = min(len(other.held) for other in self.members.values())
            # Above the even share, only the reader with the fewest segments takes one. Otherwise two readers would swap
            # it.
            if not (mine < share or (mine == share and rest and mine == least)):
                break
            member.held[key] = self.free.pop(key)
            got.append(key)
        return got

    def surplus(self, reader: str) -> int:
        """How many segments the reader should give up, so that another reader gets its share. 0 while some are free."""
        member = self.members[reader]
        if self.free:
            return 0
        least = min(len(other.held) for other in self.members.values())
        return max(0, len(member.held) - least) // 2

    def release(self, reader: str, keys: Iterable[SegmentKey]) -> None:
        """Give segments up at their reported positions."""
        held = self.members[reader].held
        for key in keys:
            if key in held:
                self.free[key] = held.pop(key)

    def finish(self, reader: str, key: SegmentKey, successors: Sequence[SegmentRange]) -> None:
        """The reader has read a sealed segment to its end: its successors may be read now, or after other
        predecessors."""
        member = self.members.get(reader)
        if member is None or key not in member.held:
            return
        stream = key[0]
        length = member.held.pop(key)
        if not successors:
            self.done[key] = length
        for successor in successors:
            following = (stream, successor.segment)
            self.ranges[following] = successor.keys
            if not self._known(following):
                self.future[following] = 0
        ranges = {segment: keys for (of, segment), keys in self.ranges.items() if of == stream}
        waiting = [segment for of, segment in self.future if of == stream]
        unfinished = [segment for of, segment in self._unfinished() if of == stream]
        for segment in startable(waiting, unfinished, ranges):
            self.free[stream, segment] = self.future.pop((stream, segment))
        self._forget_ranges()

    def finish_all(self, reader: str, ended: Ends, begun: Mapping[SegmentKey, int] | None) -> Positions:
        """``finish`` each, in order. Of the segments that can be read thereby, the reader keeps those that it has
        ``begun``, at these positions (None: all, from their start); returns them."""
        kept: Positions = {}
        for key, successors in ended.items():
            before = set(self.free)
            self.finish(reader, key, successors)
            for new in sorted(self.free.keys() - before):
                if begun is None or new in begun:
                    kept[new] = max(self.free.pop(new), 0 if begun is None else begun[new])
                    self.members[reader].held[new] = kept[new]
        return kept

    def covers(self, positions: Mapping[SegmentKey, int]) -> bool:
        """Whether a reader that takes over gets no event before these positions. Segments that the group does not have are
        read, and in those that wait for an older segment no position is recorded."""
        begun = dict(self.free)
        for member in self.members.values():
            begun.update(member.held)
        return all(begun.get(key, offset) >= offset for key, offset in positions.items())

    def reads(self, stream: StreamName) -> bool:
        """Whether the stream has not left the group."""
        return any(key[0] == stream for key in (*self._unfinished_positions(), *self.done))

    def remove_stream(self, stream: StreamName) -> Positions:
        """Forget a deleted stream; returns its segments that were not read to their end, with their last positions."""
        unread = {key: offset for key, offset in self._unfinished_positions().items() if key[0] == stream}
        checkpoint = self.checkpoint
        tables: list[dict[SegmentKey, Any]] = [self.free, self.future, self.done, self.ranges, self.last]
        tables += [member.held for member in self.members.values()]
        if checkpoint is not None:
            tables.append(checkpoint.positions)
        for table in tables:
            for key in [key for key in table if key[0] == stream]:
                del table[key]
        return unread

    def reset(self, starts: Mapping[StreamName, StreamCut], ranges: Mapping[SegmentKey, KeyRange], now_ms: int) -> None:
        """Continue at these cuts in their streams, and in other streams as before. The group must have no members.

        The positions become a complete checkpoint. If the program ends before it has acknowledged them, the next readers
        of an automatic group publish them.
        """
        if self.members:
            raise InternalError("reset of a reader group that has readers", group=self.group)
        for stream, cut in starts.items():
            self.remove_stream(stream)
            keys = {segment: ranges[stream, segment] for segment in cut.positions}
            self.ranges.update({(stream, segment): of for segment, of in keys.items()})
            self._begin(stream, cut, keys)
        self.checkpoint = None
        self.start_checkpoint(now_ms)
        self._forget_ranges()

    def _begin(self, stream: StreamName, cut: StreamCut, keys: Mapping[SegmentId, KeyRange]) -> None:
        # A cut from a caller may have 0 for a segment that waits for an older one.
        for segment, offset in normalised(cut.positions, keys).items():
            if offset == NOT_STARTED:
                self.future[stream, segment] = 0
            else:
                self.free[stream, segment] = offset

    def _unfinished_positions(self) -> Positions:
        positions = {**self.future, **self.free}
        for member in self.members.values():
            positions.update(member.held)
        return positions

    def _known(self, key: SegmentKey) -> bool:
        return key in self.future or key in self.done or any(key == other for other in self._unfinished())

    def _unfinished(self) -> Iterator[SegmentKey]:
        yield from self.free
        for member in self.members.values():
            yield from member.held

    def _forget_ranges(self) -> None:
        needed = {*self.future, *self.done, *self._unfinished(), *self.last}
        if self.checkpoint is not None:
            needed |= {*self.checkpoint.positions}
        self.ranges = {key: value for key, value in self.ranges.items() if key in needed}

    # --- positions and checkpoints -------------------------------------------------------------------------

    def cuts(self) -> dict[StreamName, StreamCut]:
        """The last reported position of each stream."""
        positions = {**self._idle_positions()}
        for member in self.members.values():
            positions.update(member.held)
        return self._cuts_of(positions)

    def last_cuts(self) -> dict[StreamName, StreamCut]:
        """The positions of the last complete checkpoint."""
        return self._cuts_of(self.last)

    def start_checkpoint_if_due(self, now_ms: int, interval_ms: int) -> None:
        """Begin a checkpoint if the last one is ``interval_ms`` ago, or the clock went back."""
        if not 0 <= now_ms - self.last_ms < interval_ms:
            self.start_checkpoint(now_ms)

    def start_checkpoint(self, now_ms: int) -> int:
        """Begin one, or join the one under way; returns its number. ``last_number`` reaches it when it is complete."""
        if self.checkpoint is None:
            self.checkpoint = Checkpoint(self.last_number + 1, list(self.members), self._idle_positions())
            self.last_ms = now_ms
            self._complete()
            return self.last_number if self.checkpoint is None else self.checkpoint.number
        return self.checkpoint.number

    def _idle_positions(self) -> Positions:
        return {**dict.fromkeys(self.future, NOT_STARTED), **self.free, **self.done}

    def _contribute(self, reader: str, member: Member) -> None:
        checkpoint = self.checkpoint
        if checkpoint is None or reader not in checkpoint.waiting:
            return
        checkpoint.waiting.remove(reader)
        for key, offset in member.held.items():
            # If a segment moved between readers, the first position counts: a later position would release more.
            checkpoint.positions.setdefault(key, offset)
        self._complete()

    def _complete(self) -> None:
        if self.checkpoint is not None and not self.checkpoint.waiting:
            self.last = self.checkpoint.positions
            self.last_number = self.checkpoint.number
            self.checkpoint = None

    def _cuts_of(self, positions: Mapping[SegmentKey, int]) -> dict[StreamName, StreamCut]:
        streams: dict[StreamName, dict[SegmentId, int]] = {}
        for (stream, segment), offset in positions.items():
            streams.setdefault(stream, {})[segment] = offset
        result = {}
        for stream, found in sorted(streams.items()):
            ranges = {segment: self.ranges[stream, segment] for segment in found}
            result[stream] = StreamCut(stream, normalised(found, ranges))
        return result

    # --- bytes ---------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """The state as JSON; equal states give equal bytes."""
        body: dict[str, Any] = {
            "format": 1,
            "group": self.group,
            "free": _pack(self.free),
            "future": _pack(self.future),
            "done": _pack(self.done),
            "ranges": [[str(key[0]), key[1], keys.low, keys.high] for key, keys in sorted(self.ranges.items())],
            "members": {name: [member.beat, _pack(member.held)] for name, member in self.members.items()},
            # Stored beside the members, so that older programs can read the members.
            "incarnations": {name: member.incarnation for name, member in self.members.items() if member.incarnation},
            "last": _pack(self.last),
            "last_number": self.last_number,
            "last_ms": self.last_ms,
            "published": self.published,
        }
        if self.checkpoint is not None:
            pending = self.checkpoint
            body["checkpoint"] = [pending.number, pending.waiting, _pack(pending.positions)]
        prepared = {name: member.prepared for name, member in self.members.items() if member.prepared is not None}
        if prepared:
            # An older program would move the segments without settling them: it must not read this state.
            body["format"] = FORMAT
            body["prepared"] = {name: _pack_prepared(item) for name, item in prepared.items()}
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> GroupState:
        """Inverse of ``encode``. Raises CorruptDataError, VersionTooNewError."""
        try:
            body = json.loads(data)
            if body["format"] > FORMAT:
                raise VersionTooNewError("reader group state is newer", format=body["format"], known=FORMAT)
            state = cls(body["group"])
            state.free, state.future = _unpack(body["free"]), _unpack(body["future"])
            state.done, state.last = _unpack(body["done"]), _unpack(body["last"])
            state.ranges = {
                (StreamName.parse(stream), SegmentId(segment)): KeyRange(low=low, high=high)
                for stream, segment, low, high in body["ranges"]
            }
            incarnations = body.get("incarnations", {})
            state.members = {
                name: Member(held=_unpack(held), beat=beat, incarnation=incarnations.get(name, ""))
                for name, (beat, held) in body["members"].items()
            }
            state.last_number, state.last_ms = body["last_number"], body["last_ms"]
            state.published = body["published"]
            for name, rows in body.get("prepared", {}).items():
                state.members[name].prepared = _unpack_prepared(rows)
            if "checkpoint" in body:
                number, waiting, positions = body["checkpoint"]
                state.checkpoint = Checkpoint(number, waiting, _unpack(positions))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError("value is not a reader group's state", size_bytes=len(data)) from error
        return state


def _pack(positions: Mapping[SegmentKey, int]) -> list[list[Any]]:
    return [[str(stream), segment, offset] for (stream, segment), offset in sorted(positions.items())]


def _unpack(rows: Sequence[Sequence[Any]]) -> Positions:
    return {(StreamName.parse(stream), SegmentId(segment)): offset for stream, segment, offset in rows}


def _pack_prepared(prepared: Prepared) -> list[Any]:
    return [
        prepared.id.hex,
        [[str(item.stream), item.id.hex] for item in prepared.transactions],
        _pack(prepared.positions),
        [
            [str(stream), segment, [[item.segment, item.keys.low, item.keys.high] for item in following]]
            for (stream, segment), following in prepared.ended.items()
        ],
    ]


def _unpack_prepared(rows: Sequence[Any]) -> Prepared:
    commit, transactions, positions, ended = rows
    return Prepared(
        id=UUID(hex=commit),
        transactions=[
            StreamTransaction(stream=StreamName.parse(stream), id=UUID(hex=txn)) for stream, txn in transactions
        ],
        positions=_unpack(positions),
        ended={
            (StreamName.parse(stream), SegmentId(segment)): [
                SegmentRange(segment=SegmentId(item), keys=KeyRange(low=low, high=high))
                for item, low, high in following
            ]
            for stream, segment, following in ended
        },
    )


def initial_state(
    group: str, starts: Mapping[StreamName, StreamCut], ranges: Mapping[SegmentKey, KeyRange]
) -> GroupState:
    """The state of a group that nobody has read with. ``starts`` are explicit cuts, ``ranges`` of their segments."""
    state = GroupState(group, ranges=dict(ranges))
    for stream, cut in starts.items():
        state._begin(stream, cut, {segment: ranges[stream, segment] for segment in cut.positions})
    return state
