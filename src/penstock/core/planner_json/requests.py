"""The planner's JSON interface: one line of facts in, one decision out. Needs no store.

The format is public and versioned: docs/formats/planner.md, and ``planner.schema.json`` beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from penstock.core.cuts.order import Positions
from penstock.core.planner_json.answers import VERSION, line_plan
from penstock.core.planner_json.policy import decode_policy
from penstock.core.planner_json.stream import Cuts, take_stream
from penstock.core.planner_json.values import (
    check_known,
    refuse,
    take_flag,
    take_list,
    take_object,
    take_optional,
    take_text,
    take_whole,
)
from penstock.core.retention.facts import (
    Hold,
    RetentionFacts,
    StreamCutRecord,
    SubscriberActivity,
)
from penstock.core.streams.history import StreamHistory
from penstock.model.answers.plan import LinePlan
from penstock.model.errors import InvalidArgumentError, PenstockError, UnsupportedError
from penstock.model.values.dataclass import dataclass

FIELDS = (
    "version",
    "id",
    "now_ms",
    "frequency_ms",
    "stream",
    "truncated_at",
    "truncated_events",
    "truncating",
    "policy",
    "unreadable",
    "retention_set",
    "boundaries",
    "subscribers",
    "tail",
    "last_append_ms",
    "hold",
)
_STREAM_FIELDS = ("scope", "name", "epochs", "sealed")
_ACTIVITY_FIELDS = ("oldest_unacked_ms", "backlog_bytes", "backlog_events", "last_active_ms")
_SUBSCRIBER_FIELDS = ("cut", *_ACTIVITY_FIELDS)
_HOLD_FIELDS = ("id", "owner", "reason", "until_ms", "cut")


class _TwiceError(InvalidArgumentError):
    """A field is given twice, perhaps the id of the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsLine:
    """One line of facts: the id to echo, the time to decide for, and the stream."""

    id: Any
    now_ms: int
    scope: str
    name: str
    facts: RetentionFacts


def plan_line(text: str) -> dict[str, Any]:
    """The plan for one line of JSON; for one that cannot be used, ``{"id", "error": {"kind", "field", "message"}}``.

    The thorough parser: it finds what is wrong with a line, and where. ``lines`` is the fast one, for many lines.
    """
    line_id = None
    try:
        value = take_object(_parse(text, _QUICK), None)
        line_id = value.get("id")
        parse_strictly(text)
        line = decode_facts(value)
        plan: dict[str, Any] = msgspec.to_builtins(plan_of(line))
        return plan
    except _TwiceError as error:
        return encode_error(None, InvalidArgumentError(error.message, **error.fields))
    except PenstockError as error:
        return encode_error(line_id, error)


def read_facts(text: str) -> FactsLine:
    """The facts of one line of JSON. Raises InvalidArgumentError or InvalidCutError, which name the field."""
    return decode_facts(take_object(parse_strictly(text), None))


def encode_error(line_id: Any, error: PenstockError) -> dict[str, Any]:
    """The answer for a line that cannot be used."""
    kind = "unsupported" if isinstance(error, UnsupportedError) else "invalid"
    detail = {name: value for name, value in error.fields.items() if name != "field"}
    message = str(type(error)(error.message, **detail))
    return {"id": line_id, "error": {"kind": kind, "field": error.fields.get("field"), "message": message}}


def decode_facts(value: Mapping[str, Any]) -> FactsLine:
    """Check a parsed line completely, and return its facts.

    Raises: InvalidArgumentError or InvalidCutError, each with the path of the field in ``field``.
    """
    check_known(value, FIELDS, "")
    if value.get("version", VERSION) != VERSION:
        refuse("version of the facts is not known", "version", version=value["version"], known=VERSION)
    stream = take_object(value.get("stream"), "stream")
    check_known(stream, _STREAM_FIELDS, "stream.")
    epochs, history = take_stream(stream)
    return _facts_line(value, stream, history, Cuts(epochs, history))


