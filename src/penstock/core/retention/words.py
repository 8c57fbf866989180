"""A decision as people say it. Not to be parsed: the fields of the decision say the same."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.cuts.order import Positions, at_or_after, size_till
from penstock.core.retention.explain import Situation
from penstock.core.retention.facts import Advance, RetentionRule, WriterState, WriterVerdict

REASONS = {
    RetentionRule.NO_POLICY: "no rule of retention truncates the stream",
    RetentionRule.UNREADABLE_POLICY: "the stream's policy could not be read",
    RetentionRule.NO_RECORD: "no cut has been recorded yet",
    RetentionRule.BELOW_MINIMUM: "no cut leaves the policy's minimum",
    RetentionRule.MINIMUM: "no subscriber has published, and this is the newest cut that leaves the minimum",
    RetentionRule.MAXIMUM: "no subscriber has published, the stream is over its maximum, "
    "and this cut leaves most within the limits",
    RetentionRule.SUBSCRIBERS: "all subscribers have acknowledged what lies before the cut",
    RetentionRule.SUBSCRIBERS_MINIMUM: "subscribers have acknowledged more, "
    "and this is the newest cut that leaves the minimum",
    RetentionRule.SUBSCRIBERS_MAXIMUM: "subscribers lag beyond the maximum, which overrules them",
    RetentionRule.OVERLAP_MINIMUM: "the minimum falls across the subscribers' cut, "
    "so that only a cut wholly before theirs will do",
    RetentionRule.OVERLAP_MAXIMUM: "the maximum falls across the subscribers' cut, "
    "so that the first cut wholly ahead of theirs is taken",
    RetentionRule.UNSUBSCRIBED: "the policy keeps data while nobody subscribes",
}
_AT_HEAD = {
    RetentionRule.MINIMUM: "no cut beyond the head leaves the minimum",
    RetentionRule.MAXIMUM: "no cut beyond the head brings the stream within its limits",
    RetentionRule.SUBSCRIBERS: "subscribers together have acknowledged nothing beyond the head",
    RetentionRule.SUBSCRIBERS_MINIMUM: "no cut beyond the head leaves the minimum",
}
_WRITERS = {WriterState.HOLD: "wait", WriterState.REJECT: "are refused"}


def sentence(situation: Situation, candidate: Positions | None, frees: int, verdict: WriterVerdict) -> str:
    """What the decision does and why: the truncation first, then what befalls subscribers, writers and the stream."""
    said = _truncation(situation, candidate, frees)
    moves, shape = situation.moves, situation.outlook.shape
    if shape is None or not shape.moves:
        return said
    more = [_moved("time-to-live", moves.expirations), _moved("the backlog quota", moves.evictions)]
    if moves.drops:
        more.append(f"Dropped for being silent: {', '.join(item.subscriber for item in moves.drops)}.")
    if verdict.exceeded and verdict.state in _WRITERS:
        more.append(f"Writers {_WRITERS[verdict.state]} for subscriber {verdict.subscriber}.")
    if moves.deletes_stream:
        more.append("The stream is deleted for being unused.")
    return " ".join([said, *(part for part in more if part)])


def _moved(what: str, advances: Sequence[Advance]) -> str:
    if not advances:
        return ""
    lost = ", ".join(f"{item.subscriber} past {item.bytes} unread bytes" for item in advances)
    return f"Moved by {what}: {lost}."


def _truncation(situation: Situation, candidate: Positions | None, frees: int) -> str:
    outlook, truncate = situation.outlook, situation.truncate
    reason = REASONS[situation.rule]
    if candidate is None:
        if outlook.facts.unreadable:
            return f"Nothing is truncated: {reason} ({outlook.facts.unreadable})."
        return f"Nothing is truncated: {reason}."
    if truncate is not None and not frees:
        return f"Nothing is truncated: {_nothing_gone(situation, held=truncate is not candidate)}."
    if truncate is candidate:
        return f"Truncation frees {frees} bytes: {reason}."
    if truncate is not None:
        return f"Truncation before that cut, at a hold or the tail, frees {frees} bytes: {reason}."
    if outlook.facts.truncating:
        return f"Nothing is truncated while a truncation is in flight, though {reason}."
    if at_or_after(outlook.history, candidate, outlook.head):
        return f"Nothing is truncated, because a hold forbids it, though {reason}."
    return f"Nothing is truncated, because the chosen cut is not wholly at or after the head, though {reason}."


def _nothing_gone(situation: Situation, *, held: bool) -> str:
    """Why the new head is the old one. ``held``: a hold or the tail has stopped it there."""
    outlook, rule = situation.outlook, situation.rule
    if outlook.tail is not None and _at_head(situation, outlook.tail.positions):
        return "the stream holds nothing"
    if held:
        return f"a hold forbids it, though {REASONS[rule]}"
    if rule is RetentionRule.SUBSCRIBERS:
        moves = situation.moves
        moved = {item.subscriber for item in (*moves.expirations, *moves.evictions)}
        moved.update(item.subscriber for item in moves.drops)
        for name, cut in sorted(outlook.published.items()):
            if name not in moved and _at_head(situation, cut):
                return f"the slowest subscriber, {name}, has acknowledged nothing beyond the head"
    return _AT_HEAD.get(rule, f"the cut that the rules choose lies at the head: {REASONS[rule]}")


def _at_head(situation: Situation, cut: Positions) -> bool:
    """Whether no byte of the stream lies before the cut."""
    outlook = situation.outlook
    return size_till(outlook.history, cut) <= outlook.head_bytes
