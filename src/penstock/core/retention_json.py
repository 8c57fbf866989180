"""The planner's face as JSON: one line of facts in, one decision out. No store is needed.

The form is public and versioned: docs/formats/planner.md, and ``planner.schema.json`` beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.core.cut_order import Positions, check_cut
from penstock.core.history import EpochRecord, StreamHistory
from penstock.core.retention import decide
from penstock.core.retention_decision import RetentionDecision
from penstock.core.retention_facts import HeldRange, Hold, RetentionFacts, StreamCutRecord
from penstock.core.retention_policy_json import check_known, decode_policy, refuse
from penstock.model.errors import (
    InvalidArgumentError,
    InvalidCutError,
    PenstockError,
    UnsupportedError,
)
from penstock.model.policies import LONG_MAX
from penstock.model.segments import KeyRange, SegmentId, SegmentRange, epoch_of, make_segment_id, number_of

VERSION = 1
FIELDS = (
    "version",
    "id",
    "now_ms",
    "frequency_ms",
    "stream",
    "truncated_at",
    "truncating",
    "policy",
    "retention_set",
    "subscribers",
    "tail",
    "hold",
)
_SUBSCRIBER_FIELDS = ("cut", "oldest_unacked_ms", "backlog_bytes", "backlog_events", "last_active_ms")
_HOLD_FIELDS = ("id", "owner", "reason", "until_ms", "cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsLine:
    """One line of facts: what to echo, the time to decide for, and the stream."""

    id: Any
    now_ms: int
    scope: str
    name: str
    facts: RetentionFacts


def plan_line(text: str) -> dict[str, Any]:
    """The decision for one line of JSON; for one that cannot be used, ``{"id", "error": {"kind", "field", "message"}}``."""
    line_id = None
    try:
        value = _parse(text)
        line_id = value.get("id")
        line = decode_facts(value)
        return encode_decision(line.id, decide(line.facts, now_ms=line.now_ms))
    except PenstockError as error:
        return encode_error(line_id, error)


def encode_error(line_id: Any, error: PenstockError) -> dict[str, Any]:
    """The line that stands for one that could not be used."""
    kind = "unsupported" if isinstance(error, UnsupportedError) else "invalid"
    detail = {name: value for name, value in error.fields.items() if name != "field"}
    message = str(type(error)(error.message, **detail))
    return {"id": line_id, "error": {"kind": kind, "field": error.fields.get("field"), "message": message}}


def decode_facts(value: Mapping[str, Any]) -> FactsLine:
    """Check one parsed line whole, and give its facts.

    Raises: InvalidArgumentError, InvalidCutError or UnsupportedError, each with the path of the field in ``field``.
    """
    check_known(value, FIELDS, "")
    if value.get("version", VERSION) != VERSION:
        refuse("version of the facts is not known", "version", version=value["version"], known=VERSION)
    stream = _object(value.get("stream"), "stream")
    check_known(stream, ("scope", "name", "epochs", "sealed"), "stream.")
    history = _history(stream)
    head = value.get("truncated_at")
    subscribers = {
        name: _subscriber(history, item, f"subscribers.{name}")
        for name, item in _object(value.get("subscribers") or {}, "subscribers").items()
    }
    tail = value.get("tail")
    facts = RetentionFacts(
        history=history,
        policy=decode_policy(value.get("policy")),
        head=_cut(history, head, "truncated_at") if head else None,
        truncating=_flag(value.get("truncating", False), "truncating"),
        retention_set=_records(history, value.get("retention_set")),
        subscribers=subscribers,
        tail=None if tail is None else _record(history, tail, "tail"),
        frequency_ms=_whole(value.get("frequency_ms", 0), "frequency_ms"),
        holds=_holds(history, value.get("hold")),
    )
    return FactsLine(
        id=value.get("id"),
        now_ms=_whole(value.get("now_ms"), "now_ms"),
        scope=_text(stream.get("scope", ""), "stream.scope"),
        name=_text(stream.get("name", ""), "stream.name"),
        facts=facts,
    )


def encode_decision(line_id: Any, decision: RetentionDecision) -> dict[str, Any]:
    """A decision in the form of docs/formats/planner.md."""
    record = decision.record
    return {
        "version": VERSION,
        "id": line_id,
        "candidate": encode_cut(decision.candidate),
        "truncate": encode_cut(decision.truncate),
        "rule": decision.rule.value,
        "record": None if record is None else encode_record(record),
        "prune_through_ms": decision.prune_through_ms,
        "held_by": [{"kind": item.kind.value, "name": item.name, "bytes": item.bytes} for item in decision.held_by],
        "expire": [],
        "evict": [
            {
                "subscriber": item.subscriber,
                "from": encode_cut(item.start),
                "to": encode_cut(item.end),
                "bytes": item.bytes,
                "rule": item.rule.value,
            }
            for item in decision.evictions
        ],
        "frees_bytes": decision.frees_bytes,
        "next_due_ms": decision.next_due_ms,
        "why": decision.why,
    }


def encode_ranges(ranges: Sequence[HeldRange]) -> list[dict[str, Any]]:
    """What ``explain`` answers: ranges from head to tail, each with its one holder."""
    return [
        {
            "kind": item.kind.value,
            "name": item.name,
            "bytes": item.bytes,
            "from": encode_cut(item.start),
            "to": encode_cut(item.end),
        }
        for item in ranges
    ]


def encode_record(record: StreamCutRecord) -> dict[str, Any]:
    """A record of the retention set."""
    return {"time_ms": record.time_ms, "size_bytes": record.size_bytes, "cut": encode_cut(record.positions)}


def encode_cut(positions: Positions | None) -> dict[str, int] | None:
    """Offsets by ``number#epoch``, oldest segment first."""
    if positions is None:
        return None
    return {f"{number_of(segment)}#{epoch_of(segment)}": positions[segment] for segment in sorted(positions)}


