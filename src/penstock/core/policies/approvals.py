"""Four eyes: which actions may need approval, who may decide, and which changes of a policy shorten retention. Pure.

Source: docs/design/0055-four-eyes.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.core.access.resources import STORE, of_scope, of_stream
from penstock.core.access.rights import Need, meets
from penstock.core.policies.locks import Promise, keeps, promised
from penstock.core.segments.erasure_receipt import digest_of
from penstock.model.errors import InvalidArgumentError, PermissionDeniedError
from penstock.model.identity import Action, Identity
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, Level, OnExceed, PolicyTarget, Unsubscribed

ACTIONS: Final = ("delete", "erase", "release", "shorten", "truncate")
"""What may need approval. ``require``, the change of these rules to less, always does."""


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
        raise PermissionDeniedError("a request is decided by another identity than the requester", identity=requester)
    if isinstance(target, StreamName):
        resources: Sequence[str] = of_stream(target)
    else:
        resources = (STORE if target is None else of_scope(target),)
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
