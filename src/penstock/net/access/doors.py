"""What every door does with a call: verify who makes it, and note that beside what the caller states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.core.access.commands import delegable
from penstock.core.access.plans import plan_grants, plan_life
from penstock.core.access.resources import of_stream
from penstock.model.callers import Caller, current_caller
from penstock.model.errors import (
    InvalidArgumentError,
    PermissionDeniedError,
    ThrottledError,
    UnauthenticatedError,
)
from penstock.model.identity import Action, Identity
from penstock.model.names import TABLE_SUFFIX, StreamName
from penstock.model.retention import PolicyTarget
from penstock.net.access.refusals import Refusals
from penstock.ports.access.authenticator import Authenticator, Presented
from penstock.ports.access.tokens import TokenIssuer

AUTHORIZATION = "authorization"
"""The name of the header, and of the metadata over gRPC."""


def only(values: Sequence[str]) -> str:
    """The one text of that header; empty: none. Raises UnauthenticatedError for several: a proxy might read another one
    than this server."""
    if len(values) > 1:
        raise UnauthenticatedError("a call has one set of credentials")
    return values[0] if values else ""


async def identified(
    caller: Caller,
    authenticator: Authenticator | None,
    authorization: str,
    certificate: tuple[str, ...],
    refused: Refusals,
) -> Caller:
    """The caller with its verified identity; unchanged where callers need none. Raises UnauthenticatedError,
    ThrottledError. ``refused`` is called with each."""
    if authenticator is None:
        return caller
    shown = Presented(authorization=authorization, certificate=certificate, peer=caller.peer)
    try:
        return replace(caller, identity=await authenticator.identify(shown))
    except (UnauthenticatedError, ThrottledError) as error:
        refused(error, caller)
        raise


class TokenDesk:
    """Gives callers their tokens for segments and for plans. ``issuer``: None if no tokens are needed; tokens are then
    empty."""

    def __init__(self, issuer: TokenIssuer | None) -> None:
        self._issuer = issuer

    @property
    def is_open(self) -> bool:
        """Whether segments need tokens."""
        return self._issuer is not None

    def token(self, stream: StreamName, *, wanted: frozenset[Action] | None = None) -> str:
        """A token of the caller for the segments of the stream. ``wanted``: actions of which it needs one; None: any.

        It allows all that the caller may do there. Raises UnauthenticatedError, PermissionDeniedError.
        """
        if self._issuer is None:
            return ""
        identity = _identity()
        actions = delegable(identity, stream)
        tables = delegable(identity, StreamName(stream.scope, stream.stream + TABLE_SUFFIX))
        if not (actions | tables if wanted is None else (actions | tables) & wanted):
            raise PermissionDeniedError(
                "the caller has no right to the segments of the stream",
                identity=identity.name,
                needs=f"read or write on {of_stream(stream)[0]}",
            )
        until_ms = None if identity.plan is None else identity.plan.expires_ms
        return self._issuer.issue(identity.name, stream, actions, tables, until_ms=until_ms)

    def plan(self, targets: Sequence[PolicyTarget], action: str, valid_s: int) -> str:
        """A plan token for the targets; see ``core.access.plans.plan_grants``. ``action``: read or write; ``valid_s``: how
        long, in seconds. Raises InvalidArgumentError, UnauthenticatedError, PermissionDeniedError."""
        if self._issuer is None:
            return ""
        identity = _identity()
        grants = plan_grants(identity, targets, action)
        life = plan_life(identity, valid_s=valid_s, now_ms=self._issuer.now_ms())
        return self._issuer.issue_plan(identity.name, grants, life)

    def renew(self, valid_s: int) -> str:
        """A renewed plan token for the caller, valid for longer. It never outlives the plan by more than a day. Raises
        InvalidArgumentError (the caller presents none), UnauthenticatedError."""
        if self._issuer is None:
            return ""
        identity = _identity()
        if identity.plan is None:
            raise InvalidArgumentError("only the token of a plan is renewed", identity=identity.name)
        life = plan_life(identity, valid_s=valid_s, now_ms=self._issuer.now_ms())
        return self._issuer.issue_plan(identity.name, identity.grants, life)

    def token_or_none(self, stream: StreamName) -> str:
        """The token, or empty if the caller may not have one: for replies that carry one besides their answer."""
        try:
            return self.token(stream)
        except PermissionDeniedError:
            return ""


def _identity() -> Identity:
    caller = current_caller()
    if caller is None or caller.identity is None:
        raise UnauthenticatedError("this call needs credentials")
    return caller.identity
