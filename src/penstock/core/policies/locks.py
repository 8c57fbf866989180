"""Locks of retention policies: until its date, nobody can shorten what a locked policy promises to keep. Pure.

A policy promises its minimum; one without any limit promises to keep everything. A lock at a level fixes the promise of
that level and of those above it, for all streams below. Longer promises and later dates are allowed.
Source: docs/design/0054-locks.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.codec.control.policy_document import LOCK, time_ms
from penstock.core.policies.levels import Floor, floor_of, resolve
from penstock.model.errors import InvalidArgumentError, RetentionLockError
from penstock.model.names import StreamName
from penstock.model.retention import EMPTY, Combine, EffectivePolicy, Level, Measure, PolicyDocument
from penstock.model.values.dataclass import dataclass

_UNLIMITED: Final = Floor(unlimited=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """The documents that apply to a stream, of which some may be empty."""

    stream: PolicyDocument = EMPTY
    scope: PolicyDocument = EMPTY
    server: PolicyDocument = EMPTY

    @property
    def effective(self) -> EffectivePolicy:
        return resolve(self.stream, self.scope, self.server)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a locked policy keeps until ``until_ms`` (wall clock). ``level``: whose document has the lock."""

    level: Level
    until: str
    floor: Floor
    measure: Measure

    @property
    def until_ms(self) -> int:
        return time_ms(self.until)

    def refuse(self, what: str, **where: object) -> RetentionLockError:
        return RetentionLockError(
            f"a retention lock forbids {what}", lock_until=self.until, level=self.level.value, **where
        )


def with_lock_of(document: PolicyDocument, before: PolicyDocument) -> PolicyDocument:
    """The document with the lock of ``before``: for interfaces that do not know locks."""
    return replace(document, retain=replace(document.retain, lock_until=before.retain.lock_until))


def lock_of(document: PolicyDocument) -> str | None:
    """The end of the document's own lock; None: it has none."""
    until = document.retain.lock_until
    return until if isinstance(until, str) else None


def promised(policy: EffectivePolicy) -> Floor:
    """What the policy keeps, whatever subscribers do. Without any limit, everything."""
    return floor_of(policy) if policy.truncates else _UNLIMITED


def promises(documents: Documents, *, now_ms: int) -> Sequence[Promise]:
    """The promises in force at ``now_ms``, the latest end first."""
    levels = (
        (Level.STREAM, documents.stream, documents),
        (Level.SCOPE, documents.scope, replace(documents, stream=EMPTY)),
        (Level.SERVER, documents.server, replace(documents, stream=EMPTY, scope=EMPTY)),
    )
    found: list[Promise] = []
    for level, own, at in levels:
        until = lock_of(own)
        if until is not None and now_ms < time_ms(until):
            policy = at.effective
            found.append(Promise(level=level, until=until, floor=promised(policy), measure=policy.measure))
    return sorted(found, key=lambda item: -item.until_ms)


def keeps(policy: EffectivePolicy, promise: Promise) -> bool:
    """Whether the policy keeps, in every stream, all data that was promised."""
    floor = promised(policy)
    if floor.unlimited:
        return True
    if promise.floor.is_none:
        return True
    measured = floor.size_bytes is not None or promise.floor.size_bytes is not None
    if measured and policy.measure is not promise.measure:
        return False
    return not promise.floor.unlimited and _within(promise.floor, floor)


def _within(small: Floor, large: Floor) -> bool:
    """Whether ``large`` keeps all that ``small`` keeps. Neither is unlimited.

    A floor keeps data with fewer bytes behind it than ``size`` and younger than ``age`` (``ANY``: either lets it go), or
    with either (``ALL``: both must let it go).
    """
    (size, age, small_any), (most_size, most_age, large_any) = _shape(small), _shape(large)
    if small_any and (size == 0 or age == 0):
        return True
    if small_any and large_any:
        return size <= most_size and age <= most_age
    if small_any:
        return size <= most_size or age <= most_age
    if not large_any:
        return size <= most_size and age <= most_age
    by_size = size == 0 or (size <= most_size and most_age == math.inf)
    by_age = age == 0 or (age <= most_age and most_size == math.inf)
    return by_size and by_age


def _shape(floor: Floor) -> tuple[float, float, bool]:
    """Size and age of the floor, and whether it keeps only what both keep. A dimension without a minimum decides
    nothing."""
    one_any = floor.combine is Combine.ANY
    absent = math.inf if one_any and not floor.is_none else 0
    size = absent if floor.size_bytes is None else floor.size_bytes
    age = absent if floor.age_ms is None else floor.age_ms
    return size, age, one_any


def check_change(
    before: Documents, after: Documents, *, now_ms: int, stream: StreamName | None = None, what: str = "this policy"
) -> None:
    """Refuse a change of the documents of a stream (None: of a stream without its own) that a lock forbids.

    Raises RetentionLockError: the changed policy keeps less than a lock in force promises, or a lock would end earlier.
    """
    where = {} if stream is None else {"stream": str(stream)}
    policy = after.effective
    for promise in (*promises(before, now_ms=now_ms), *promises(after, now_ms=now_ms)):
        if not keeps(policy, promise):
            raise promise.refuse(f"{what}, which keeps less", **where)
    for level, had, has in (
        (Level.STREAM, before.stream, after.stream),
        (Level.SCOPE, before.scope, after.scope),
        (Level.SERVER, before.server, after.server),
    ):
        until, now = lock_of(had), lock_of(has)
        if until is not None and now_ms < time_ms(until) and (now is None or time_ms(now) < time_ms(until)):
            how = "its removal" if now is None else "an earlier end"
            raise RetentionLockError(
                f"a retention lock forbids {how}", lock_until=until, level=level.value, given=now or "", **where
            )


def check_new(before: PolicyDocument, documents: Documents, level: Level, *, now_ms: int) -> None:
    """Check the lock of the document of ``level``, if it is new. ``documents``: with those of the levels above.

    Raises InvalidArgumentError: it ends in the past, or the policy has no minimum that it could protect.
    """
    own = {Level.STREAM: documents.stream, Level.SCOPE: documents.scope, Level.SERVER: documents.server}[level]
    until = lock_of(own)
    if until is None or until == lock_of(before):
        return
    if time_ms(until) <= now_ms:
        raise InvalidArgumentError(
            "a lock must end in the future",
            field=LOCK,
            value=until,
            rule="later than now",
            level=level.value,
            accepted="a later time",
        )
    if promised(documents.effective).is_none:
        raise InvalidArgumentError(
            "a lock needs a minimum that it protects",
            field=LOCK,
            value=until,
            rule="the policy keeps all data, or has retain.min_age_s or retain.min_bytes above 0",
            level=level.value,
            accepted="a document with a minimum",
        )
