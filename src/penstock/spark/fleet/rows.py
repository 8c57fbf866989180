"""Reads facts of many streams from Arrow: whole columns for bulk checks, and the planner's facts of single rows.

The checks are the same as for the planner's JSON. Some check whole columns at once, the others each row when it is read.
Source: docs/formats/fleet.md. Needs numpy and pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.cuts.order import Positions, check_cut
from penstock.core.planner_json.policy import decode_policy
from penstock.core.planner_json.requests import parse_strictly
from penstock.core.planner_json.stream import checked_epochs, name_of
from penstock.core.planner_json.values import refuse
from penstock.core.retention.facts import Hold, RecordColumns, RetentionFacts, StreamCutRecord, SubscriberActivity
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import NOT_STARTED
from penstock.model.errors import InvalidCutError, PenstockError
from penstock.model.retention import EffectivePolicy
from penstock.model.segments import SegmentId
from penstock.spark.fleet.layout import SCHEMA

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

ABSENT = -1
"""Stands for null among numbers that are never negative."""

_BROKEN = -2
"""Stands for null where a segment or an offset is expected. It is neither."""

_REMEMBERED_MAX = 4096  # policies that stay decoded; fleets have few different ones
_REMEMBERED_BYTES_MAX = 64 * 1024


class History:
    """The epochs of a stream, and which segments make a valid cut at any offsets: those of one epoch."""

    __slots__ = ("_known", "_sets", "history", "only")

    def __init__(self, history: StreamHistory) -> None:
        self.history = history
        self._sets = {frozenset(item.segment for item in record.segments) for record in history.epochs}
        self._known: dict[tuple[int, ...], bool] = {}
        self.only = sorted(history.index.ids) if len(history.epochs) == 1 else None
        """All segments of a stream that was never scaled."""

    def is_epoch(self, segments: tuple[int, ...]) -> bool:
        known = self._known.get(segments)
        if known is None:
            known = len(set(segments)) == len(segments) and frozenset(segments) in self._sets
            if len(self._known) >= 64:
                self._known.clear()
            self._known[segments] = known
        return known


_histories: dict[str, History] = {}
_policies: dict[str, EffectivePolicy | None] = {}


def history_of(text: str) -> History:
    """The epochs of their JSON, remembered. Raises InvalidArgumentError."""
    found = _histories.get(text)
    if found is None:
        found = History(checked_epochs(parse_strictly(text)).history)
        _remember(_histories, text, found)
    return found


def policy_of(text: str) -> EffectivePolicy | None:
    """The policy decoded from its JSON, cached: the same object for the same text. Raises InvalidArgumentError."""
    if text not in _policies:
        found = decode_policy(parse_strictly(text))
        _remember(_policies, text, found)
        return found
    return _policies[text]


def _remember(known: dict[str, Any], text: str, value: Any) -> None:
    if len(text) <= _REMEMBERED_BYTES_MAX:
        if len(known) >= _REMEMBERED_MAX:
            known.clear()
        known[text] = value


class Lists:
    """A column of lists. The items of row ``i`` are ``items[starts[i]:starts[i + 1]]``; null has no items."""

    __slots__ = ("items", "owners", "starts")

    def __init__(self, column: Any) -> None:
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        self.starts: Ints = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=self.starts[1:])
        self.items = column.flatten()
        self.owners: Ints = np.repeat(np.arange(len(lengths)), lengths)

    def counts(self) -> Ints:
        return np.diff(self.starts)

    def sums(self, flags: Flags) -> Ints:
        """How many items of each row have the flag."""
        return self.added(flags.astype(np.int64))

    def added(self, values: Ints) -> Ints:
        """The sum over the items of each row."""
        running: Ints = np.zeros(len(values) + 1, np.int64)
        np.cumsum(values, out=running[1:])
        return running[self.starts[1:]] - running[self.starts[:-1]]


class Cuts(Lists):
    """A column of cuts."""

    __slots__ = ("_lists", "offsets", "segments")

    def __init__(self, column: Any) -> None:
        super().__init__(column)
        self.segments = _filled(pc.struct_field(self.items, "segment"), _BROKEN)
        self.offsets = _filled(pc.struct_field(self.items, "offset"), _BROKEN)
        self._lists: tuple[list[int], list[SegmentId], list[int]] | None = None

    def names(self, place: int) -> tuple[int, ...]:
        return tuple(self.segments[self.starts[place] : self.starts[place + 1]].tolist())

    def at(self, place: int) -> dict[SegmentId, int]:
        if self._lists is None:
            # Convert all cuts on the first call, because a slice of an array costs as much as a dozen numbers.
            self._lists = self.starts.tolist(), self.segments.tolist(), self.offsets.tolist()
        starts, segments, offsets = self._lists
        first, end = starts[place], starts[place + 1]
        return dict(zip(segments[first:end], offsets[first:end], strict=True))


class Records(Lists):
    """A column of lists of records."""

    __slots__ = ("counts_events", "cuts", "events", "sizes", "times")

    def __init__(self, rows: FactsRows, column: Any, field: str) -> None:
        super().__init__(column)
        self.times = rows.whole(pc.struct_field(self.items, "time_ms"), f"{field}.time_ms", self.owners, needed=True)
        self.sizes = rows.whole(
            pc.struct_field(self.items, "size_bytes"), f"{field}.size_bytes", self.owners, needed=True
        )
        events = pc.struct_field(self.items, "event_count")
        self.events = rows.whole(events, f"{field}.event_count", self.owners)
        self.counts_events = events.null_count < len(events)
        self.cuts = Cuts(pc.struct_field(self.items, "cut"))


def _filled(column: Any, absent: int) -> Ints:
    values: Ints = column.fill_null(absent).to_numpy(zero_copy_only=False)
    return values


class FactsRows:
    """One batch of facts. ``plain``: rows of streams that were never scaled, whose cuts and records are all in order.

    An error in a row is raised when its facts are requested; such a row is never plain.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.rows = batch.num_rows
        self._wrong: dict[int, tuple[str, str]] = {}
        column = self._column
        self.now_ms = self.whole(column("now_ms"), "now_ms", needed=True)
        self.frequency_ms = self.whole(column("frequency_ms"), "frequency_ms")
        self.truncated_events = self.whole(column("truncated_events"), "truncated_events")
        self.last_append_ms = self.whole(column("last_append_ms"), "last_append_ms")
        self.truncating: Flags = column("truncating").fill_null(False).to_numpy(zero_copy_only=False)
        epochs = column("epochs").dictionary_encode()
        self.epoch_codes = _filled(epochs.indices, ABSENT)
        self.histories = [_tried(history_of, text) for text in epochs.dictionary.to_pylist()]
        policies = column("policy").dictionary_encode()
        self.policy_codes = _filled(policies.indices, ABSENT)
        self.policies = [_tried(policy_of, text) for text in policies.dictionary.to_pylist()]
        unreadable = column("unreadable").fill_null("")
        self._unreadable = unreadable.to_pylist()
        self.is_unreadable: Flags = pc.greater(pc.utf8_length(unreadable), 0).to_numpy(zero_copy_only=False)
        self._sealed = Lists(column("sealed"))
        self.head = Cuts(column("truncated_at"))
        self.records = Records(self, column("retention_set"), "retention_set")
        self.boundaries = Records(self, column("boundaries"), "boundaries")
        self._read_tail(column("tail"))
        self._read_subscribers(column("subscribers"))
        self._read_holds(column("holds"))
        self.plain = self._plain()

    def _column(self, name: str) -> Any:
        """The column without dictionary encoding; all null if it is absent."""
        place = self.batch.schema.get_field_index(name)
        expected = SCHEMA.field(name).type
        if place < 0:
            return pa.nulls(self.rows, expected)
        found = self.batch.column(place)
        if pa.types.is_dictionary(found.type):
            found = found.dictionary_decode()
        return found.cast(expected) if pa.types.is_string(expected) and found.type != expected else found

    def whole(self, column: Any, field: str, owners: Ints | None = None, *, needed: bool = False) -> Ints:
        """The numbers, ``ABSENT`` for null. Records an error for rows with a negative number or a missing required one."""
        values = _filled(column, ABSENT)
        bad: Flags = values < 0
        if column.null_count and not needed:
            bad &= column.is_valid().to_numpy(zero_copy_only=False)
        for place in np.flatnonzero(bad).tolist():
            row = place if owners is None else int(owners[place])
            self._wrong.setdefault(row, (field, "a whole number, 0 or more, is needed"))
        return values

    def _read_tail(self, tail: Any) -> None:
        self.has_tail: Flags = tail.is_valid().to_numpy(zero_copy_only=False)
        times, sizes = pc.struct_field(tail, "time_ms"), pc.struct_field(tail, "size_bytes")
        self.tail_ms, self.tail_bytes = self.whole(times, "tail.time_ms"), self.whole(sizes, "tail.size_bytes")
        for row in np.flatnonzero(self.has_tail & ((self.tail_ms < 0) | (self.tail_bytes < 0))).tolist():
            self._wrong.setdefault(row, ("tail", "time and size are needed"))
        self.tail_events = self.whole(pc.struct_field(tail, "event_count"), "tail.event_count")
        self.tail_cuts = Cuts(pc.struct_field(tail, "cut"))

    def _read_subscribers(self, column: Any) -> None:
        self.subscribers = found = Lists(column)
        self._names = pc.struct_field(found.items, "name")
        for row in found.owners[self._names.is_null().to_numpy(zero_copy_only=False)].tolist():
            self._wrong.setdefault(row, ("subscribers.name", "a subscriber has a name"))
        self.subscriber_cuts = Cuts(pc.struct_field(found.items, "cut"))
        self.activity = [
            self.whole(pc.struct_field(found.items, name), f"subscribers.{name}", found.owners)
            for name in ("oldest_unacked_ms", "backlog_events", "last_active_ms")
        ]

    def _read_holds(self, column: Any) -> None:
        self.holds = found = Lists(column)
        self._hold_until = self.whole(pc.struct_field(found.items, "until_ms"), "holds.until_ms", found.owners)
        self.hold_cuts = Cuts(pc.struct_field(found.items, "cut"))

    # --- what holds for whole columns -----------------------------------------------------------------------------

    def _plain(self) -> Flags:
        table, widths = self._segments_table()
        plain = widths[self.epoch_codes] > 0
        plain &= self._sealed.counts() == 0
        for row in self._wrong:
            plain[row] = False
        every = np.arange(self.rows)
        for cuts, owners, needed in (
            (self.records.cuts, self.records.owners, True),
            (self.boundaries.cuts, self.boundaries.owners, True),
            (self.subscriber_cuts, self.subscribers.owners, False),
            (self.hold_cuts, self.holds.owners, False),
            (self.head, every, False),
            (self.tail_cuts, every, False),
        ):
            plain[owners[~_regular(cuts, self.epoch_codes[owners], table, widths, needed=needed)]] = False
        plain[self.has_tail & (self.tail_cuts.counts() == 0)] = False
        plain[self.records.owners[1:][self._disorder()]] = False
        return plain

    def _segments_table(self) -> tuple[Ints, Ints]:
        """For each history its segments and their number, which is 0 if the stream was scaled or the history is invalid. The
        last row stands for no history."""
        only = [item.only or [] if isinstance(item, History) else [] for item in self.histories]
        widths = np.array([*map(len, only), 0], np.int64)
        table = np.full((len(widths), max(1, int(widths.max()))), _BROKEN - 1, np.int64)
        for code, segments in enumerate(only):
            table[code, : len(segments)] = segments
        return table, widths

    def _disorder(self) -> Flags:
        """For all records except the first: whether they are not later than the previous one in the same row."""
        found = self.records
        same: Flags = found.owners[1:] == found.owners[:-1]
        return same & ((np.diff(found.times) <= 0) | (np.diff(found.sizes) < 0))

    # --- one stream -----------------------------------------------------------------------------------------------

    def texts(self, name: str, *, null: bool = False) -> list[Any]:
        """A column of text. Null becomes None if ``null`` is set, else an empty text."""
        column = self._column(name)
        found: list[Any] = (column if null else column.fill_null("")).to_pylist()
        return found

    def policy_at(self, code: int) -> EffectivePolicy | PenstockError | None:
        """The policy of a code of ``policy_codes``, or why it cannot be used."""
        found: EffectivePolicy | PenstockError | None = None if code < 0 else self.policies[code]
        return found

    def policy(self, row: int) -> EffectivePolicy | None:
        """The policy of the row. Raises InvalidArgumentError."""
        code = int(self.policy_codes[row])
        return None if code < 0 else _made(self.policies[code])

    def facts(self, row: int) -> RetentionFacts:
        """The facts of the row. Raises InvalidArgumentError, InvalidCutError, CorruptDataError."""
        if row in self._wrong:
            field, message = self._wrong[row]
            refuse(message, field)
        code = int(self.epoch_codes[row])
        if code < 0:
            refuse("a stream has at least one epoch", "epochs")
        reader = _Reader(_made(self.histories[code]), checked=bool(self.plain[row]))
        if self._sealed.starts[row] < self._sealed.starts[row + 1]:
            reader.seal(self._sealed, row)
        subscribers, activity = self._subscribers_of(reader, row)
        return RetentionFacts(
            history=reader.history,
            policy=self.policy(row),
            head=reader.optional(self.head, row, "truncated_at"),
            truncating=bool(self.truncating[row]),
            retention_set=reader.records(self.records, row),
            subscribers=subscribers,
            tail=self._tail_of(reader, row) if self.has_tail[row] else None,
            frequency_ms=max(0, int(self.frequency_ms[row])),
            holds=self._holds_of(reader, row),
            activity=activity,
            boundaries=reader.boundaries(self.boundaries, row),
            last_append_ms=_or_none(self.last_append_ms[row]),
            head_event_count=_or_none(self.truncated_events[row]),
            unreadable=self._unreadable[row],
        )

    def _tail_of(self, reader: _Reader, row: int) -> StreamCutRecord:
        return StreamCutRecord(
            time_ms=int(self.tail_ms[row]),
            size_bytes=int(self.tail_bytes[row]),
            positions=reader.cut(self.tail_cuts, row, "tail.cut"),
            event_count=_or_none(self.tail_events[row]),
        )

    def _subscribers_of(
        self, reader: _Reader, row: int
    ) -> tuple[Mapping[str, Positions], Mapping[str, SubscriberActivity]]:
        first, end = int(self.subscribers.starts[row]), int(self.subscribers.starts[row + 1])
        cuts: dict[str, Positions] = {}
        activity: dict[str, SubscriberActivity] = {}
        for place in range(first, end):
            name = self._names[place].as_py()
            if name in cuts:
                refuse("a subscriber is named twice", "subscribers", subscriber=name)
            cuts[name] = reader.optional(self.subscriber_cuts, place, f"subscribers.{name}.cut") or {}
            oldest, events, active = [_or_none(values[place]) for values in self.activity]
            if oldest is not None or events is not None or active is not None:
                activity[name] = SubscriberActivity(
                    oldest_unacked_ms=oldest, backlog_events=events, last_active_ms=active
                )
        return cuts, activity

    def _holds_of(self, reader: _Reader, row: int) -> Sequence[Hold]:
        found = []
        for place in range(int(self.holds.starts[row]), int(self.holds.starts[row + 1])):
            item = self.holds.items[place].as_py()
            found.append(
                Hold(
                    id=item.get("id") or "hold",
                    owner=item.get("owner") or "",
                    reason=item.get("reason") or "",
                    until_ms=_or_none(self._hold_until[place]),
                    positions=reader.optional(self.hold_cuts, place, "holds.cut"),
                )
            )
        return found


