"""The planner's answers as text: sizes, times and durations for people. Unknown values are shown unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import UNSET, UnsetType

from penstock.codec.control.effective_policy import PATHS, origin_at, value_at
from penstock.codec.control.policy_document import BY_PATH, Kind
from penstock.core.retention.facts import holder_in_words
from penstock.core.units import counted, exact_duration, exact_size, format_duration, format_size, parse_duration_ms
from penstock.model.answers.erasure import TableConfirmation
from penstock.model.answers.explanation import ExplainedRange, Explanation
from penstock.model.answers.forecast import Forecast, ReachedLimit
from penstock.model.answers.plan import Holding, PlanStep, RetentionPlan, RetentionRun, Writers
from penstock.model.answers.reclaim import PendingBytes, PendingReason, ReclaimReport
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, Level
from penstock.model.segments import epoch_of, make_segment_id, number_of
from penstock.ports.control.subscribers import SubscriberInfo

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PRINTED_OFFSET: Final = re.compile(r"(\d{1,10})#(\d{1,10}):(\d{1,18})", re.ASCII)
NO_SECRETS: Final = (
    "users, the key of tokens and audit signing keys are not in the copy: without --auth it asks callers for nothing, "
    "and with --auth nobody gets in until you add users (penstock user add) or copy the original's access/"
)
"""After a restore or rebuild: a copy must be neither open nor locked without a word."""
_MOMENT_MIN_MS = 10**11
"""Numbers above this that are called ``_ms`` are moments (from 1973 on), those below are durations."""


def moment(at_ms: int) -> str:
    """Milliseconds since the Unix epoch as UTC, to the second: ``2026-01-31 12:00:00Z``."""
    try:
        return f"{_EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%d %H:%M:%SZ}"
    except OverflowError:
        return f"{at_ms} ms"


def parse_moment(text: str, *, now_ms: int, ago: bool = False) -> int:
    """Milliseconds since the Unix epoch of ``7d`` (from now, or ``ago``), ``2026-01-31T12:00:00Z``, a date, or a number
    of them.

    Without a zone it is in UTC. Raises InvalidArgumentError.
    """
    word = text.strip()
    if word.isdecimal():
        return int(word)
    try:
        found = moment_of(word)
    except ValueError:
        try:
            return now_ms + (-1 if ago else 1) * parse_duration_ms(word.removeprefix("+"))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"not a time; write 7d ({'ago' if ago else 'from now'}), 2026-01-31, or 2026-01-31T12:00:00Z",
                value=repr(text[:60]),
            ) from error
    return (found - _EPOCH) // timedelta(milliseconds=1)


def moment_of(word: str) -> datetime:
    """Parse a date (its start) or a time; without a zone it is in UTC, as every time that commands print. Raises
    ValueError."""
    found = datetime.fromisoformat(word)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def policy_rows(policy: EffectivePolicy) -> list[list[str]]:
    """Each field of the document with its value and the level that it is from."""
    return [[path, _in_force(policy, path), origin_at(policy, path).value] for path in PATHS]


def _in_force(policy: EffectivePolicy, path: str) -> str:
    if path in ("retain.min_bytes", "retain.min_age_s") and not policy.given(path):
        return "none"  # It takes no part, which a minimum of 0 would.
    return policy_value(path, value_at(policy, path))


def policy_value(path: str, value: Any) -> str:
    """A value of the document for people, exact."""
    if value is None:
        return "unlimited"
    match BY_PATH[path].kind:
        case Kind.BYTES:
            return exact_size(value)
        case Kind.SECONDS:
            return exact_duration(round(value * 1000))
        case Kind.EVENTS:
            return f"{value:,}"
    return str(value)


def decision_words(decision: RetentionRun) -> dict[str, object]:
    """A decision for people: what is deleted, why, which subscribers lose data, and what holds the rest, head to
    tail."""
    facts: dict[str, object] = {
        "why": decision.why,
        "rule": decision.rule,
        "deletes": format_size(decision.frees_bytes),
    }
    if len(decision.steps) > 1:
        facts["in steps"] = [_step_words(item) for item in decision.steps]
    if isinstance(decision, RetentionPlan):
        facts |= _lost_words(decision)
    if decision.truncate:
        facts["new head"] = cut_words(decision.truncate)
    if hurt := list(hurt_words(decision)):
        facts["affects"] = hurt
    if decision.writers.exceeded:
        facts["writers"] = _writers(decision.writers)
    if decision.next_due_ms is not None:
        facts["next check"] = moment(decision.next_due_ms)
    if isinstance(decision, RetentionPlan | Explanation) and decision.unreadable:
        facts["unreadable"] = f"{decision.unreadable} Everything is kept until the policy can be read."
    if isinstance(decision, Explanation):
        facts |= _position_words(decision)
    if isinstance(decision, Explanation) and decision.ranges:
        facts["head to tail"] = [range_words(item) for item in decision.ranges]
    elif decision.held_by:
        facts["kept"] = [_holder_words(item) for item in decision.held_by]
    return facts


def _lost_words(plan: RetentionPlan) -> dict[str, object]:
    """How many events go, and when they were written."""
    size = format_size(plan.frees_bytes)
    lost: dict[str, object] = {"deletes": size if plan.events is None else f"{size}, {counted(plan.events, 'event')}"}
    return lost if plan.time_range_ms is None else lost | {"written": span(plan.time_range_ms)}


def _position_words(found: Explanation) -> dict[str, object]:
    """Of one place: until when it stays, or when and why it went."""
    release, gone = found.earliest_release_ms, found.gone
    if gone is UNSET or release is UNSET:
        return {}
    if gone is None:
        return {"released": "not by time alone" if release is None else f"{moment(release)} at the earliest"}
    if gone.at_ms is None:
        return {"deleted": "before the oldest truncation on record"}
    sure = "" if gone.certain else " or earlier"
    return {"deleted": f"{moment(gone.at_ms)}{sure}, by {gone.rule}, with {format_size(gone.bytes or 0)}"}


def _writers(verdict: Writers) -> str:
    state = {"hold": "wait", "reject": "are refused", "notify": "go on, and the slowest subscribers are moved"}.get(
        verdict.state, verdict.state
    )
    who = f", until {verdict.subscriber} has read" if verdict.subscriber else ""
    return f"{state}, by {verdict.rule or 'a quota'}{who}"


def _step_words(step: PlanStep) -> str:
    """One of several steps until nothing is due."""
    return "; ".join([f"{format_size(step.frees_bytes)}, by {step.rule}", *hurt_words(step)])


def range_words(item: ExplainedRange) -> str:
    """One range of ``explain``: its size, its holder, and when it may go."""
    whose = f"{f' of {item.owner}' if item.owner else ''}{f': {item.reason}' if item.reason else ''}"
    said = f"{_holder_words(item)}{whose}"
    # The time of data that is due is the time of this answer: "the next cycle deletes it" says when.
    if item.release_ms is None or item.kind == "due":
        return said
    return f"{said}, until {moment(item.release_ms)} at the earliest"


def _holder_words(item: Holding | ExplainedRange) -> str:
    return f"{format_size(item.bytes):>8}  {holder_in_words(f'{item.kind} {item.name}'.strip())}"


def removes(decision: RetentionRun) -> bool:
    """Whether the decision takes something away: data, a subscriber's unread part, a subscriber, or the stream."""
    return bool(decision.frees_bytes or decision.expire or decision.evict or decision.drop or decision.delete_stream)


