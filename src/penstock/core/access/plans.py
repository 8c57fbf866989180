"""What the token of a plan allows: exactly the streams of the plan, and one action.

Source: docs/design/0059-plan-tokens.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.access.resources import STORE, covers, of_scope, of_stream
from penstock.core.access.rights import actions_on, allowed
from penstock.model.errors import InvalidArgumentError, PermissionDeniedError
from penstock.model.identity import Action, Grant, Identity, PlanLife
from penstock.model.names import RECORD_STREAMS, SYSTEM_SCOPE, StreamName
from penstock.model.retention import PolicyTarget

_ACTIONS = ("read", "write")
PLAN_S_MIN, PLAN_S_MAX = 10, 86_400
"""How long a plan token may be valid, in seconds: long enough to be renewed in time, and at most a day."""

PLAN_TARGETS_MAX = 500
"""Targets of one token: the rights to more of them do not fit into the 12 KiB that a server takes. Each is compared with
all rights of the caller, in the controller's process."""

PLAN_END_S = 86_400
"""How long after the plan its renewed tokens end, in seconds. A stolen token cannot be renewed for longer than a day."""


def plan_grants(identity: Identity, targets: Sequence[PolicyTarget], action: str) -> tuple[Grant, ...]:
    """The rights of a plan over the targets: on each stream, and on what the identity may do with that action in a scope
    or (None) in the store. Never more than the identity has.

    The store's records have no right of their own, so a plan that reads them gets ``audit`` on the store.
    Raises InvalidArgumentError (no target, more than ``PLAN_TARGETS_MAX``, or an action of no plan), PermissionDeniedError.
    """
    if action not in _ACTIONS or not targets:
        raise InvalidArgumentError(
            "a plan token must name streams to read or to write", action=action[:20], targets=len(targets)
        )
    if len(targets) > PLAN_TARGETS_MAX:
        raise InvalidArgumentError(
            "the plan has too many targets for one token", targets=len(targets), limit=PLAN_TARGETS_MAX
        )
    wanted = Action(action)
    found: dict[Grant, None] = {}
    for target in targets:
        held = (
            _on_stream(identity, target, wanted) if isinstance(target, StreamName) else _below(identity, target, wanted)
        )
        if not held:
            raise PermissionDeniedError(
                "the caller has no right to what the plan needs",
                identity=identity.name,
                needs=f"{_resource(target)}={action}",
            )
        found |= dict.fromkeys(held)
    return tuple(found)


def _resource(target: PolicyTarget) -> str:
    if isinstance(target, StreamName):
        return of_stream(target)[0]
    return STORE if target is None else of_scope(target)


def _on_stream(identity: Identity, stream: StreamName, action: Action) -> list[Grant]:
    if stream in RECORD_STREAMS and action is Action.READ:
        return [Grant(STORE, frozenset({Action.AUDIT}))] if allowed(identity, Action.AUDIT, STORE) else []
    if stream.scope == SYSTEM_SCOPE:
        return []
    held = [resource for resource in of_stream(stream) if allowed(identity, action, resource)]
    return [Grant(resource, frozenset({action})) for resource in held]


def _below(identity: Identity, scope: str | None, action: Action) -> list[Grant]:
    """The rights of the identity to the action on the scope or the store, or on parts of it."""
    inside, only = _resource(scope), frozenset({action})
    if scope is not None and inside == STORE:
        return []
    if allowed(identity, action, inside):
        return [Grant(inside, only)]
    return [
        Grant(one.resource, only) for one in identity.grants if action in one.actions and covers(inside, one.resource)
    ]


def still_held(planned: Sequence[Grant], present: Sequence[Grant]) -> tuple[Grant, ...]:
    """The rights of a plan that its user still has."""
    kept = ((one.resource, one.actions & actions_on(present, [one.resource])) for one in planned)
    return tuple(Grant(resource, actions) for resource, actions in kept if actions)


def plan_life(identity: Identity, *, valid_s: int, now_ms: int) -> PlanLife:
    """The lifetime of a new plan token. If the caller itself presents a plan token, the new one ends with that plan.
    Raises InvalidArgumentError."""
    if not PLAN_S_MIN <= valid_s <= PLAN_S_MAX:
        raise InvalidArgumentError(
            f"a plan token must be valid for {PLAN_S_MIN} to {PLAN_S_MAX} seconds", valid_s=valid_s
        )
    before = identity.plan
    ends_ms = now_ms + PLAN_END_S * 1000 if before is None else before.ends_ms
    return PlanLife(
        proof=identity.proof if before is None else before.proof,
        expires_ms=min(ends_ms, now_ms + valid_s * 1000),
        ends_ms=ends_ms,
        token=identity.token if before is None else before.token,
    )
