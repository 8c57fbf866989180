"""Whether an identity has the rights that a call needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.core.access.resources import covers, touches
from penstock.model.identity import Action, Grant, Identity
from penstock.model.values.dataclass import dataclass

ANY = frozenset(Action) - {Action.METRICS}
"""A right to the metrics alone shows nothing of a stream, a scope or the store."""
LOOK = ANY - {Action.WRITE}
"""A right to anything but writing: who only writes learns nothing about readers, positions and policies."""
SCRAPE = LOOK | {Action.METRICS}
"""A right to the metrics of the server. Any right to look at the store includes them."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a call needs: for one of the ``options``, one of its actions on its resource. ``below``: a right on something
    below the resource suffices, because the call shows no more than that."""

    options: tuple[tuple[frozenset[Action], str], ...]
    below: bool = False

    @classmethod
    def of(cls, actions: Iterable[Action], resource: str, *, below: bool = False) -> Need:
        """One of the actions on the resource."""
        return cls(((frozenset(actions), resource),), below)


def allowed(identity: Identity, action: Action, resource: str) -> bool:
    """Whether the identity may do the action on the resource, a path such as ``/scope:S/stream:T``."""
    return any(action in grant.actions and covers(grant.resource, resource) for grant in identity.grants)


def meets(identity: Identity, need: Need) -> bool:
    """Whether the identity has what is needed."""
    reaches = touches if need.below else covers
    return any(
        grant.actions & actions and reaches(grant.resource, resource)
        for grant in identity.grants
        for actions, resource in need.options
    )


def missing(identity: Identity, needs: Iterable[Need]) -> Need | None:
    """The first need that the identity does not meet; None: it may make the call."""
    return next((need for need in needs if not meets(identity, need)), None)


def actions_on(grants: Sequence[Grant], resources: Iterable[str]) -> frozenset[Action]:
    """All actions that the rights allow on one of the resources."""
    wanted = tuple(resources)
    return frozenset(
        action
        for grant in grants
        if any(covers(grant.resource, resource) for resource in wanted)
        for action in grant.actions
    )
