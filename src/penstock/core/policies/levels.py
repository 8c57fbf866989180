"""The effective policy of a stream, field by field: its own document, its scope's, the server's, the defaults.

Source: docs/design/0011-retention-policies.md. Pure.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal
from typing import Any, Final

from penstock.codec.control.policy_document import (
    FIELDS,
    LOCK,
    QUOTA_ACTIONS,
    SECTIONS,
    check_value,
    text_of_ms,
    time_ms,
    value_of,
)
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX, RetentionPolicy, RetentionType
from penstock.model.retention import (
    EMPTY,
    Combine,
    EffectivePolicy,
    Inherit,
    Level,
    Measure,
    PolicyDocument,
    PolicyTarget,
    Retain,
    Unsubscribed,
)
from penstock.model.values.dataclass import dataclass

LIMITS: Final[Sequence[str]] = ("retain.min_bytes", "retain.min_age_s", "retain.max_bytes", "retain.max_age_s")
"""The fields that make a policy truncate. ``combine`` and ``measure`` alone only say how limits would be meant."""

MINIMUMS: Final[Sequence[str]] = LIMITS[:2]
"""The fields whose naming says that data above them may go while nobody subscribes."""

RECORDS_PER_LIMIT = 1000  # records within the shortest limit: a cut is off by 0.1% of it
_EXACT_MS = 10**15

_NAMES: Final[Mapping[str, str]] = {
    "retain.min_bytes": "min_bytes",
    "retain.min_age_s": "min_age_ms",
    "retain.combine": "combine",
    "retain.max_bytes": "max_bytes",
    "retain.max_age_s": "max_age_ms",
    "retain.measure": "measure",
    "retain.lock_until": "lock_until_ms",
    "unsubscribed": "unsubscribed",
    "backlog.ttl_s": "ttl_ms",
    "backlog.max_bytes": "backlog_bytes",
    "backlog.max_age_s": "backlog_age_ms",
    "backlog.max_events": "backlog_events",
    "backlog.on_exceed": "on_exceed",
    "backlog.on_exceed_bytes": "on_exceed_bytes",
    "backlog.on_exceed_age": "on_exceed_age",
    "backlog.on_exceed_events": "on_exceed_events",
    "backlog.evict_to": "evict_to",
    "idle.subscriber_s": "subscriber_idle_ms",
    "idle.stream_s": "stream_idle_ms",
    "idle.stream_when": "stream_idle_when",
    "grace_s": "grace_ms",
}


def level_of(target: PolicyTarget) -> Level:
    """The level of a document's target."""
    if target is None:
        return Level.SERVER
    return Level.STREAM if isinstance(target, StreamName) else Level.SCOPE


def milliseconds(seconds: float) -> int:
    """Seconds as whole milliseconds, rounded up from the decimal spelling, so that an age is never reached early."""
    return int((Decimal(repr(seconds)) * 1000).to_integral_value(ROUND_CEILING))


def seconds(value_ms: int) -> int | float:
    """The inverse of ``milliseconds``; whole seconds if a float cannot hold the fraction exactly."""
    if value_ms % 1000 == 0:
        return value_ms // 1000
    return value_ms / 1000 if value_ms < _EXACT_MS else value_ms // 1000 + 1


def resolve(stream: PolicyDocument, scope: PolicyDocument, server: PolicyDocument) -> EffectivePolicy:
    """The effective policy: for each field the first level that sets it, else the default. Checks nothing.

    The action of a quota comes from the first level that sets it or ``on_exceed``; within one document, its own field wins.
    """
    levels = ((Level.STREAM, stream), (Level.SCOPE, scope), (Level.SERVER, server))
    values: dict[str, Any] = {}
    origins: dict[str, Level] = {}
    for item in FIELDS:
        origins[item.path] = Level.DEFAULT
        for level, document in levels:
            value = value_of(document, item.path)
            if not isinstance(value, Inherit):
                origins[item.path] = level
                values[_NAMES[item.path]] = _converted(item.path, value)
                break
    _settle_actions(values, origins)
    _settle_lock(levels, values, origins)
    truncates = any(origins[path] is not Level.DEFAULT for path in LIMITS)
    # A policy that names only maximums does not say that other data may be deleted.
    releases = any(origins[path] is not Level.DEFAULT and values[_NAMES[path]] is not None for path in MINIMUMS)
    values.setdefault("unsubscribed", Unsubscribed.RELEASE if releases else Unsubscribed.KEEP)
    return EffectivePolicy(**values, truncates=truncates, origins=origins)