def hurt_words(decision: RetentionRun | PlanStep) -> Iterator[str]:
    """Who loses what by the decision, one line each."""
    for moved, verb in ((decision.expire, "skips unread data"), (decision.evict, "loses unread data")):
        for item in moved:
            shown = "" if item.events is None else f", {counted(item.events, 'event')}"
            yield f"{item.subscriber}: {verb}, {format_size(item.bytes)}{shown}, by {item.rule}"
    for drop in decision.drop:
        yield f"{drop.subscriber}: is dropped: no acknowledgement for too long"
    if decision.delete_stream:
        yield "the stream itself is deleted"


_PENDING: Final = {
    PendingReason.GRACE: "kept for an undo, by the grace of the policy",
    PendingReason.HOLD: "kept for an undo, by hold {name}",
    PendingReason.LEASE: "leased by readers",
    PendingReason.BLOCK: "in a block that readers can still read in part",
    PendingReason.CHECKPOINT: "freed after the next checkpoint",
    PendingReason.DELETED: "of segments that are about to be deleted",
}
"""Why bytes that nobody can read are still on disk, as in ``PendingReason``."""


def reclaim_words(found: ReclaimReport) -> dict[str, object]:
    """The account of a stream's files, with a line for each part that is not yet freed."""
    sizes = ("stream", "at_ms", "disk_bytes", "live_bytes", "tiered_bytes", "freed_bytes", "pending_bytes")
    facts = facts_words({name: getattr(found, name) for name in sizes})
    if found.pending:
        facts["pending"] = [_pending(item) for item in found.pending]
    return facts


