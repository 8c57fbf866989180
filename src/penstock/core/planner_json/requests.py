"""The planner's face as JSON: one line of facts in, one decision out. No store is needed.

The form is public and versioned: docs/formats/planner.md, and ``planner.schema.json`` beside this module.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from penstock.core.cuts.order import Positions
from penstock.core.planner_json.policy import decode_policy
from penstock.core.planner_json.stream import Cuts, name_of, take_stream
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
from penstock.core.retention.decision import RetentionDecision
from penstock.core.retention.facts import (
    Advance,
    Drop,
    HeldRange,
    Hold,
    RetentionFacts,
    StreamCutRecord,
    SubscriberActivity,
    WriterState,
    WriterVerdict,
)
from penstock.core.retention.planner import decide
from penstock.core.retention.settlement import Settlement, settle_from
from penstock.core.streams.history import StreamHistory
from penstock.model.errors import InvalidArgumentError, PenstockError, UnsupportedError

VERSION = 1
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
    """A field is given twice, perhaps the one that names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactsLine:
    """One line of facts: what to echo, the time to decide for, and the stream."""

    id: Any
    now_ms: int
    scope: str
    name: str
    facts: RetentionFacts


def plan_line(text: str) -> dict[str, Any]:
    """The plan for one line of JSON; for one that cannot be used, ``{"id", "error": {"kind", "field", "message"}}``.

    The explaining way: it finds what is wrong with a line, and where. ``retention_lines`` is the fast one, for many lines.
    """
    line_id = None
    try:
        value = take_object(_parse(text, _QUICK), None)
        line_id = value.get("id")
        parse_strictly(text)
        line = decode_facts(value)
        return encode_plan(line)
    except _TwiceError as error:
        return encode_error(None, InvalidArgumentError(error.message, **error.fields))
    except PenstockError as error:
        return encode_error(line_id, error)


def read_facts(text: str) -> FactsLine:
    """The facts of one line of JSON. Raises InvalidArgumentError or InvalidCutError, which name the field."""
    return decode_facts(take_object(parse_strictly(text), None))


def encode_error(line_id: Any, error: PenstockError) -> dict[str, Any]:
    """The line that stands for one that could not be used."""
    kind = "unsupported" if isinstance(error, UnsupportedError) else "invalid"
    detail = {name: value for name, value in error.fields.items() if name != "field"}
    message = str(type(error)(error.message, **detail))
    return {"id": line_id, "error": {"kind": kind, "field": error.fields.get("field"), "message": message}}