def _settle_lock(
    levels: Sequence[tuple[Level, PolicyDocument]], values: dict[str, Any], origins: dict[str, Level]
) -> None:
    """The latest lock of all levels: no level shortens the lock of a level above it."""
    found = [(time_ms(text), level) for level, item in levels if isinstance(text := item.retain.lock_until, str)]
    if found:
        values[_NAMES[LOCK]], origins[LOCK] = max(found, key=lambda item: item[0])


def _settle_actions(values: dict[str, Any], origins: dict[str, Level]) -> None:
    """Leave out the action of a quota if ``on_exceed`` of an earlier level decides, or is the same."""
    order = (Level.STREAM, Level.SCOPE, Level.SERVER, Level.DEFAULT)
    shared = order.index(origins["backlog.on_exceed"])
    for path in QUOTA_ACTIONS:
        place = order.index(origins[path])
        same = place == shared and values.get(_NAMES[path]) == values.get("on_exceed")
        if place > shared or same:
            values.pop(_NAMES[path], None)
            origins[path] = Level.DEFAULT


def document_of(policy: EffectivePolicy) -> PolicyDocument:
    """One document with the same effect on a stream without other levels: only fields that some level sets.

    If ``unsubscribed`` has its default, it still follows from the limits, also if they change.
    """
    document = EMPTY
    for path, name in _NAMES.items():
        if policy.given(path):
            document = with_value(document, path, _given(path, getattr(policy, name)))
    return document


def _given(path: str, value: Any) -> Any:
    """The inverse of ``_converted``."""
    if value is None:
        return None
    return text_of_ms(value) if path == LOCK else seconds(value) if path.endswith("_s") else value


def merged(stream: PolicyDocument, above: PolicyDocument) -> PolicyDocument:
    """One document that combines two levels: the stream's value if it has one, else the other's; the later lock."""
    found = stream
    acts = not isinstance(stream.backlog.on_exceed, Inherit)
    for item in FIELDS:
        if isinstance(value_of(stream, item.path), Inherit) and not (acts and item.path in QUOTA_ACTIONS):
            found = with_value(found, item.path, value_of(above, item.path))
    locks = [text for level in (stream, above) if isinstance(text := level.retain.lock_until, str)]
    return with_value(found, LOCK, max(locks, key=time_ms)) if locks else found


def with_value(document: PolicyDocument, path: str, value: Any) -> PolicyDocument:
    """The document with a new value of a field, such as ``retain.min_bytes``. Checks nothing."""
    section, _, name = path.rpartition(".")
    if not section:
        return replace(document, **{name: value})
    return replace(document, **{section: replace(getattr(document, section), **{name: value})})


def _converted(path: str, value: Any) -> Any:
    if path == "grace_s" and value is None:
        # ``validate`` refuses this value; if it was stored anyway, data is kept, not freed at once.
        return LONG_MAX
    if value is None or isinstance(value, enum.Enum) or path == "backlog.evict_to":
        return value
    if path == LOCK:
        return time_ms(value)
    return milliseconds(value) if path.endswith("_s") else int(value)