def _pending(item: PendingBytes) -> str:
    until = "" if item.until_ms is None else f", until {moment(item.until_ms)}"
    holders = ", ".join(sorted({lease.holder for lease in item.leases if lease.holder}))
    return f"{format_size(item.bytes)} {_PENDING[item.why].format(name=item.name)}{f' ({holders})' if holders else ''}{until}"


def forecast_words(found: Forecast) -> dict[str, object]:
    """When each limit is reached, as text."""
    rates = ("size_bytes", "append_bytes_per_s", "release_bytes_per_s", "window_ms")
    facts = facts_words({name: getattr(found, name) for name in rates})
    facts["reaches"] = [_filling(item, found.at_ms) for item in found.reaches] or "no limit is set"
    return facts


def _filling(item: ReachedLimit, now_ms: int) -> str:
    whose = f" of {item.subscriber}" if item.subscriber else ""
    said = f"{item.what} {format_size(item.limit_bytes)}{whose}: {format_size(item.used_bytes)} used"
    if item.used_bytes >= item.limit_bytes:
        return f"{said}, reached now"
    if item.at_ms is None:
        return f"{said}, not reached at this rate"
    return f"{said}, reached in {format_duration(max(0, item.at_ms - now_ms))}, {moment(item.at_ms)}"


def parse_cut(text: str, stream: StreamName) -> StreamCut:
    """Parse a cut of ``stream``: the text of a stream cut, or offsets as commands print them, ``0#0:13 1#0:5434``. The
    text of a cut may belong to another stream. Raises InvalidCutError."""
    pairs = [_PRINTED_OFFSET.fullmatch(part) for part in text.split()]
    found = {make_segment_id(int(pair[2]), int(pair[1])): int(pair[3]) for pair in pairs if pair is not None}
    if not pairs or len(found) < len(pairs):
        return StreamCut.from_text(text)
    return StreamCut(stream, found)


def cut_words(cut: Mapping[str, int]) -> str:
    return "  ".join(f"{segment}:{offset}" for segment, offset in cut.items())


def offsets(cut: StreamCut) -> dict[str, int]:
    """The cut as the planner's JSON has it: offsets by ``number#epoch``, oldest segment first."""
    return {f"{number_of(item)}#{epoch_of(item)}": offset for item, offset in sorted(cut.positions.items())}


def subscriber_fields(stream: str, item: SubscriberInfo, *, now_ms: int) -> dict[str, Any]:
    """A subscriber of ``stream`` as plain values, with units in their names; None where nothing is known.

    ``since_acknowledgement_s``: since it last made progress or confirmed that it had read everything. Never negative:
    two clocks may differ.
    """
    return {
        "stream": stream,
        "name": item.name,
        "generation": item.generation,
        "position": None if item.cut is None else offsets(item.cut),
        "position_cut": None if item.cut is None else item.cut.to_text(),
        "lag_bytes": item.lag_bytes,
        "lag_events": None if item.lag_events < 0 else item.lag_events,
        "lag_ms": item.lag_ms,
        "holes": item.holes,
        "last_seen_ms": item.updated_ms,
        "since_acknowledgement_s": max(0, now_ms - item.updated_ms) / 1000,
        "held_bytes": None if item.held_bytes < 0 else item.held_bytes,
        "owner": item.owner or None,
        "query": item.query or None,
    }


