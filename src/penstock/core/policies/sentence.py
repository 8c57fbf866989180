"""One readable sentence that describes a policy: correct for every policy, with exact numbers.

Ages are those of recorded positions, so data may stay past its age for the time that "within" states, but is never
deleted early. Holds override everything here.
"""

from __future__ import annotations

from penstock.codec.control.policy_document import text_of_ms
from penstock.core.policies.levels import Floor, floor_of, is_exact, lag_ms, record_interval_ms
from penstock.core.units import exact_duration, exact_size
from penstock.model.retention import Combine, EffectivePolicy, IdleWhen, Measure, OnExceed, Unsubscribed

DEFAULT_CYCLE_MS = 60_000


def soon(lag: int) -> str:
    """``lag`` milliseconds as a bound in words, rounded up: ``a minute``, ``13 min``."""
    for name, unit, size in (("a second", "s", 1000), ("a minute", "min", 60_000), ("an hour", "h", 3_600_000)):
        count = -(-lag // size)
        if count <= 1:
            return name
        if count < 60 or unit == "h":
            return f"{count:,} {unit}"
    return ""


def sentence(policy: EffectivePolicy, *, cycle_ms: int | None = DEFAULT_CYCLE_MS) -> str:
    """The effect of the policy as one sentence without a full stop. ``cycle_ms``: how often the rules are applied;
    None: unknown, so the sentence counts in cycles."""
    floor = floor_of(policy)
    if policy.truncates and _nothing_stays(policy, floor):
        parts = [f"not kept: data is deleted within {_within(policy, cycle_ms)}, even if unread"]
    else:
        parts = [_kept(policy, floor), _consumed(policy, floor, cycle_ms), _unread(policy, floor)]
    parts += [_quota(policy), _idle_subscriber(policy), _idle_stream(policy), _grace(policy), _lock(policy)]
    return "; ".join(part for part in parts if part)


def _within(policy: EffectivePolicy, cycle_ms: int | None) -> str:
    """How long data may stay past its time."""
    if cycle_ms is not None:
        return soon(lag_ms(policy, cycle_ms=cycle_ms))
    if is_exact(policy):
        return "a cycle"
    interval = record_interval_ms(policy)
    return f"{soon(interval)} and two cycles" if interval else "three cycles"


def _nothing_stays(policy: EffectivePolicy, floor: Floor) -> bool:
    return (policy.max_bytes == 0 and floor.lets_go_at(size_bytes=0)) or (
        policy.max_age_ms == 0 and floor.lets_go_at(age_ms=0)
    )


def _subject(policy: EffectivePolicy) -> str:
    return "kept in each segment" if policy.measure is Measure.SEGMENT else "kept"


def _kept(policy: EffectivePolicy, floor: Floor) -> str:
    if floor.unlimited:
        return "kept forever" if policy.stream_idle_ms is None else "kept as long as the stream exists"
    subject = _subject(policy)
    if floor.is_none:
        least = f"{subject} until consumed"
    else:
        limits = [] if floor.age_ms is None else [exact_duration(floor.age_ms)]
        limits += [] if floor.size_bytes is None else [exact_size(floor.size_bytes)]
        # Of two minimums joined by "or", the one reached first allows deletion.
        least = f"{subject} at least " + (" or " if floor.combine is Combine.ANY else " and ").join(limits)
    return least + _at_most(policy, floor)


def _at_most(policy: EffectivePolicy, floor: Floor) -> str:
    sure: list[str] = []
    unsure: list[str] = []
    if policy.max_age_ms is not None:
        (sure if floor.lets_go_at(age_ms=policy.max_age_ms) else unsure).append(exact_duration(policy.max_age_ms))
    if policy.max_bytes is not None:
        (sure if floor.lets_go_at(size_bytes=policy.max_bytes) else unsure).append(exact_size(policy.max_bytes))
    if not sure and not unsure:
        return ""
    said = f", at most {' and '.join(sure)}" if sure else ""
    if unsure:
        said += f", {'and ' if sure else ''}at most {' and '.join(unsure)} where the minimum allows it"
    spoken_of = policy.ttl_ms is not None and policy.max_bytes is None
    return said if spoken_of else f"{said}, even if unread"


def _consumed(policy: EffectivePolicy, floor: Floor, cycle_ms: int | None) -> str:
    if floor.unlimited:
        return ""
    lag = _within(policy, cycle_ms)
    which = "" if floor.is_none else " beyond that" if floor.age_ms is None else " older than that"
    if floor.age_ms is not None and floor.size_bytes is not None and floor.combine is Combine.ALL:
        which = " beyond both"
    said = f"consumed data{which} is deleted within {lag}"
    capped = policy.max_bytes is not None or policy.max_age_ms is not None
    if policy.unsubscribed is Unsubscribed.KEEP:
        rest = "only the maximum deletes data" if capped else "nothing is deleted"
        return f"{said}, but while nobody subscribes {rest}"
    return f"{said}, and while nobody subscribes all data counts as consumed" if floor.is_none else said


def _unread(policy: EffectivePolicy, floor: Floor) -> str:
    ttl = policy.ttl_ms
    capped = policy.max_bytes is not None or policy.max_age_ms is not None
    if ttl is None:
        evicts = OnExceed.EVICT in policy.quota_actions
        stays = not (floor.unlimited or capped or evicts)
        return "unread data is kept" if stays else ""
    shown = exact_duration(ttl)
    most = policy.max_age_ms
    if most is not None and ttl >= most and floor.lets_go_at(age_ms=most):
        return f"the maximum deletes unread data before its time to live of {shown}"
    # If a minimum may still keep the data, its time to live only removes it from the backlog.
    verb = "is deleted" if floor.lets_go_at(age_ms=ttl) else "counts as consumed"
    return f"unread data {verb} after {shown}"


def _quota(policy: EffectivePolicy) -> str:
    """Each action with its quotas; actions on writers first, in the order in which they apply."""
    said: dict[OnExceed, list[str]] = {action: [] for action in OnExceed}
    if policy.backlog_bytes is not None:
        said[policy.bytes_action].append(f"{exact_size(policy.backlog_bytes)} are unread")
    if policy.backlog_events is not None:
        noun = "event is" if policy.backlog_events == 1 else "events are"
        said[policy.events_action].append(f"{policy.backlog_events:,} {noun} unread")
    if policy.backlog_age_ms is not None:
        said[policy.age_action].append(f"unread data is {exact_duration(policy.backlog_age_ms)} old")
    return "; ".join(_acts(action, " or ".join(limits), policy) for action, limits in said.items() if limits)


def _acts(action: OnExceed, once: str, policy: EffectivePolicy) -> str:
    match action:
        case OnExceed.HOLD:
            return f"writers wait once {once}"
        case OnExceed.REJECT:
            return f"writers are refused once {once}"
        case OnExceed.EVICT:
            return f"the slowest subscribers are moved past unread data once {once}, down to {policy.evict_to * 100:.12g} %"


def _idle_subscriber(policy: EffectivePolicy) -> str:
    idle = policy.subscriber_idle_ms
    return "" if idle is None else f"a subscriber that acknowledges nothing for {exact_duration(idle)} is dropped"


def _idle_stream(policy: EffectivePolicy) -> str:
    if policy.stream_idle_ms is None:
        return ""
    caught_up = policy.stream_idle_when is IdleWhen.CAUGHT_UP
    state = "without use once all is read" if caught_up else "without use and subscribers"
    return f"the stream is deleted after {exact_duration(policy.stream_idle_ms)} {state}"


def _lock(policy: EffectivePolicy) -> str:
    if policy.lock_until_ms is None:
        return ""
    return (
        f"locked until {text_of_ms(policy.lock_until_ms)}: nobody can keep less, truncate by hand or delete the stream "
        "before, and erasures wait"
    )


def _grace(policy: EffectivePolicy) -> str:
    return f"a deletion can be undone for {exact_duration(policy.grace_ms)}" if policy.grace_ms else ""