def validate(document: PolicyDocument, level: Level | PolicyTarget = Level.STREAM) -> PolicyDocument:
    """The document with its values checked, one by one and against each other. ``level`` is named in errors.

    Raises InvalidArgumentError with ``field``, ``value``, ``rule``, ``level`` and ``accepted``. ``check_effective``
    checks the combination with other levels.
    """
    where = level if isinstance(level, Level) else level_of(level)
    _check_shape(document, where)
    changed = document
    for item in FIELDS:
        try:
            value = check_value(item, value_of(document, item.path), path="")
        except InvalidArgumentError as error:
            raise InvalidArgumentError(error.message, **{**error.fields, "level": where.value}) from error
        changed = with_value(changed, item.path, value)
    for low, high in (("retain.min_bytes", "retain.max_bytes"), ("retain.min_age_s", "retain.max_age_s")):
        least, most = value_of(changed, low), value_of(changed, high)
        if isinstance(least, Inherit) or isinstance(most, Inherit):
            continue
        _check_order(low, least, where, high, most, where)
    return changed


def _check_shape(document: object, level: Level) -> None:
    if not isinstance(document, PolicyDocument):
        raise InvalidArgumentError(
            "policy field cannot be used",
            field="policy",
            value=repr(document)[:60],
            rule="it is a PolicyDocument",
            level=level.value,
            accepted="PolicyDocument(...)",
        )
    for name, kind in SECTIONS.items():
        section = getattr(document, name)
        if not isinstance(section, kind):
            raise InvalidArgumentError(
                "policy field cannot be used",
                field=name,
                value=repr(section)[:60],
                rule=f"it is a {kind.__name__}",
                level=level.value,
                accepted=f"{kind.__name__}(...)",
            )


def check_effective(policy: EffectivePolicy, stream: StreamName | None = None) -> None:
    """Refuse a policy whose minimum exceeds its maximum, whichever levels they come from.

    Raises InvalidArgumentError with ``field``, ``value``, ``rule``, ``level``, ``accepted``, and ``stream`` where given.
    """
    pairs = (
        ("retain.min_bytes", policy.min_bytes, "retain.max_bytes", policy.max_bytes, 1),
        ("retain.min_age_s", policy.min_age_ms, "retain.max_age_s", policy.max_age_ms, 1000),
    )
    for low, least, high, most, scale in pairs:
        if not policy.given(low):
            continue
        lows, highs = policy.origins[low], policy.origins.get(high, Level.DEFAULT)
        _check_order(low, _scaled(least, scale), lows, high, _scaled(most, scale), highs, stream)


def _scaled(value: int | None, scale: int) -> int | float | None:
    return value if value is None or scale == 1 else seconds(value)


