"""Verifies what callers present: passwords, tokens and certificates."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from penstock.core.access.attempts import Attempts
from penstock.core.access.plans import still_held
from penstock.model.errors import PenstockError, ThrottledError, UnauthenticatedError, UnavailableError
from penstock.model.identity import Grant, Identity
from penstock.model.values.dataclass import dataclass
from penstock.ports.access.authenticator import CREDENTIALS_MAX, Presented
from penstock.ports.clock import Clock
from penstock.ports.telemetry import Telemetry
from penstock.storage.access.bearer import ProviderTokens, StoreTokens, header_of
from penstock.storage.access.passwords import PASSWORD_MAX, PasswordHash, matches, rounds_of
from penstock.storage.access.plan_tokens import PlanTokens, is_plan
from penstock.storage.access.token_list import RevokedTokens
from penstock.storage.access.users_file import User, Users, certificate_name, load_users

log = logging.getLogger(__name__)

KNOWN_S = 10.0
"""How long verified credentials are remembered: argon2 does not run for every call."""
_KNOWN_MAX = 4096  # verified credentials
_HASHES_AT_ONCE = 2  # each takes 19 MiB and a core
_HASHES_WAITING = 64  # calls
_FREE_OF_NAME = 50  # wrong passwords of one name, from all addresses
_FREE_OF_ADDRESS = 100  # wrong passwords from one address, of all names
_FREE_OF_BOTH = 10  # wrong passwords of one name from one address
_UNREAD: object = ("unread",)
"""The stamp of no file: the users are read at the next call. A failure of the machine ends without a change of the file."""
_LISTED = ("password", "certificate")
"""Proofs of the users in the file."""
_WRONG = "the name or the password is wrong"


@dataclass(frozen=True, slots=True)
class _Known:
    identity: Identity
    until_s: float
    ends_s: float
    of_users: object


class StoreAuthenticator:
    """An ``Authenticator`` with the users of a file, the store's own tokens, and those of an identity provider. It also knows
    the ``PresentRights`` of its users.

    The files of users and of revoked tokens are read again when they have changed, and then nothing verified before
    counts. ``provider``: None if only the store's own tokens are accepted. Everything is borrowed. A name, an address
    and a name at an address must wait after wrong passwords. A password that was right since the start need not. Tokens
    cannot be guessed, so they never wait.
    """

    def __init__(
        self,
        *,
        users: Path,
        tokens: StoreTokens,
        revoked: RevokedTokens,
        plans: PlanTokens,
        provider: ProviderTokens | None,
        clock: Clock,
        telemetry: Telemetry,
        outdated: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``outdated``: why users and the list of tokens may not be used now; None: they may."""
        self._outdated = outdated
        self._path = users
        self._tokens = tokens
        self._revoked = revoked
        self._plans = plans
        self._provider = provider
        self._clock = clock
        self._telemetry = telemetry
        self._users: Users = {}
        self._rounds = rounds_of(())
        self._by_certificate: Mapping[str, User] = {}
        self._stamp: object = _UNREAD
        self._is_read = False
        self._unread_why = ""
        self._secret = os.urandom(32)
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._of_name = Attempts(free=_FREE_OF_NAME)
        self._of_address = Attempts(free=_FREE_OF_ADDRESS)
        self._of_both = Attempts(free=_FREE_OF_BOTH)
        self._trusted: OrderedDict[bytes, None] = OrderedDict()
        """Digests of credentials that were right: they need not wait because of the wrong ones of others."""
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)
        self._waiting = 0
        self._read()

    @property
    def has_users(self) -> bool:
        """Whether the file had any user when it was last read."""
        return bool(self._users)

    async def identify(self, shown: Presented) -> Identity:
        try:
            identity = await self._identify(shown)
        except (UnauthenticatedError, ThrottledError) as error:
            outcome = "throttled" if isinstance(error, ThrottledError) else "refused"
            self._telemetry.add("authentications", 1, (outcome,))
            raise
        self._telemetry.add("authentications", 1, ("ok",))
        return identity

    def grants_of(self, name: str, proof: str) -> Sequence[Grant] | None:
        """See ``PresentRights``. Tokens are not listed: the rights of an identity that one proves are in the token."""
        if proof not in _LISTED:
            return None
        self._load()
        if not self._is_read:
            # Nobody can log in now, but work that waits must not end as if its requester had been removed.
            raise UnavailableError("the users cannot be read")
        user = self._users.get(name)
        return () if user is None else user.grants

    async def _identify(self, shown: Presented) -> Identity:
        self._load()
        if not shown.authorization:
            return self._of_certificate(shown)
        if len(shown.authorization) > CREDENTIALS_MAX:
            raise UnauthenticatedError("the credentials are too long")
        digest = hashlib.blake2b(shown.authorization.encode("utf-8", "replace"), key=self._secret).digest()
        known = None if self._outdated() is not None else self._known.get(digest)
        if known is not None:
            now_s, wall_s = self._telemetry.steady_s(), self._clock.now_ms() / 1000
            if now_s < known.until_s and wall_s < known.ends_s and known.of_users is self._stamp:
                return known.identity
            del self._known[digest]
        scheme, _, rest = shown.authorization.partition(" ")
        stamp = self._stamp
        if scheme.lower() == "basic":
            identity, ends_s = await self._of_password(rest.strip(), shown.peer, digest), float("inf")
        elif scheme.lower() == "bearer":
            identity, ends_s = await self._of_token(rest.strip())
        else:
            raise UnauthenticatedError("credentials must be Basic or Bearer")
        self._load()
        token_id = identity.token if identity.plan is None else identity.plan.token
        if token_id:
            # Revoked during the check. It must not be remembered.
            self._revoked.check(token_id)
        if stamp is not self._stamp and identity.plan is not None:
            identity, ends_s = self._of_plan(rest.strip())
            stamp = self._stamp
        if stamp is not self._stamp and scheme.lower() == "basic":
            # The users were changed during the check: this one may be gone, or have other rights.
            user = self._users.get(identity.name)
            if user is None or user.grants != identity.grants:
                raise UnauthenticatedError(_WRONG)
        self._known[digest] = _Known(identity, self._telemetry.steady_s() + KNOWN_S, ends_s, stamp)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)
        return identity

    def _check_current(self) -> None:
        """Raise UnauthenticatedError if nobody knows here who was removed and which tokens were revoked."""
        reason = self._outdated()
        if reason is not None:
            raise UnauthenticatedError(f"the server accepts no users and no tokens of its own now: {reason}")

    async def _of_password(self, encoded: str, peer: str, digest: bytes) -> Identity:
        self._check_current()
        try:
            name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            raise UnauthenticatedError("the credentials cannot be read") from None
        if not colon or len(password) > PASSWORD_MAX or len(name) > PASSWORD_MAX:
            raise UnauthenticatedError(_WRONG)
        counts = ((self._of_both, (peer, name)), (self._of_name, name), (self._of_address, peer))
        if digest not in self._trusted:
            for attempts, key in counts:
                self._check_wait(attempts, key)
        user = self._users.get(name)
        if not await self._matches(None if user is None else user.password, password) or user is None:
            self._trusted.pop(digest, None)
            for attempts, key in counts:
                attempts.wrong(key, self._telemetry.steady_s())
            raise UnauthenticatedError(_WRONG)
        self._of_both.right((peer, name))
        self._trusted[digest] = None
        if len(self._trusted) > _KNOWN_MAX:
            self._trusted.popitem(last=False)
        return Identity(name=user.name, proof="password", grants=user.grants)

    async def _matches(self, stored: PasswordHash | None, password: str) -> bool:
        if self._waiting >= _HASHES_WAITING:
            raise ThrottledError("too many passwords to check", resource="passwords", limit=_HASHES_WAITING)
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(matches, stored, password, self._rounds)
        finally:
            self._waiting -= 1

    async def _of_token(self, token: str) -> tuple[Identity, float]:
        if header_of(token)["kid"] == self._tokens.key_id:
            self._check_current()
            if is_plan(token):
                return self._of_plan(token)
            identity, ends_s = self._tokens.identity(token)
            self._revoked.check(identity.token)
            return identity, ends_s
        if self._provider is None:
            raise UnauthenticatedError("the token is not one of this store")
        return await self._provider.identity(token)

    def _of_plan(self, token: str) -> tuple[Identity, float]:
        """The identity of a plan, with the rights that its user still has. An identity of a provider is not listed here."""
        identity, life = self._plans.identity(token)
        if life.token:
            self._revoked.check(life.token)
        if life.proof in _LISTED:
            user = self._users.get(identity.name)
            if user is None:
                raise UnauthenticatedError("the user of the plan was removed")
            identity = replace(identity, grants=still_held(identity.grants, user.grants))
        return identity, life.expires_ms / 1000

    def _of_certificate(self, shown: Presented) -> Identity:
        self._check_current()
        names = (certificate_name(name) if name.startswith("DNS:") else name for name in shown.certificate)
        user = next((self._by_certificate[name] for name in names if name in self._by_certificate), None)
        if user is None:
            raise UnauthenticatedError(
                "this server needs credentials: a user and password, a token, or a client certificate of a user"
            )
        return Identity(name=user.name, proof="certificate", grants=user.grants)

    def _check_wait(self, attempts: Attempts, key: Hashable) -> None:
        wait_s = attempts.wait_s(key, self._telemetry.steady_s())
        if wait_s > 0:
            raise ThrottledError("too many wrong credentials; wait", resource="credentials", wait_s=round(wait_s, 1))

    def _load(self) -> None:
        """Read the users again if their file has changed. While it cannot be read there are no users: one that was
        removed must not come back."""
        if self._revoked.refresh():
            self._known.clear()
        try:
            self._read()
        except (PenstockError, OSError) as error:
            self._take({}, _UNREAD if isinstance(error, OSError) else self._stamp)
            if str(error) != self._unread_why:
                log.error("the users cannot be read; nobody can log in", extra={"error": str(error)})
            self._unread_why = str(error)
        else:
            self._unread_why = ""

    def _read(self) -> None:
        """Takes a few microseconds if the file has not changed. Raises as ``load_users``."""
        try:
            found = self._path.stat()
            stamp: object = (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)
        except FileNotFoundError:
            stamp = None
        if stamp == self._stamp:
            return
        self._take({}, stamp)
        self._take(load_users(self._path), stamp)
        self._is_read = True

    def _take(self, users: Users, stamp: object) -> None:
        self._stamp, self._users, self._is_read = stamp, users, False
        self._known.clear()
        self._rounds = rounds_of(user.password for user in users.values() if user.password is not None)
        self._by_certificate = {certificate_name(name): user for user in users.values() for name in user.certificates}
