"""How tasks present the token of their plan, so that executors need no credentials of their own.

The driver asks the controller for a token with exactly the rights that the plan needs, and sends it in the partitions.
A task renews it while it runs. Source: docs/design/0059-plan-tokens.md.
"""

from __future__ import annotations

import base64
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

from penstock.client.retry import RETRYABLE
from penstock.core.access.plans import PLAN_S_MAX, PLAN_S_MIN
from penstock.model.credentials import INSECURE, PASSWORD_FILE, TOKEN_FILE, USER
from penstock.model.errors import PlanExpiredError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyTarget
from penstock.model.values.dataclass import dataclass
from penstock.spark.connect import Connector, Services, open_services
from penstock.storage.machine.clock import RealClock

_NAMES_MAX = 6_000
"""Characters of the names of all streams of one token: with its signature it stays below the 12 KiB that a server takes."""
_NEWEST_MAX = 64
"""Tokens that a process remembers: one for each plan that differs in its streams or its user."""
_CREDENTIALS = {TOKEN_FILE, USER, PASSWORD_FILE}
_PRAVEGAS = "pravega_client_auth_"

_newest: OrderedDict[str, str] = OrderedDict()


@dataclass(frozen=True, slots=True)
class _Claims:
    """What a plan token says, unverified. ``key``: equal for tokens that prove the same identity with the same rights."""

    key: str
    issued_s: int
    expires_s: int


def _claims(token: str) -> _Claims:
    payload = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    about = json.dumps([found["sub"], found["aud"], sorted(found["grants"]), found["prf"]])
    return _Claims(sha256(about.encode()).hexdigest(), int(found["iat"]), int(found["exp"]))


class PlanConnector:
    """A ``Connector`` for tasks, with the token of their plan. Pickled in partitions; shows no token.

    Equal if the tokens prove the same identity with the same rights: so the tasks of many micro-batches share one
    connection, which presents the newest of their tokens. ``insecure``: the driver may send credentials over plain
    connections.
    """

    __slots__ = ("_insecure", "_key", "_token")

    def __init__(self, token: str, insecure: bool) -> None:
        self._token = token
        self._insecure = insecure
        self._key = _offer(token)

    async def __call__(self, address: str) -> Services:
        """As ``connect.dial``; credentials in the environment are ignored. Raises also PlanExpiredError."""
        return await open_services(
            address, self._security(address, _TokenSource(self._key, self._token, self, address))
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PlanConnector) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return "PlanConnector(hidden)"

    def __reduce__(self) -> tuple[type[PlanConnector], tuple[str, bool]]:
        return PlanConnector, (self._token, self._insecure)

    def _security(self, address: str, token: Callable[[], Any] | str) -> Any:
        from penstock.model.credentials import Credentials
        from penstock.net.dial.security import security_for
        from penstock.net.presented import presented

        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in _CREDENTIALS and not name.startswith(_PRAVEGAS)
        }
        if self._insecure:
            kept[INSECURE] = "1"
        shown = presented(environment=kept)
        credentials = Credentials.bearer(token) if isinstance(token, str) else Credentials.bearer_from(token)
        return security_for(
            address,
            default_tls=shown.default_tls,
            credentials=credentials,
            clock=RealClock(),
            insecure=shown.insecure,
        )

    async def renewed(self, address: str, token: str, valid_s: int) -> str:
        """The token again, valid for longer. Raises as a call to the controller."""
        from penstock.net.dial.controller import dial_controller

        async with dial_controller(address, patience_s=2.0, security=self._security(address, token)) as controller:
            return await controller.about.renew(valid_s)


def _offer(token: str, key: str | None = None) -> str:
    """Remember the token, unless a newer one with the same key is known. Returns its key. ``key``: that of the token
    that this one renews."""
    claims = _claims(token)
    key = key or claims.key
    known = _newest.get(key)
    if known is None or _claims(known).expires_s <= claims.expires_s:
        _newest[key] = token
    _newest.move_to_end(key)
    while len(_newest) > _NEWEST_MAX:
        _newest.popitem(last=False)
    return key


class _TokenSource:
    """Returns the newest token of a plan, renewed once half of its life is over."""

    def __init__(self, key: str, token: str, connector: PlanConnector, address: str) -> None:
        self._key = key
        self._token = token
        self._connector = connector
        self._address = address

    async def __call__(self) -> str:
        """Raises PlanExpiredError, and AccessError where the token is not renewed: its user was removed."""
        self._token = _newest.get(self._key, self._token)
        claims, now_s = _claims(self._token), RealClock().now_ms() / 1000
        life_s = claims.expires_s - claims.issued_s
        if now_s >= claims.expires_s:
            raise PlanExpiredError(
                "the token of the plan has expired; run the query again, which plans anew. Option token_seconds sets how "
                "long a task may wait for its start",
                valid_s=life_s,
            )
        if claims.expires_s - now_s < life_s / 2:
            try:
                self._token = await self._connector.renewed(self._address, self._token, max(PLAN_S_MIN, life_s))
            except RETRYABLE:
                return self._token  # The token is still valid, and is renewed later.
            # Keep the key even if the user has lost a right, so that the new token lacks it.
            _offer(self._token, self._key)
        return self._token


async def access_for(
    connector: Connector, services: Services, targets: Sequence[PolicyTarget], action: str, *, valid_s: int
) -> Connector:
    """The connector for the tasks of a plan: with a token for the targets and ``action`` (read or write), or the same one
    where callers need no identity. See ``About.plan``.

    Raises PermissionDeniedError, and what a call to the controller raises.
    """
    if services.plan_token is None or isinstance(connector, PlanConnector):
        return connector
    token = await services.plan_token(targets, action, min(PLAN_S_MAX, max(PLAN_S_MIN, valid_s)))
    return PlanConnector(token, bool(os.environ.get(INSECURE) in ("1", "true"))) if token else connector


async def access_by_stream(
    connector: Connector, services: Services, streams: Sequence[StreamName], *, valid_s: int
) -> dict[StreamName, Connector]:
    """The connectors for tasks that read the streams. A token has only as many streams as fit into it."""
    found: dict[StreamName, Connector] = {}
    for group in token_groups(streams):
        shared = await access_for(connector, services, group, "read", valid_s=valid_s)
        found |= dict.fromkeys(group, shared)
    return found


def token_groups(streams: Sequence[StreamName]) -> list[list[StreamName]]:
    """The streams in order, divided into groups whose rights fit into one token."""
    groups: list[list[StreamName]] = []
    room = 0
    for stream in streams:
        size = len(str(stream)) + len("/scope:/stream:=read,") + 4
        if not groups or size > room:
            groups.append([])
            room = _NAMES_MAX
        groups[-1].append(stream)
        room -= size
    return groups