def _check_order(
    low: str,
    least: float | None,
    low_level: Level,
    high: str,
    most: float | None,
    high_level: Level,
    stream: StreamName | None = None,
) -> None:
    if most is None or (least is not None and least <= most):
        return
    shown = "null" if least is None else str(least)
    where = {} if stream is None else {"stream": str(stream)}
    raise InvalidArgumentError(
        "policy contradicts itself: the minimum exceeds the maximum",
        field=low,
        value=shown,
        rule=f"{low} is at most {high}",
        level=low_level.value,
        accepted=f"0 to {most}, the {high} of level {high_level.value}, or another {high}",
        **where,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The minimum that every rule keeps. ``size_bytes`` and ``age_ms``: None if the dimension has no minimum.
    ``unlimited``: everything stays, and both are None."""

    size_bytes: int | None = None
    age_ms: int | None = None
    combine: Combine = Combine.ANY
    unlimited: bool = False

    @property
    def is_none(self) -> bool:
        """Whether all data may be deleted."""
        return not self.unlimited and self.size_bytes is None and self.age_ms is None

    def lets_go_at(self, *, size_bytes: int | None = None, age_ms: int | None = None) -> bool:
        """Whether the floor never keeps data with this many bytes behind it, or of this age, regardless of the other
        dimension."""
        if self.unlimited:
            return False
        met = [
            given is not None and given >= limit
            for given, limit in ((size_bytes, self.size_bytes), (age_ms, self.age_ms))
            if limit is not None
        ]
        return not met or (any(met) if self.combine is Combine.ANY else all(met))


def floor_of(policy: EffectivePolicy) -> Floor:
    """The effective minimum of the policy, resolving zeros, unlimited values and unset dimensions."""
    if not policy.truncates:
        return Floor(unlimited=True)
    both = (("retain.min_bytes", policy.min_bytes), ("retain.min_age_s", policy.min_age_ms))
    # A minimum other than 0 counts even if the caller gave no origins.
    limits = {name: value for name, value in both if policy.given(name) or value != 0}
    if policy.combine is Combine.ANY:
        if 0 in limits.values():
            return Floor()
        finite = {name: value for name, value in limits.items() if value is not None}
        if limits and not finite:
            return Floor(unlimited=True)
    else:
        if None in limits.values():
            return Floor(unlimited=True)
        finite = {name: value for name, value in limits.items() if value}
    return Floor(
        size_bytes=finite.get("retain.min_bytes"), age_ms=finite.get("retain.min_age_s"), combine=policy.combine
    )


def remarks(policy: EffectivePolicy) -> Sequence[str]:
    """Warnings about allowed combinations that are probably not intended. Empty: none."""
    floor = floor_of(policy)
    found: list[str] = []
    if policy.truncates and floor.unlimited and (policy.max_bytes is not None or policy.max_age_ms is not None):
        found.append("the minimum is unlimited, so the maximum never acts")
    elif policy.truncates and not floor.unlimited:
        if policy.max_bytes is not None and not floor.lets_go_at(size_bytes=policy.max_bytes):
            found.append("the minimum wins over max_bytes: a young stream may be larger")
        if policy.max_age_ms is not None and not floor.lets_go_at(age_ms=policy.max_age_ms):
            found.append("the minimum wins over max_age_s: a quiet stream may hold older data")
    if policy.max_bytes == 0 or policy.max_age_ms == 0:
        found.append("a maximum of 0 removes data before anybody can read it")
    least = policy.min_bytes
    if (
        policy.backlog_bytes is not None
        and (least is None or policy.backlog_bytes <= least)
        and policy.given(LIMITS[0])
    ):
        found.append("the backlog quota is not above retain.min_bytes; they limit different data, unread and read")
    least = policy.min_age_ms
    if (
        policy.backlog_age_ms is not None
        and (least is None or policy.backlog_age_ms <= least)
        and policy.given(LIMITS[1])
    ):
        found.append("the backlog quota is not above retain.min_age_s; they limit different data, unread and read")
    if policy.backlog_bytes == 0 or policy.backlog_events == 0:
        found.append("a backlog quota of 0 is always exceeded")
    if policy.given("backlog.on_exceed") and not policy.limits_backlog:
        found.append("backlog.on_exceed has no effect without a quota")
    for action, limit in QUOTA_ACTIONS.items():
        if policy.given(action) and getattr(policy, _NAMES[limit]) is None:
            found.append(f"{action} has no effect without {limit}")
    if policy.ttl_ms is not None and policy.max_age_ms is not None and policy.ttl_ms >= policy.max_age_ms:
        found.append("backlog.ttl_s is never reached: retain.max_age_s comes first")
    if policy.ttl_ms is not None and policy.backlog_age_ms is not None and policy.ttl_ms <= policy.backlog_age_ms:
        found.append("backlog.max_age_s is never reached: backlog.ttl_s comes first")
    if not policy.truncates and policy.ttl_ms is not None:
        found.append("backlog.ttl_s frees nothing without a limit under retain")
    return found


def pravega_view(document: PolicyDocument) -> RetentionPolicy | None:
    """The document's ``retain`` as Pravega's policy if it limits one dimension of the whole stream, else None.

    An unlimited minimum is shown as the largest long. It cannot show other fields of the document.
    """
    retain = document.retain
    if retain.measure is Measure.SEGMENT:
        return None
    sizes = not (isinstance(retain.min_bytes, Inherit) and isinstance(retain.max_bytes, Inherit))
    ages = not (isinstance(retain.min_age_s, Inherit) and isinstance(retain.max_age_s, Inherit))
    if sizes == ages:
        return None
    kind = RetentionType.SIZE if sizes else RetentionType.TIME
    low, high = (retain.min_bytes, retain.max_bytes) if sizes else (retain.min_age_s, retain.max_age_s)
    path = "retain.min_bytes" if sizes else "retain.min_age_s"
    least = 0 if isinstance(low, Inherit) else LONG_MAX if low is None else _converted(path, low)
    most = None if isinstance(high, Inherit) or high is None else _converted(path, high)
    if most is not None and least > most:
        return None
    return RetentionPolicy(type=kind, minimum=least, maximum=most)


def with_pravega(document: PolicyDocument, policy: RetentionPolicy | None) -> PolicyDocument:
    """The document after a Pravega client wrote ``policy``. Unchanged if that equals its current view. Otherwise
    ``retain`` is exactly that policy, and data without subscribers is released, as in Pravega. Backlog, idleness and
    grace stay.

    ``None`` removes ``retain``, except a lock, and ``unsubscribed`` if the client saw a policy: the next level applies.
    """
    if policy == pravega_view(document):
        return document
    lock = document.retain.lock_until  # Pravega's clients do not see it.
    if policy is None:
        return replace(document, retain=Retain(lock_until=lock), unsubscribed=EMPTY.unsubscribed)
    least = None if policy.minimum >= LONG_MAX else policy.minimum
    # An absent maximum is unlimited in Pravega. Store it explicitly, so that no other level fills it in.
    most = None if policy.maximum is None or policy.maximum >= LONG_MAX else policy.maximum
    if policy.type is RetentionType.SIZE:
        retain = Retain(min_bytes=least, max_bytes=most, lock_until=lock)
    else:
        retain = Retain(
            min_age_s=None if least is None else seconds(least),
            max_age_s=None if most is None else seconds(most),
            lock_until=lock,
        )
    return replace(document, retain=retain, unsubscribed=Unsubscribed.RELEASE)


def effective_of(policy: RetentionPolicy | None) -> EffectivePolicy:
    """The effective policy of a Pravega policy on a stream without other levels."""
    return resolve(with_pravega(EMPTY, policy), EMPTY, EMPTY)


def record_interval_ms(policy: EffectivePolicy, *, cycle_ms: int = 0) -> int | None:
    """The minimum interval between retention-set records; None if no rule uses records.

    A thousandth of the smallest age that rules compare with records, so that the set stays small and an age is off by
    at most 0.1 %. Never less than ``cycle_ms``, and exactly that if bytes are limited.
    """
    ages = [policy.ttl_ms]
    if policy.limits_backlog:
        ages.append(policy.backlog_age_ms)
    needed = policy.ttl_ms is not None or policy.backlog_age_ms is not None
    if policy.truncates and not floor_of(policy).unlimited:
        needed = True
        ages += [policy.max_age_ms, floor_of(policy).age_ms]
    if not needed:
        return None
    by_size = policy.truncates and (policy.max_bytes is not None or floor_of(policy).size_bytes is not None)
    limits = [age for age in ages if age is not None]
    if by_size or not limits:
        return cycle_ms
    return max(cycle_ms, math.ceil(min(limits) / RECORDS_PER_LIMIT))


def is_exact(policy: EffectivePolicy) -> bool:
    """Whether only acknowledgements decide what is deleted, and no recorded position."""
    limited = policy.max_age_ms is not None or policy.max_bytes is not None or policy.ttl_ms is not None
    return floor_of(policy).is_none and not limited


def lag_ms(policy: EffectivePolicy, *, cycle_ms: int) -> int:
    """How long data may stay past its time: one cycle. If its age is that of a record, also the record's interval and
    one more cycle to create the record."""
    interval = record_interval_ms(policy, cycle_ms=cycle_ms)
    return cycle_ms if is_exact(policy) or interval is None else interval + 2 * cycle_ms
