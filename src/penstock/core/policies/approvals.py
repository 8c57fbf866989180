"""Four eyes: which actions may need approval, who may decide, and which changes of a policy shorten retention. Pure.

Source: docs/design/0055-four-eyes.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.core.access.calls import on_targets
from penstock.core.access.resources import of_table, of_target
from penstock.core.access.rights import Need, meets, missing
from penstock.core.policies.locks import Promise, keeps, promised
from penstock.core.segments.erasure_receipt import digest_of
from penstock.model.errors import ConflictError, InvalidArgumentError, PermissionDeniedError
from penstock.model.identity import Action, Identity
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, Level, OnExceed, PolicyTarget, Unsubscribed

ACTIONS: Final = ("delete", "erase", "release", "shorten", "truncate")
"""What may need approval. ``require``, the change of these rules to less, always does."""


NEEDS: Final[Mapping[str, Action]] = {
    "delete": Action.ADMIN,
    "erase": Action.ERASE,
    "release": Action.HOLD,
    "require": Action.RETAIN,
    "shorten": Action.RETAIN,
    "truncate": Action.ADMIN,
}
"""The right that the requester of an action needs, when it is requested and still when it is performed."""

PENDING_HERE, PENDING_OF_ONE, PENDING_MAX = 100, 400, 4_000
"""Requests that wait at the same time: of one requester in one scope, of one requester, and of all. So ten requesters
are needed to keep another one from requesting, and a listing stays short."""

WITHDRAWN_OF_ONE = 400
"""Requests that one requester withdraws within a day, before another one is refused. They are listed for a month, and
each request reads all of them."""


def too_many(waiting: Iterable[tuple[str, PolicyTarget]], requester: str, target: PolicyTarget) -> int | None:
    """The limit that one more request would exceed; None: it may be made. ``waiting``: requester and target of each
    request that waits."""
    found = list(waiting)
    mine = [of for who, of in found if who == requester]
    here = sum(_scope(of) == _scope(target) for of in mine)
    counts = ((here, PENDING_HERE), (len(mine), PENDING_OF_ONE), (len(found), PENDING_MAX))
    return next((limit for count, limit in counts if count >= limit), None)


def _scope(target: PolicyTarget) -> str | None:
    return target.scope if isinstance(target, StreamName) else target


def check_requester(requester: Identity, action: str, target: PolicyTarget, arguments: Mapping[str, Any]) -> None:
    """Raise ConflictError if the requester has lost the right to what was requested."""
    lacks = missing(requester, _needs(action, target, arguments))
    if lacks is not None:
        raise ConflictError(
            "the requester has lost the right to what was requested; somebody with the right must request it",
            requester=requester.name,
            needs=f"{NEEDS[action].value} on {lacks.options[0][1]}",
        )


def _needs(action: str, target: PolicyTarget, arguments: Mapping[str, Any]) -> Sequence[Need]:
    """The rights that the requested call needs: on the target, on the table, or on all targets of a case."""
    wanted = frozenset({NEEDS[action]})
    if action == "erase" and "targets" in arguments:
        return on_targets(wanted, arguments["targets"])
    if action == "delete" and "table" in arguments:
        return (Need.of(wanted, of_table(str(target), arguments["table"])),)
    return (Need(tuple((wanted, resource) for resource in of_target(target))),)


def checked_actions(actions: Sequence[str]) -> tuple[str, ...]:
    """The actions, sorted and once each. Raises InvalidArgumentError."""
    for action in actions:
        if action not in ACTIONS:
            raise InvalidArgumentError(
                "this action cannot need approval", field="actions", value=str(action)[:60], accepted=", ".join(ACTIONS)
            )
    return tuple(sorted(set(actions)))


def request_digest(action: str, target: str, arguments: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """What an approval is bound to: the action, and the state that it depends on."""
    return digest_of({"action": action, "target": target, "arguments": dict(arguments), "facts": dict(facts)})


def target_of(text: str) -> PolicyTarget:
    """The level that a request names."""
    return StreamName.parse(text) if "/" in text else text or None


def check_may_decide(identity: Identity, requester: str, target: PolicyTarget) -> None:
    """Whether the identity may approve or refuse. Raises PermissionDeniedError."""
    if identity.name == requester:
        raise PermissionDeniedError("you requested this yourself; another identity must decide it", identity=requester)
    resources = of_target(target)
    wanted = frozenset({Action.APPROVE})
    if not meets(identity, Need(tuple((wanted, one) for one in resources))):
        raise PermissionDeniedError(
            "the caller has no right to approve here", identity=identity.name, needs=f"approve on {resources[0]}"
        )


def shortens(before: EffectivePolicy, after: EffectivePolicy) -> bool:
    """Whether data may be deleted earlier, or truncations be undone for a shorter time, after the change."""
    promise = Promise(level=Level.STREAM, until="", floor=promised(before), measure=before.measure)
    if not keeps(after, promise):
        return True
    pairs = (
        (before.max_bytes, after.max_bytes),
        (before.max_age_ms, after.max_age_ms),
        (before.ttl_ms, after.ttl_ms),
        (before.stream_idle_ms, after.stream_idle_ms),
        (before.subscriber_idle_ms, after.subscriber_idle_ms),
        (before.grace_ms, after.grace_ms),
        *(((None, None),) if OnExceed.EVICT not in after.quota_actions else _quotas(before, after)),
    )
    if any(_limit(new) < _limit(old) for old, new in pairs):
        return True
    if after.truncates and not before.truncates:
        return not promised(after).unlimited
    if before.unsubscribed is Unsubscribed.KEEP and after.unsubscribed is Unsubscribed.RELEASE and after.truncates:
        return not promised(after).unlimited
    return before.measure is not after.measure or (
        after.stream_idle_ms is not None and before.stream_idle_when is not after.stream_idle_when
    )


def _quotas(before: EffectivePolicy, after: EffectivePolicy) -> tuple[tuple[int | None, int | None], ...]:
    evicts = OnExceed.EVICT in before.quota_actions and before.evict_to <= after.evict_to
    return (
        (before.backlog_bytes if evicts else None, after.backlog_bytes),
        (before.backlog_events if evicts else None, after.backlog_events),
        (before.backlog_age_ms if evicts else None, after.backlog_age_ms),
    )


def _limit(value: int | None) -> float:
    return math.inf if value is None else value
