"""Delegation tokens: what a client may do with the segments of a stream, for a short time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.model.identity import Action
from penstock.model.names import StreamName

ACCESS = frozenset({Action.READ, Action.WRITE, Action.ADMIN})
"""The actions on segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegated:
    """What a token allows: the actions on all segments under the name of the stream, until ``expires_ms`` (wall clock).
    ``subject``: the name of the identity."""

    subject: str
    stream: StreamName
    actions: frozenset[Action]
    expires_ms: int


class TokenIssuer(Protocol):
    """Issues tokens for this store."""

    def issue(self, subject: str, stream: StreamName, actions: frozenset[Action]) -> str:
        """A token. Equal requests may get the same one while most of its time is left."""
        ...


class TokenVerifier(Protocol):
    """Verifies tokens without asking anyone. Calls are cheap for a token that was verified before."""

    def verify(self, token: str) -> Delegated:
        """What the token allows. Raises UnauthenticatedError, with the field ``expired`` if time is all that is wrong."""
        ...

    def now_ms(self) -> int:
        """The wall clock by which tokens expire."""
        ...
