"""The planner's JSON, line by line and fast: facts as text in, decisions as text out, for fleets of a million streams.

A line is parsed in one strict pass into typed fields. For any unusual line this raises ``_UnusualLineError``, and
``requests.plan_line`` reads the line again to find the error, or none. So both give the same answers, and all error
messages are there. Values that depend only on the policy or the epochs are cached by their text, since a fleet has few
different ones. Source: docs/formats/planner.md, docs/design/0011-retention-policies.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from penstock.core.cuts.order import Positions
from penstock.core.planner_json.answers import VERSION
from penstock.core.planner_json.policy import decode_policy
from penstock.core.planner_json.requests import FactsLine, parse_strictly, plan_line, plan_of
from penstock.core.planner_json.stream import Cuts, Epochs, checked_epochs
from penstock.core.retention.facts import Hold, RecordColumns, RetentionFacts, StreamCutRecord, SubscriberActivity
from penstock.core.streams.history import StreamHistory
from penstock.model.cuts import NOT_STARTED
from penstock.model.errors import CorruptDataError, PenstockError
from penstock.model.policies import LONG_MAX
from penstock.model.retention import EffectivePolicy
from penstock.model.segments import SegmentId

_REMEMBERED_MAX = 1024  # policies that stay decoded; fleets have few different ones
_REMEMBERED_BYTES_MAX = 64 * 1024


class PlannedLine(NamedTuple):
    """The answer to one line of facts: JSON without a line end, and whether the line could be used."""

    text: str
    usable: bool


def plan_lines(lines: Iterable[str]) -> Iterator[PlannedLine]:
    """One answer for each line, in order, each as ``plan_text`` gives it. Takes and keeps one line at a time."""
    return map(plan_text, lines)


def plan_text(line: str) -> PlannedLine:
    """The plan for one line of JSON, as JSON: what ``requests.plan_line`` answers, character by character.

    An unpaired surrogate, which JSON allows as an escape, stays in the text. Raises no errors about the line.
    """
    found = read_line(line)
    if found is None:
        explained = plan_line(line)
        return PlannedLine(_TEXT.encode(explained), "error" not in explained)
    try:
        plan = plan_of(found)
    except PenstockError:
        return PlannedLine(_TEXT.encode(plan_line(line)), False)
    if type(found.id) not in _PLAIN:
        return PlannedLine(_TEXT.encode(msgspec.to_builtins(plan)), True)
    try:
        # Spaces behind commas and colons, as in the text that Python's own encoder makes.
        return PlannedLine(msgspec.json.format(msgspec.json.encode(plan), indent=0).decode(), True)
    except OverflowError:
        # A sum beyond 64 bits, of sizes that no store can have.
        return PlannedLine(_TEXT.encode(msgspec.to_builtins(plan)), True)


def read_line(line: str) -> FactsLine | None:
    """The facts of a line that is certainly valid; None if in doubt."""
    try:
        given = _LINES.decode(line)
        return _facts_line(line, given)
    except (_UnusualLineError, PenstockError, msgspec.MsgspecError, UnicodeEncodeError):
        return None


class _UnusualLineError(Exception):
    """The line needs the thorough parser."""


# --- the form of a line -------------------------------------------------------------------------------------------

Whole = Annotated[int, msgspec.Meta(ge=0, le=LONG_MAX)]
Offset = Annotated[int, msgspec.Meta(ge=NOT_STARTED, le=LONG_MAX)]

# Present fields count, even null ones: each name is followed by one colon, so the number of colons reveals duplicate
# names.


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record is made at the tail, where all segments are started."""

    time_ms: Whole
    size_bytes: Whole
    cut: dict[str, Whole]
    event_count: Whole | UnsetType | None = UNSET