def _regular(cuts: Cuts, codes: Ints, table: Ints, widths: Ints, *, needed: bool) -> Flags:
    """Which cuts are those of a stream that was never scaled: all its segments, in order, all with an offset."""
    counts = cuts.counts()
    regular: Flags = counts == widths[codes]
    if not needed:
        regular |= counts == 0
    if not len(cuts.segments):
        return regular
    places = np.arange(len(cuts.segments)) - cuts.starts[:-1][cuts.owners]
    expected = table[codes[cuts.owners], np.minimum(places, table.shape[1] - 1)]
    broken: Flags = (cuts.segments != expected) | (cuts.offsets < 0)
    regular &= cuts.sums(broken) == 0
    return regular


class _Reader:
    """Takes the parts of one row. ``checked``: its cuts are known to be in order."""

    __slots__ = ("checked", "history", "own")

    def __init__(self, own: History, *, checked: bool) -> None:
        self.own = own
        self.history = own.history
        self.checked = checked

    def seal(self, sealed: Lists, row: int) -> None:
        lengths: dict[SegmentId, int] = {}
        for place in range(int(sealed.starts[row]), int(sealed.starts[row + 1])):
            item = sealed.items[place].as_py() or {}
            segment, length = item.get("segment"), item.get("length")
            if segment is None or segment not in self.history.index.ranges:
                refuse("sealed names a segment that no epoch has", "sealed", segment=_named(segment))
            if length is None or length < 0 or segment in lengths:
                refuse("a sealed segment has one length, 0 or more", "sealed", segment=_named(segment))
            lengths[segment] = length
        self.history = self.history.with_lengths(lengths)

    def cut(self, cuts: Cuts, place: int, field: str) -> dict[SegmentId, int]:
        found = cuts.at(place)
        if self.checked:
            return found
        names = cuts.names(place)
        if self.own.is_epoch(names) and min(found.values()) > NOT_STARTED:
            return found
        if len(found) != len(names):
            refuse("cut names a segment twice", field)
        for segment in names:
            if segment not in self.history.index.ranges:
                refuse("cut names a segment that the stream never had", field, segment=_named(segment))
        try:
            check_cut(self.history, found)
        except InvalidCutError as error:
            raise InvalidCutError(error.message, field=field, **error.fields) from error
        return found

    def optional(self, cuts: Cuts, place: int, field: str) -> dict[SegmentId, int] | None:
        return self.cut(cuts, place, field) if cuts.starts[place] < cuts.starts[place + 1] else None

    def records(self, records: Records, row: int) -> Sequence[StreamCutRecord]:
        first, end = int(records.starts[row]), int(records.starts[row + 1])
        if first == end:
            return ()
        if not self.checked:
            for place in range(first, end):
                self.cut(records.cuts, place, f"retention_set[{place - first}].cut")
        counts = [_or_none(value) for value in records.events[first:end]] if records.counts_events else None
        return RecordColumns(
            records.times[first:end].tolist(),
            records.sizes[first:end].tolist(),
            range(first, end),
            counts,
            positions=records.cuts.at,
        )

    def boundaries(self, records: Records, row: int) -> Sequence[StreamCutRecord]:
        first, end = int(records.starts[row]), int(records.starts[row + 1])
        return [
            StreamCutRecord(
                time_ms=int(records.times[place]),
                size_bytes=int(records.sizes[place]),
                positions=self.cut(records.cuts, place, f"boundaries[{place - first}].cut"),
                event_count=_or_none(records.events[place]),
            )
            for place in range(first, end)
        ]


def _or_none(value: Any) -> int | None:
    number = int(value)
    return None if number < 0 else number


def _named(segment: Any) -> str:
    return name_of(SegmentId(segment)) if isinstance(segment, int) and segment >= 0 else "null"


def _tried(make: Any, text: str) -> Any:
    """The decoded text, or the error, which is raised for each row with that text."""
    try:
        return make(text)
    except PenstockError as error:
        return error


def _made(found: Any) -> Any:
    if isinstance(found, PenstockError):
        # Create a new error each time: the traceback of an error grows each time that it is raised.
        raise type(found)(found.message, **found.fields)
    return found
