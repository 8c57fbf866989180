"""Delegation tokens: what a client may do with the segments of a stream, for a short time. Plan tokens: what the tasks
of a plan may do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.model.identity import Action, Grant, PlanLife
from penstock.model.names import TABLE_SUFFIX, StreamName
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegated:
    """What a token allows: ``actions`` on all segments under the name of the stream, until ``expires_ms`` (wall clock).
    ``table_actions``: those on the segments of the key-value table of that name, for which Pravega's clients ask by the
    same name. ``subject``: the name of the identity."""

    subject: str
    stream: StreamName
    actions: frozenset[Action]
    table_actions: frozenset[Action] = frozenset()
    expires_ms: int

    def on(self, stream: StreamName) -> frozenset[Action]:
        """The actions on segments under that name."""
        if stream == self.stream:
            return self.actions
        is_table = stream == StreamName(self.stream.scope, self.stream.stream + TABLE_SUFFIX)
        return self.table_actions if is_table else frozenset()


class TokenIssuer(Protocol):
    """Issues tokens for this store."""

    def issue(
        self,
        subject: str,
        stream: StreamName,
        actions: frozenset[Action],
        table_actions: frozenset[Action] = frozenset(),
        *,
        until_ms: int | None = None,
    ) -> str:
        """A token; see ``Delegated``. Equal requests may get the same one while most of its time is left.

        ``until_ms``: the latest expiry, milliseconds since the Unix epoch; None: none.
        """
        ...

    def issue_plan(self, subject: str, grants: Sequence[Grant], life: PlanLife) -> str:
        """A plan token: it proves the identity of that name, with these rights only, until ``life.expires_ms``.

        Raises InvalidArgumentError: it would be too long.
        """
        ...

    def now_ms(self) -> int:
        """The wall clock by which tokens expire."""
        ...


class TokenVerifier(Protocol):
    """Verifies tokens without asking anyone. Calls are cheap for a token that was verified before."""

    def verify(self, token: str) -> Delegated:
        """What the token allows. Raises UnauthenticatedError, with the field ``expired`` if time is all that is wrong."""
        ...

    def now_ms(self) -> int:
        """The wall clock by which tokens expire."""
        ...