class _Boundary(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """As a record, but anywhere in the stream."""

    time_ms: Whole
    size_bytes: Whole
    cut: dict[str, Offset]
    event_count: Whole | UnsetType | None = UNSET


class _Subscriber(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    cut: dict[str, Offset] | UnsetType | None = UNSET
    oldest_unacked_ms: Whole | UnsetType | None = UNSET
    backlog_bytes: Whole | UnsetType | None = UNSET
    backlog_events: Whole | UnsetType | None = UNSET
    last_active_ms: Whole | UnsetType | None = UNSET


class _Hold(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    id: str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    until_ms: Whole | UnsetType | None = UNSET
    cut: dict[str, Offset] | UnsetType | None = UNSET


class _Stream(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    epochs: msgspec.Raw
    scope: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    sealed: dict[str, Whole] | UnsetType | None = UNSET


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    now_ms: Whole
    stream: _Stream
    version: int | UnsetType = UNSET
    id: msgspec.Raw | UnsetType = UNSET
    frequency_ms: Whole | UnsetType = UNSET
    truncated_at: dict[str, Offset] | UnsetType | None = UNSET
    truncated_events: Whole | UnsetType | None = UNSET
    truncating: bool | UnsetType = UNSET
    policy: msgspec.Raw | UnsetType = UNSET
    unreadable: str | UnsetType | None = UNSET
    retention_set: list[_Record] | UnsetType | None = UNSET
    boundaries: list[_Boundary] | UnsetType | None = UNSET
    subscribers: dict[str, _Subscriber] | UnsetType | None = UNSET
    tail: _Record | UnsetType | None = UNSET
    last_append_ms: Whole | UnsetType | None = UNSET
    hold: bool | _Hold | list[_Hold] | UnsetType | None = UNSET


_LINES = msgspec.json.Decoder(_Line)
_IDS = msgspec.json.Decoder(str)
_TEXT = json.JSONEncoder(ensure_ascii=False)
_PLAIN = (str, type(None))


# --- from the form to facts ---------------------------------------------------------------------------------------


def _facts_line(text: str, given: _Line) -> FactsLine:
    if given.version is not UNSET and given.version != VERSION:
        raise _UnusualLineError
    stream = given.stream
    epochs, names = _epochs_of(bytes(stream.epochs))
    reader = _Reader(epochs, _history_of(epochs, stream.sealed or {}))
    reader.names = names + _names_in(given) + _names_in(stream) + len(stream.sealed or ())
    facts = _facts(reader, given)
    line_id = None if given.id is UNSET else _id_of(reader, bytes(given.id))
    scope, name = stream.scope or "", stream.name or ""
    reader.names += scope.count(":") + name.count(":") + facts.unreadable.count(":")
    if text.count(":") != reader.names:
        # A field is given twice, or a text contains a colon.
        raise _UnusualLineError
    return FactsLine(id=line_id, now_ms=given.now_ms, scope=scope, name=name, facts=facts)


def _facts(reader: _Reader, given: _Line) -> RetentionFacts:
    positions, activity = reader.subscribers(given.subscribers or {})
    return RetentionFacts(
        history=reader.history,
        policy=None if given.policy is UNSET else reader.policy(bytes(given.policy)),
        head=reader.optional(given.truncated_at),
        truncating=given.truncating is True,
        retention_set=reader.records(given.retention_set or ()),
        subscribers=positions,
        tail=reader.record(given.tail) if given.tail else None,
        frequency_ms=given.frequency_ms or 0,
        holds=reader.holds(given.hold) if given.hold else (),
        activity=activity,
        boundaries=[reader.record(item) for item in given.boundaries] if given.boundaries else (),
        last_append_ms=_or_none(given.last_append_ms),
        head_event_count=_or_none(given.truncated_events),
        unreadable=given.unreadable or "",
    )


class _Reader:
    """Takes the parts of one line. ``names``: how many colons they account for so far."""

    __slots__ = ("epochs", "history", "names")

    def __init__(self, epochs: Epochs, history: StreamHistory) -> None:
        self.epochs = epochs
        self.history = history
        self.names = 0

    def policy(self, text: bytes) -> EffectivePolicy | None:
        policy, names = _policy_of(text)
        self.names += names
        return policy

    def cut(self, value: dict[str, int]) -> Positions:
        self.names += len(value)
        segments = self.epochs.segments_named(tuple(value))
        if segments is None or NOT_STARTED in value.values():
            # Segments of several epochs: their names alone do not show whether this is a valid position.
            return Cuts(self.epochs, self.history).cut(value, "cut")
        return dict(zip(segments, value.values(), strict=True))

    def optional(self, value: dict[str, int] | UnsetType | None) -> Positions | None:
        return self.cut(value) if value else None

    def record(self, value: _Record | _Boundary) -> StreamCutRecord:
        self.names += 3 + (value.event_count is not UNSET)
        return StreamCutRecord(
            time_ms=value.time_ms,
            size_bytes=value.size_bytes,
            positions=self.cut(value.cut),
            event_count=_or_none(value.event_count),
        )

    def records(self, items: Sequence[_Record]) -> Sequence[StreamCutRecord]:
        """The retention set as columns, so that unused records do not become objects."""
        if not items:
            return ()
        cuts = [item.cut for item in items]
        spellings = set(map(tuple, cuts))
        if any(self.epochs.segments_named(names) is None for names in spellings):
            raise _UnusualLineError
        counts = [item.event_count for item in items]
        counted = len(counts) - counts.count(UNSET)
        # Nearly always all records have the same segments.
        in_cuts = len(cuts) * len(cuts[0]) if len(spellings) == 1 else sum(map(len, cuts))
        self.names += 3 * len(items) + counted + in_cuts
        own = self.epochs.segments_named(next(iter(spellings))) if len(spellings) == 1 else None
        return RecordColumns(
            [item.time_ms for item in items],
            [item.size_bytes for item in items],
            cuts,
            [_or_none(count) for count in counts] if counted else None,
            positions=self.positions if own is None else lambda cut: dict(zip(own, cut.values(), strict=True)),
        )

    def positions(self, value: dict[str, int]) -> Positions:
        segments = self.epochs.segments_named(tuple(value))
        if segments is None:
            raise CorruptDataError("cut of a record names other segments than when it was checked")
        return dict(zip(segments, value.values(), strict=True))

    def subscribers(self, items: dict[str, _Subscriber]) -> tuple[dict[str, Positions], dict[str, SubscriberActivity]]:
        positions: dict[str, Positions] = {}
        activity: dict[str, SubscriberActivity] = {}
        for name, item in items.items():
            positions[name] = self.cut(item.cut) if item.cut else {}
            names = _names_in(item)
            self.names += 1 + name.count(":") + names
            if names > (item.cut is not UNSET):
                activity[name] = SubscriberActivity(
                    oldest_unacked_ms=_or_none(item.oldest_unacked_ms),
                    backlog_bytes=_or_none(item.backlog_bytes),
                    backlog_events=_or_none(item.backlog_events),
                    last_active_ms=_or_none(item.last_active_ms),
                )
        return positions, activity

    def holds(self, value: bool | _Hold | list[_Hold]) -> tuple[Hold, ...]:
        if value is True:
            return (Hold(id="hold"),)
        if isinstance(value, _Hold):
            return (self._hold(value),)
        return tuple(self._hold(item) for item in value or ())

    def _hold(self, item: _Hold) -> Hold:
        line_id = "hold" if item.id is UNSET else item.id
        owner, reason = item.owner or "", item.reason or ""
        self.names += _names_in(item) + sum(text.count(":") for text in (line_id, owner, reason))
        return Hold(
            id=line_id,
            owner=owner,
            reason=reason,
            until_ms=_or_none(item.until_ms),
            positions=self.optional(item.cut),
        )


def _or_none(value: int | UnsetType | None) -> int | None:
    return None if value is UNSET else value


def _names_in(value: msgspec.Struct) -> int:
    """The number of fields that the text has."""
    return len(value.__struct_fields__) - msgspec.structs.astuple(value).count(UNSET)


def _id_of(reader: _Reader, text: bytes) -> Any:
    """The id to echo: a text, null or a whole number. Anything else may contain names, or have several spellings."""
    found = _IDS.decode(text) if text.startswith(b'"') else json.loads(text.decode())
    if type(found) not in (str, int, type(None)):
        raise _UnusualLineError
    reader.names += text.count(b":")
    return found


def _history_of(epochs: Epochs, sealed: dict[str, int]) -> StreamHistory:
    if not sealed:
        return epochs.history
    lengths: dict[SegmentId, int] = {}
    for name, length in sealed.items():
        segment = epochs.segment_named(name)
        if segment is None:
            raise _UnusualLineError
        lengths[segment] = length
    return epochs.history.with_lengths(lengths)


# --- cached from line to line ---------------------------------------------------------------------------------

_epochs: dict[bytes, tuple[Epochs, int]] = {}
_policies: dict[bytes, tuple[EffectivePolicy | None, int]] = {}


def _epochs_of(text: bytes) -> tuple[Epochs, int]:
    """The epochs, and the number of colons in their text. Raises PenstockError."""
    found = _epochs.get(text)
    if found is None:
        found = checked_epochs(parse_strictly(text.decode())), text.count(b":")
        _remember(_epochs, text, found)
    return found


def _policy_of(text: bytes) -> tuple[EffectivePolicy | None, int]:
    """The policy, and the number of colons in its text. Raises PenstockError."""
    found = _policies.get(text)
    if found is None:
        found = decode_policy(parse_strictly(text.decode())), text.count(b":")
        _remember(_policies, text, found)
    return found


def _remember(known: dict[bytes, Any], text: bytes, value: Any) -> None:
    if len(text) <= _REMEMBERED_BYTES_MAX:
        if len(known) >= _REMEMBERED_MAX:
            known.clear()
        known[text] = value
