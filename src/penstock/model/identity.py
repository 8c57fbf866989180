"""Who makes a call, as the server has verified it, and what that identity may do.

Source: docs/design/0051-identity.md.
"""

from __future__ import annotations

from enum import StrEnum

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

NAME_MAX = 255  # characters of an identity's name


class Action(StrEnum):
    """What a right allows. None of them includes another one: a right lists each action that it allows."""

    READ = "read"
    """Read events, positions and settings; take part in reader groups."""
    WRITE = "write"
    """Append events, and open and end transactions."""
    ADMIN = "admin"
    """Create, change, scale, seal, truncate and delete."""
    RETAIN = "retain"
    """Set policies, run retention, undo it, and move or remove subscribers."""
    HOLD = "hold"
    """Place, extend and lift holds."""
    ERASE = "erase"
    """Erase events, and export the events of a person."""
    APPROVE = "approve"
    """Approve or refuse the requests of others."""
    AUDIT = "audit"
    """Read the audit stream and receipts."""
    METRICS = "metrics"
    """Read the metrics of the server, with a right on the store. It shows nothing else, not even which objects exist."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A right: ``actions`` on ``resource`` and on all resources below it.

    A resource is ``/`` (the store), ``/scope:S``, ``/scope:S/stream:T``, ``/scope:S/reader-group:G`` or
    ``/scope:S/key-value-table:K``: Pravega's names without their prefix ``prn::``.
    """

    resource: str
    actions: frozenset[Action]

    def __post_init__(self) -> None:
        """Raises InvalidArgumentError: the resource is not a path, or no action is named."""
        if not self.resource.startswith("/") or (self.resource != "/" and self.resource.endswith("/")):
            raise InvalidArgumentError("a resource must be a path such as /scope:S", resource=self.resource[:120])
        if not self.actions:
            raise InvalidArgumentError("a right needs an action", resource=self.resource[:120])


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLife:
    """Of an identity that a plan token proves. ``proof``: how the identity that planned was verified. Times in
    milliseconds since the Unix epoch. ``expires_ms``: when the token expires. ``ends_ms``: no renewed token is valid
    longer. ``token``: the id of the store's own token that requested the plan; empty: something else did."""

    proof: str
    expires_ms: int
    ends_ms: int
    token: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An identity that the server has verified. ``proof`` is how: ``password``, ``token``, ``certificate`` or ``plan``.

    ``plan``: set if, and only if, a plan token proves it. ``token``: the id of the store's own token that proves it; empty:
    something else does.

    Raises InvalidArgumentError: the name is empty, longer than 255 characters, or not one line of text.
    """

    name: str
    proof: str
    grants: tuple[Grant, ...] = ()
    plan: PlanLife | None = None
    token: str = ""

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > NAME_MAX or not self.name.isprintable():
            raise InvalidArgumentError("an identity needs a name: one line of text", limit=NAME_MAX)