def decode_facts(value: Mapping[str, Any]) -> FactsLine:
    """Check one parsed line whole, and give its facts.

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


# --- out ----------------------------------------------------------------------------------------------------------


def encode_decision(line_id: Any, decision: RetentionDecision) -> dict[str, Any]:
    """A decision in the form of docs/formats/planner.md."""
    record = decision.record
    candidate = encode_cut(decision.candidate)
    return {
        "version": VERSION,
        "id": line_id,
        "candidate": candidate,
        "truncate": candidate if decision.truncate is decision.candidate else encode_cut(decision.truncate),
        "rule": decision.rule.word,
        "record": None if record is None else encode_record(record),
        "prune_through_ms": decision.prune_through_ms,
        "held_by": encode_holders(decision),
        "expire": [encode_advance(item) for item in decision.expirations],
        "evict": [encode_advance(item) for item in decision.evictions],
        "drop": [encode_drop(item) for item in decision.drops],
        "delete_stream": decision.deletes_stream,
        "writers": encode_verdict(decision.writers),
        "frees_bytes": decision.frees_bytes,
        "next_due_ms": decision.next_due_ms,
        "why": decision.why,
    }


def encode_plan(line: FactsLine) -> dict[str, Any]:
    """The decision for one line of facts, with a summary: events and times of what would be deleted, and who loses data.

    ``settled``, if more is due afterwards: what this decision and the next ones do together. Raises what ``decide`` raises.
    """
    decision = decide(line.facts, now_ms=line.now_ms)
    found = decision.summary()
    known = found.since_ms is not None or found.until_ms is not None
    body = encode_decision(line.id, decision)
    body["events"] = found.events
    body["time_range_ms"] = [found.since_ms, found.until_ms] if known else None
    body["subscribers"] = list(found.subscribers)
    settlement = settle_from(line.facts, decision, now_ms=line.now_ms)
    if any(item.takes or item.deletes_stream for item in settlement.decisions[1:]):
        body["settled"] = _encode_settled(settlement)
    return body


def _encode_settled(found: Settlement) -> dict[str, Any]:
    counts = [item.summary().events for item in found.decisions]
    return {
        "truncate": encode_cut(found.truncate),
        "rule": found.main.rule.word,
        "frees_bytes": found.frees_bytes,
        "events": None if None in counts else sum(item for item in counts if item is not None),
        "delete_stream": found.last.deletes_stream,
        "subscribers": list(found.hurt),
        "steps": encode_steps(found),
    }


def encode_settlement(line_id: Any, found: Settlement) -> dict[str, Any]:
    """Consecutive decisions in the form of a single one: their total effect, who holds what is left, and
    ``steps``, those that change something."""
    main, last = found.main, found.last
    body = encode_decision(line_id, main)
    if len(found.decisions) == 1:
        return {**body, "steps": encode_steps(found)}
    records = [item.record for item in found.decisions if item.record is not None]
    pruned = [item.prune_through_ms for item in found.decisions if item.prune_through_ms is not None]
    return {
        **body,
        "record": encode_record(records[0]) if records else None,
        "prune_through_ms": max(pruned, default=None),
        "held_by": encode_holders(last),
        "expire": [encode_advance(item) for item in found.expirations],
        "evict": [encode_advance(item) for item in found.evictions],
        "drop": [encode_drop(item) for item in found.drops],
        "delete_stream": last.deletes_stream,
        "writers": encode_verdict(last.writers),
        "frees_bytes": found.frees_bytes,
        "next_due_ms": last.next_due_ms,
        "why": found.why,
        "steps": encode_steps(found),
    }


def encode_steps(found: Settlement) -> list[dict[str, Any]]:
    """The steps in order, each with what it does by itself."""
    return [
        {
            "rule": item.decision.rule.word,
            "truncate": encode_cut(item.decision.truncate),
            "frees_bytes": item.frees_bytes,
            "expire": [encode_advance(move) for move in item.decision.expirations],
            "evict": [encode_advance(move) for move in item.decision.evictions],
            "drop": [encode_drop(drop) for drop in item.decision.drops],
            "delete_stream": item.decision.deletes_stream,
            "why": item.why,
        }
        for item in found.steps
    ]


def encode_holders(decision: RetentionDecision) -> list[dict[str, Any]]:
    """Who keeps what the decision leaves."""
    return [{"kind": item.kind.word, "name": item.name, "bytes": item.bytes} for item in decision.held_by]


def encode_advance(item: Advance) -> dict[str, Any]:
    """A subscriber moved by a rule."""
    return {
        "subscriber": item.subscriber,
        "from": encode_cut(item.start),
        "to": encode_cut(item.end),
        "bytes": item.bytes,
        "events": item.events,
        "rule": item.rule.word,
    }


def encode_drop(item: Drop) -> dict[str, Any]:
    """A subscriber to forget."""
    return {
        "subscriber": item.subscriber,
        "from": encode_cut(item.start),
        "last_active_ms": item.last_active_ms,
        "rule": item.rule.word,
    }


def encode_verdict(item: WriterVerdict) -> dict[str, Any]:
    """How far writers may append; the effect of each bound only if the two differ."""
    body: dict[str, Any] = {
        "state": item.state.word,
        "total_bytes": item.total_bytes,
        "total_events": item.total_events,
        "exceeded": item.exceeded,
        "rule": None if item.rule is None else item.rule.word,
        "subscriber": item.subscriber,
    }
    states = {item.bytes_state, item.events_state} - {WriterState.OPEN}
    if states <= {item.state}:
        return body
    return {**body, "bytes_state": item.bytes_state.word, "events_state": item.events_state.word}


def encode_ranges(ranges: Sequence[HeldRange]) -> list[dict[str, Any]]:
    """What ``explain`` answers: ranges from head to tail, each with its one holder."""
    return [
        {
            "kind": item.kind.word,
            "name": item.name,
            "bytes": item.bytes,
            "from": encode_cut(item.start),
            "to": encode_cut(item.end),
            "release_ms": item.release_ms,
        }
        for item in ranges
    ]


def encode_record(record: StreamCutRecord) -> dict[str, Any]:
    """A record of the retention set; ``event_count`` only where somebody counted."""
    body = {"time_ms": record.time_ms, "size_bytes": record.size_bytes, "cut": encode_cut(record.positions)}
    return body if record.event_count is None else {**body, "event_count": record.event_count}


def encode_cut(positions: Positions | None) -> dict[str, int] | None:
    """Offsets by ``number#epoch``, oldest segment first."""
    if positions is None:
        return None
    return {name_of(segment): positions[segment] for segment in sorted(positions)}


# --- in -----------------------------------------------------------------------------------------------------------


def parse_strictly(text: str) -> Any:
    """The value, in which no object has a name twice. Raises InvalidArgumentError."""
    return _parse(text, _STRICT)


def _parse(text: str, decoder: json.JSONDecoder) -> Any:
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError("line is not JSON", detail=str(error)) from error


def _no_constant(name: str) -> NoReturn:
    raise InvalidArgumentError("NaN and infinities are not numbers here", value=name)


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
