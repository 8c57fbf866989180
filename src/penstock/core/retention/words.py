"""A decision as a sentence for people. Programs must not parse it: the decision's fields hold the same information."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from penstock.core.cuts.order import Positions, at_or_after, size_till
from penstock.core.retention.explain import Situation
from penstock.core.retention.facts import Advance, RetentionRule, WriterState, WriterVerdict
from penstock.core.units import exact_duration, exact_size, format_size

_TEXTS_MAX = 1024  # texts with limits in the cache: a fleet has few policies

_IDLE = {
    RetentionRule.NO_POLICY: "no retention rule applies",
    RetentionRule.UNREADABLE_POLICY: "the policy cannot be read",
    RetentionRule.NO_RECORD: "the store has not yet recorded a position up to which it could delete",
    RetentionRule.BELOW_MINIMUM: "that would go below the {minimum}",
    RetentionRule.UNSUBSCRIBED: "nobody subscribes, and the policy keeps data until somebody does",
    RetentionRule.MINIMUM: "that would go below the {minimum}",
    RetentionRule.MAXIMUM: "no recorded position would bring the stream within its {maximum}",
    RetentionRule.SUBSCRIBERS: "subscribers have acknowledged none of the data that is left",
    RetentionRule.SUBSCRIBERS_MINIMUM: "that would go below the {minimum}",
    RetentionRule.OVERLAP_MINIMUM: "that would go below the {minimum} for some routing keys",
}
"""Why a rule chooses no position, or none after the head."""
_UNSUITABLE = "no recorded position after the head satisfies the rules"
_ACTS = {
    RetentionRule.MINIMUM: ("Nobody subscribes", ". Trimming further would go below the {minimum}."),
    RetentionRule.MAXIMUM: (
        "The stream exceeds its {maximum} and nobody subscribes",
        "; this trims it to the limit.",
    ),
    RetentionRule.SUBSCRIBERS: ("All subscribers have acknowledged this data", "."),
    RetentionRule.SUBSCRIBERS_MINIMUM: (
        "All subscribers have acknowledged this data",
        ". Trimming further would go below the {minimum}.",
    ),
    RetentionRule.SUBSCRIBERS_MAXIMUM: (
        "The stream exceeds its {maximum}",
        "; this trims it to the limit, past data that subscribers have not acknowledged.",
    ),
    RetentionRule.OVERLAP_MINIMUM: (
        "All subscribers have acknowledged this data",
        ". Trimming further would go below the {minimum} for some routing keys.",
    ),
    RetentionRule.OVERLAP_MAXIMUM: (
        "The stream exceeds its {maximum}",
        "; this trims it past the positions of all subscribers.",
    ),
}
"""Why a rule deletes, and up to where, unless a hold or the tail stops it earlier."""
_WRITERS = {WriterState.HOLD: "wait", WriterState.REJECT: "are refused"}


def sentence(situation: Situation, candidate: Positions | None, frees: int, verdict: WriterVerdict) -> str:
    """What the decision does and why: the deletion first, then subscribers, writers and the stream."""
    said = _truncation(situation, candidate, frees)
    moves, shape = situation.moves, situation.outlook.shape
    if shape is None or not shape.moves:
        return said
    more = [_moved("time to live", moves.expirations), _moved("backlog quota", moves.evictions)]
    if moves.drops:
        more.append(f"Drops {', '.join(item.subscriber for item in moves.drops)}: no acknowledgement for too long.")
    if verdict.exceeded and verdict.state in _WRITERS:
        more.append(f"Writers {_WRITERS[verdict.state]} until subscriber {verdict.subscriber} has caught up.")
    if moves.deletes_stream:
        more.append("Deletes the stream because it is unused.")
    return " ".join([said, *(part for part in more if part)])


def _moved(what: str, advances: Sequence[Advance]) -> str:
    if not advances:
        return ""
    skipped = " and ".join(f"{item.subscriber} past {format_size(item.bytes)}" for item in advances)
    return f"The {what} moves {skipped} of unread data."


def _with_limits(text: str, situation: Situation) -> str:
    """The text with the policy's limits in words, with their numbers if there are any."""
    shape = situation.outlook.shape
    if shape is None:
        return text  # No policy: no text about it names a limit.
    floor, policy = shape.floor, shape.policy
    return _filled(text, floor.age_ms, floor.size_bytes, policy.max_age_ms, policy.max_bytes)


@lru_cache(maxsize=_TEXTS_MAX)
def _filled(
    text: str, min_age_ms: int | None, min_bytes: int | None, max_age_ms: int | None, max_bytes: int | None
) -> str:
    minimum, maximum = _limit("minimum", min_age_ms, min_bytes), _limit("maximum", max_age_ms, max_bytes)
    return text.format(minimum=minimum, maximum=maximum)


def _limit(name: str, age_ms: int | None, size_bytes: int | None) -> str:
    known = [] if age_ms is None else [exact_duration(age_ms)]
    known += [] if size_bytes is None else [exact_size(size_bytes)]
    return f"{known[0]} {name}" if len(known) == 1 else f"{name}{' of ' if known else ''}{' or '.join(known)}"


def _truncation(situation: Situation, candidate: Positions | None, frees: int) -> str:
    outlook, truncate = situation.outlook, situation.truncate
    if candidate is None:
        detail = f" ({outlook.facts.unreadable})" if outlook.facts.unreadable else ""
        return f"Nothing is deleted: {_with_limits(_IDLE.get(situation.rule, _UNSUITABLE), situation)}{detail}."
    if truncate is not None and not frees:
        return f"Nothing is deleted: {_nothing_left(situation, held=truncate is not candidate)}."
    why, extent = _ACTS[situation.rule]
    if truncate is candidate:
        return f"Deletes {format_size(frees)}. {_with_limits(why + extent, situation)}"
    if truncate is not None:
        return f"Deletes {format_size(frees)}, up to a hold or the end of the stream. {_with_limits(why, situation)}."
    if outlook.facts.truncating:
        return "Nothing is deleted now: an earlier truncation is still running."
    if at_or_after(outlook.history, candidate, outlook.head):
        return "Nothing is deleted: a hold keeps what the retention rules would delete."
    return "Nothing is deleted: for some routing keys, the position that the rules choose is before the head."


def _nothing_left(situation: Situation, *, held: bool) -> str:
    """Why the head does not move. ``held``: a hold or the tail stopped it."""
    outlook, rule = situation.outlook, situation.rule
    if outlook.tail is not None and _at_head(situation, outlook.tail.positions):
        return "the stream is empty"
    if held:
        return "a hold keeps what the retention rules would delete"
    if rule is RetentionRule.SUBSCRIBERS:
        moves = situation.moves
        moved = {item.subscriber for item in (*moves.expirations, *moves.evictions)}
        moved.update(item.subscriber for item in moves.drops)
        for name, cut in sorted(outlook.published.items()):
            if name not in moved and _at_head(situation, cut):
                return f"the slowest subscriber, {name}, has acknowledged none of the data that is left"
    return _with_limits(_IDLE.get(rule, _UNSUITABLE), situation)


def _at_head(situation: Situation, cut: Positions) -> bool:
    """Whether no byte of the stream lies before the cut."""
    outlook = situation.outlook
    return size_till(outlook.history, cut) <= outlook.head_bytes