def most_held_first(fields: Mapping[str, Any]) -> tuple[int, int, str, str]:
    """The sort key of ``subscriber_fields`` of a whole store: those that hold the most bytes come first."""
    held = fields["held_bytes"]
    return -(-1 if held is None else held), -fields["lag_bytes"], fields["stream"], fields["name"]


def span(times_ms: Sequence[Any]) -> str:
    """From when to when; each may be unknown."""
    first, last = times_ms
    if first is None and last is None:
        return "at an unknown time"
    if first is None or last is None:
        return f"until {moment(last)}" if first is None else f"since {moment(first)}"
    return f"{moment(first)} to {moment(last)}"


def facts_words(facts: Mapping[str, Any]) -> dict[str, object]:
    """An answer of names and values, with every size, time and list readable. Unknown ones are shown as they came."""
    return {
        _title(name): value_words(name, value)
        for name, value in facts.items()
        if name != "version" and value not in (None, [], "")
    }


_CUTS: Final = frozenset(("from", "to", "before", "after", "head", "cut", "position", "truncate", "candidate"))


def policy_words(policy: Mapping[str, Any]) -> str:
    """Effective values by their path, with the level that each is from; defaults are left out."""
    parts = [
        f"{path} {policy_value(path, item.get('value'))} ({item['from']})"
        for path, item in policy.items()
        if path in BY_PATH
        and isinstance(item, Mapping)
        and item.get("from", Level.DEFAULT.value) != Level.DEFAULT.value
    ]
    return ", ".join(parts) or "default"


def document_words(document: Mapping[str, Any]) -> str:
    """A policy document in its JSON form, field by field."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{field}": inner for field, inner in value.items()}
        else:
            flat[name] = value
    parts = [f"{path} {policy_value(path, value)}" for path, value in flat.items() if path in BY_PATH]
    return ", ".join(parts) or "none"


def _title(name: str) -> str:
    for suffix in ("_bytes_per_s", "_bytes", "_ms", "_s"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def value_words(name: str, value: Any) -> object:
    """One value, formatted by the unit in its name."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, Mapping):
        if name in _CUTS and all(isinstance(offset, int) for offset in value.values()):
            return cut_words(value)
        return policy_words(value) if name == "policy" else fields_words(value)
    if isinstance(value, list | tuple):
        return [str(value_words(name, item)) for item in value]
    if isinstance(value, int | float):
        if name.endswith("bytes_per_s"):
            return f"{format_size(value)}/s"
        if name == "bytes" or name.endswith("_bytes"):
            return format_size(value)
        if name.endswith("_ms"):
            return moment(int(value)) if value >= _MOMENT_MIN_MS else format_duration(value)
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    return value


def fields_words(fields: Mapping[str, Any]) -> str:
    """Names and values on one line."""
    parts = []
    for name, value in fields.items():
        if value in (None, "", []):
            continue
        shown = value_words(name, value)
        if isinstance(shown, list):
            shown = "[" + "; ".join(shown) + "]"
        elif isinstance(value, Mapping):
            shown = f"({shown})"
        parts.append(f"{_title(name)} {shown}")
    return ", ".join(parts)


def requester_words(who: str, identity: str | UnsetType) -> str:
    """Who made a request, as stated, and the verified identity if the server has verified one."""
    return who if identity is UNSET else f"{who} (verified: {identity})"


def confirmed_words(stated: TableConfirmation) -> str:
    """Who stated that a table is clean, when and why."""
    return f"confirmed by {requester_words(stated.who, stated.identity)} {moment(stated.at_ms)}, not verified: {stated.why}"