def _parse(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("line is not JSON", detail=str(error)) from error
    return _object(value, None)


def _no_constant(name: str) -> NoReturn:
    raise InvalidArgumentError("NaN and infinities are not numbers here", value=name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidArgumentError("field is given twice", field=twice)
    return result


# --- the stream ---------------------------------------------------------------------------------------------------


def _history(stream: Mapping[str, Any]) -> StreamHistory:
    epochs = _list(stream.get("epochs"), "stream.epochs")
    if not epochs:
        refuse("a stream has at least one epoch", "stream.epochs")
    known: dict[SegmentId, KeyRange] = {}
    before: set[SegmentId] = set()
    records = []
    for number, items in enumerate(epochs):
        field = f"stream.epochs[{number}]"
        segments = [_range(item, f"{field}[{place}]") for place, item in enumerate(_list(items, field))]
        segments.sort(key=lambda item: item.keys.low)
        _check_tiles(segments, field)
        for item in segments:
            _check_segment(item, number, known, before, field)
        before = {item.segment for item in segments}
        if len(before) != len(segments):
            refuse("a segment is named twice in one epoch", field)
        records.append(EpochRecord(epoch=number, segments=tuple(segments)))
    sealed: dict[SegmentId, int] = {}
    for name, length in _object(stream.get("sealed") or {}, "stream.sealed").items():
        segment = _segment(name, "stream.sealed")
        if segment not in known:
            refuse("sealed names a segment that no epoch has", "stream.sealed", segment=name)
        sealed[segment] = _whole(length, f"stream.sealed.{name}")
    return StreamHistory(epochs=tuple(records), sealed_lengths=sealed)


def _range(value: Any, field: str) -> SegmentRange:
    item = _object(value, field)
    check_known(item, ("segment", "low", "high"), f"{field}.")
    low, high = _number(item.get("low"), f"{field}.low"), _number(item.get("high"), f"{field}.high")
    if not 0.0 <= low < high <= 1.0:
        refuse("key range is empty or outside [0, 1]", field, low=low, high=high)
    return SegmentRange(segment=_segment(item.get("segment"), f"{field}.segment"), keys=KeyRange(low=low, high=high))


def _check_tiles(segments: Sequence[SegmentRange], field: str) -> None:
    edge = 0.0
    for item in segments:
        if item.keys.low > edge:
            refuse("key space has a gap", field, low=edge, high=item.keys.low)
        if item.keys.low < edge:
            refuse("key ranges overlap", field, low=item.keys.low, high=edge)
        edge = item.keys.high
    if edge != 1.0:
        refuse("key space has a gap", field, low=edge, high=1.0)


def _check_segment(
    item: SegmentRange, number: int, known: dict[SegmentId, KeyRange], before: set[SegmentId], field: str
) -> None:
    segment = item.segment
    name = f"{number_of(segment)}#{epoch_of(segment)}"
    if segment not in known:
        if epoch_of(segment) != number:
            refuse("a segment does not carry the epoch in which it first appears", field, segment=name, epoch=number)
        known[segment] = item.keys
        return
    if known[segment] != item.keys:
        refuse("a segment has another key range than in an earlier epoch", field, segment=name)
    if segment not in before and epoch_of(segment) != number:
        refuse("a segment comes back after an epoch without it", field, segment=name)


# --- cuts, records, subscribers, holds ----------------------------------------------------------------------------


def _cut(history: StreamHistory, value: Any, field: str) -> dict[SegmentId, int]:
    positions: dict[SegmentId, int] = {}
    for name, offset in _object(value, field).items():
        segment = _segment(name, field)
        if segment not in history.index.ranges:
            refuse("cut names a segment that the stream never had", field, segment=name)
        positions[segment] = _whole(offset, f"{field}.{name}", least=-1)
    try:
        check_cut(history, positions)
    except InvalidCutError as error:
        raise InvalidCutError(error.message, field=field, **error.fields) from error
    return positions


def _record(history: StreamHistory, value: Any, field: str) -> StreamCutRecord:
    item = _object(value, field)
    check_known(item, ("time_ms", "size_bytes", "cut"), f"{field}.")
    return StreamCutRecord(
        time_ms=_whole(item.get("time_ms"), f"{field}.time_ms"),
        size_bytes=_whole(item.get("size_bytes"), f"{field}.size_bytes"),
        positions=_cut(history, item.get("cut"), f"{field}.cut"),
    )


def _records(history: StreamHistory, value: Any) -> tuple[StreamCutRecord, ...]:
    items = _list([] if value is None else value, "retention_set")
    records = tuple(_record(history, item, f"retention_set[{place}]") for place, item in enumerate(items))
    for place in range(1, len(records)):
        before, record = records[place - 1], records[place]
        if record.time_ms <= before.time_ms:
            refuse("records are not in order of time, oldest first", f"retention_set[{place}].time_ms")
        if record.size_bytes < before.size_bytes:
            refuse("a record is smaller than the one before it", f"retention_set[{place}].size_bytes")
    return records


def _subscriber(history: StreamHistory, value: Any, field: str) -> Positions:
    item = _object(value, field)
    check_known(item, _SUBSCRIBER_FIELDS, f"{field}.")
    cut = item.get("cut")
    return _cut(history, cut, f"{field}.cut") if cut else {}


def _holds(history: StreamHistory, value: Any) -> tuple[Hold, ...]:
    if value is None or value is False:
        return ()
    if value is True:
        return (Hold(id="hold"),)
    if isinstance(value, list):
        return tuple(_hold(history, item, f"hold[{place}]") for place, item in enumerate(value))
    return (_hold(history, value, "hold"),)


def _hold(history: StreamHistory, value: Any, field: str) -> Hold:
    item = _object(value, field)
    check_known(item, _HOLD_FIELDS, f"{field}.")
    until, cut = item.get("until_ms"), item.get("cut")
    return Hold(
        id=_text(item.get("id", "hold"), f"{field}.id"),
        owner=_text(item.get("owner", ""), f"{field}.owner"),
        reason=_text(item.get("reason", ""), f"{field}.reason"),
        until_ms=None if until is None else _whole(until, f"{field}.until_ms"),
        positions=_cut(history, cut, f"{field}.cut") if cut else None,
    )


# --- plain values -------------------------------------------------------------------------------------------------


def _typed(test: Callable[[Any], bool], wanted: str, value: Any, field: str | None) -> Any:
    if value is None:
        refuse(f"{wanted} is missing", field)
    if not test(value):
        refuse(f"not {wanted}", field, value=repr(value)[:60])
    return value


def _object(value: Any, field: str | None) -> dict[str, Any]:
    result: dict[str, Any] = _typed(lambda item: isinstance(item, dict), "an object", value, field)
    return result


def _list(value: Any, field: str) -> list[Any]:
    result: list[Any] = _typed(lambda item: isinstance(item, list), "a list", value, field)
    return result


def _text(value: Any, field: str) -> str:
    result: str = _typed(lambda item: isinstance(item, str), "a text", value, field)
    return result


def _flag(value: Any, field: str) -> bool:
    result: bool = _typed(lambda item: isinstance(item, bool), "true or false", value, field)
    return result


def _number(value: Any, field: str) -> float:
    return float(_typed(lambda i: isinstance(i, (int, float)) and not isinstance(i, bool), "a number", value, field))


def _whole(value: Any, field: str, *, least: int = 0) -> int:
    number: int = _typed(lambda i: isinstance(i, int) and not isinstance(i, bool), "a whole number", value, field)
    if number < least:
        refuse("number is negative" if least == 0 else f"offset is less than {least}", field, value=number)
    if number > LONG_MAX:
        refuse("number does not fit into 63 bits", field, value=number)
    return number


def _segment(value: Any, field: str) -> SegmentId:
    number, mark, epoch = _text(value, field).partition("#")
    if not mark or not _digits(number) or not _digits(epoch):
        refuse("a segment is written NUMBER#EPOCH", field, segment=str(value)[:60])
    if int(number) >= 1 << 31 or int(epoch) >= 1 << 31:
        refuse("number or epoch of a segment does not fit into 31 bits", field, segment=value)
    return make_segment_id(int(epoch), int(number))


def _digits(text: str) -> bool:
    return 0 < len(text) <= 10 and text.isascii() and text.isdigit()