def _facts_line(value: Mapping[str, Any], stream: Mapping[str, Any], history: StreamHistory, cuts: Cuts) -> FactsLine:
    get = value.get
    head = cuts.optional(get("truncated_at"), "truncated_at")
    positions, activity = _subscribers(cuts, get("subscribers"))
    tail, frequency_ms, boundaries, hold = get("tail"), get("frequency_ms", 0), get("boundaries"), get("hold")
    last_ms, events = get("last_append_ms"), get("truncated_events")
    facts = RetentionFacts(
        history=history,
        policy=decode_policy(get("policy")),
        head=head,
        truncating=take_flag(get("truncating", False), "truncating"),
        retention_set=cuts.records(get("retention_set")),
        subscribers=positions,
        tail=None if tail is None else cuts.record(tail, "tail"),
        frequency_ms=take_whole(frequency_ms, "frequency_ms"),
        holds=() if hold is None else _holds(cuts, hold),
        activity=activity,
        boundaries=() if boundaries is None else _boundaries(cuts, boundaries),
        last_append_ms=None if last_ms is None else take_whole(last_ms, "last_append_ms"),
        head_event_count=None if events is None else take_whole(events, "truncated_events"),
        unreadable=take_text(get("unreadable") or "", "unreadable"),
    )
    return FactsLine(
        id=get("id"),
        now_ms=take_whole(get("now_ms"), "now_ms"),
        scope=take_text(stream.get("scope", ""), "stream.scope"),
        name=take_text(stream.get("name", ""), "stream.name"),
        facts=facts,
    )


def plan_of(line: FactsLine) -> LinePlan:
    """The decision for a line. Raises what ``decide`` raises."""
    return line_plan(line.id, line.facts, now_ms=line.now_ms)


# --- in -----------------------------------------------------------------------------------------------------------


def parse_strictly(text: str) -> Any:
    """The parsed value. Duplicate names in an object are refused. Raises InvalidArgumentError."""
    return _parse(text, _STRICT)


def _parse(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("line is not JSON", detail=str(error)) from error


def _no_constant(name: str) -> NoReturn:
    raise InvalidArgumentError("NaN and infinities are not allowed", value=name)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _TwiceError("field is given twice", field=twice)
    return result


_QUICK = json.JSONDecoder(parse_constant=_no_constant)
_STRICT = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique)


def _subscribers(cuts: Cuts, value: Any) -> tuple[dict[str, Positions], dict[str, SubscriberActivity]]:
    positions: dict[str, Positions] = {}
    activity: dict[str, SubscriberActivity] = {}
    given = take_object(value or {}, "subscribers")
    for name, entry in given.items():
        item = take_object(entry, f"subscribers.{name}")
        cut = item.get("cut")
        positions[name] = cuts.cut(cut, f"subscribers.{name}.cut") if cut else {}
        if len(item) > ("cut" in item):
            check_known(item, _SUBSCRIBER_FIELDS, f"subscribers.{name}.")
            known = {key: take_optional(item.get(key), f"subscribers.{name}.{key}") for key in _ACTIVITY_FIELDS}
            activity[name] = SubscriberActivity(**known)
    return positions, activity


def _boundaries(cuts: Cuts, value: Any) -> tuple[StreamCutRecord, ...]:
    items = take_list(value, "boundaries")
    return tuple(cuts.record(item, f"boundaries[{place}]") for place, item in enumerate(items))


def _holds(cuts: Cuts, value: Any) -> tuple[Hold, ...]:
    if value is False:
        return ()
    if value is True:
        return (Hold(id="hold"),)
    if isinstance(value, list):
        return tuple(_hold(cuts, item, f"hold[{place}]") for place, item in enumerate(value))
    return (_hold(cuts, value, "hold"),)


def _hold(cuts: Cuts, value: Any, field: str) -> Hold:
    item = take_object(value, field)
    check_known(item, _HOLD_FIELDS, f"{field}.")
    return Hold(
        id=take_text(item.get("id", "hold"), f"{field}.id"),
        owner=take_text(item.get("owner", ""), f"{field}.owner"),
        reason=take_text(item.get("reason", ""), f"{field}.reason"),
        until_ms=take_optional(item.get("until_ms"), f"{field}.until_ms"),
        positions=cuts.optional(item.get("cut"), f"{field}.cut"),
    )
