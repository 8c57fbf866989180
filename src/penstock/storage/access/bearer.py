"""Bearer tokens: JSON Web Tokens of an identity provider, and those that this store issued itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any
from uuid import UUID

from penstock.core.access.resources import grant_text, parse_grant
from penstock.model.errors import InvalidArgumentError, PenstockError, UnauthenticatedError
from penstock.model.identity import Grant, Identity
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.storage.access.store_key import StoreKey, public_key

TOKEN_MAX = 12 << 10
"""Characters of a token."""
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a key pair. A shared secret is not among them, and no signature is none."""
_GRANTS_MAX = 500  # rights of one token
OWN_GRANTS = "grants"
"""The claim with the rights in tokens of the store itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings:
    """Tokens of an identity provider. ``issuer`` and ``audience``: the claims ``iss`` and ``aud``, both required.

    ``jwks``: where its keys are, a path or an https URL. ``name_claim``: the claim that names the identity.
    ``grants_claim``: a claim with rights as text, in this store's form; empty: none. ``roles_claim``: a claim with names of
    roles, with dots for claims inside claims (``realm_access.roles``); ``roles`` are the rights of each role.
    ``leeway_s``: how far clocks may differ.
    """

    issuer: str
    audience: str
    jwks: str
    algorithms: tuple[str, ...] = ("RS256", "ES256", "EdDSA")
    name_claim: str = "sub"
    grants_claim: str = ""
    roles_claim: str = ""
    roles: Mapping[str, tuple[Grant, ...]] = field(default_factory=dict)
    leeway_s: int = 30

    def __post_init__(self) -> None:
        if not self.issuer or not self.audience or not self.jwks or not self.name_claim:
            raise InvalidArgumentError("tokens need an issuer, an audience, and the place of the issuer's keys")
        unknown = [name for name in self.algorithms if name not in ALGORITHMS]
        if unknown or not self.algorithms:
            raise InvalidArgumentError(
                "tokens must be signed with a key pair", algorithm=(unknown or [""])[0], known=", ".join(ALGORITHMS)
            )
        if not 0 <= self.leeway_s <= 300:
            raise InvalidArgumentError("the leeway must be 0 to 300 seconds", leeway_s=self.leeway_s)


KeyOf = Callable[[str], Awaitable[Any]]


def refused(reason: str, *, expired: bool = False) -> UnauthenticatedError:
    """The refusal of a token. It never contains the token."""
    return UnauthenticatedError(reason, **({"expired": True} if expired else {}))


def header_of(token: str) -> Mapping[str, Any]:
    """The header of a signed token, checked as far as it needs no key. Raises UnauthenticatedError."""
    import jwt

    if len(token) > TOKEN_MAX:
        raise refused("the token is too long")
    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError, RecursionError):
        # Not only PyJWT's own errors: text that is no UTF-8, and JSON that is nested too deeply.
        raise refused("the token cannot be read") from None
    # A token inside a token, or an extension that this server does not know, is never half understood.
    if not isinstance(header.get("kid"), str) or "crit" in header or "cty" in header or "b64" in header:
        raise refused("the token's header is not accepted")
    return header


def claims_of(
    token: str, key: Any, *, algorithms: Sequence[str], issuer: str, audience: str, leeway_s: float, now_s: float
) -> Mapping[str, Any]:
    """The claims of a token that the key has signed for this audience and that is valid now. Raises
    UnauthenticatedError."""
    import jwt

    try:
        claims = jwt.decode(
            token,
            key,
            algorithms=list(algorithms),
            audience=audience,
            issuer=issuer,
            # Times are compared below, with the store's clock.
            options={"require": ["exp", "aud", "iss"], "verify_exp": False, "verify_nbf": False, "verify_iat": False},
        )
    except (jwt.PyJWTError, ValueError, TypeError):
        raise refused("the token is not valid here") from None
    if now_s >= _time(claims["exp"]) + leeway_s:
        raise refused("the token has expired", expired=True)
    if any(name in claims and now_s + leeway_s < _time(claims[name]) for name in ("nbf", "iat")):
        raise refused("the token is not valid yet")
    return dict(claims)


def _time(value: object) -> float:
    """A time in a token, in seconds. Raises UnauthenticatedError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 53:
        raise refused("the token's times cannot be read")
    return float(value)


class ProviderTokens:
    """Verifies tokens of an identity provider. ``key_of`` returns its key with an id."""

    def __init__(self, settings: JwtSettings, key_of: KeyOf, clock: Clock) -> None:
        self._settings = settings
        self._key_of = key_of
        self._clock = clock

    async def identity(self, token: str) -> tuple[Identity, float]:
        """The identity, and the wall time in seconds at which the token ends. Raises UnauthenticatedError."""
        header, chosen = header_of(token), self._settings
        if header.get("alg") not in chosen.algorithms:
            raise refused("the token's algorithm is not accepted")
        key = await self._key_of(header["kid"])
        claims = claims_of(
            token,
            key,
            algorithms=[header["alg"]],
            issuer=chosen.issuer,
            audience=chosen.audience,
            leeway_s=chosen.leeway_s,
            now_s=self._clock.now_ms() / 1000,
        )
        grants = [*_texts(_claim(claims, chosen.grants_claim))]
        roles = (chosen.roles.get(role, ()) for role in _texts(_claim(claims, chosen.roles_claim)))
        found = (*_grants(grants), *(grant for role in roles for grant in role))
        return _identity(claims.get(chosen.name_claim), found), float(claims["exp"])


class StoreTokens:
    """Issues and verifies tokens of the store itself, signed with its own key."""

    def __init__(self, key: StoreKey, clock: Clock) -> None:
        self._key = key
        self._public = public_key(key.public_bytes())
        self._clock = clock

    @property
    def key_id(self) -> str:
        return self._key.id

    @property
    def _name(self) -> str:
        return f"penstock:{self._key.id}"

    def issue(self, name: str, grants: Sequence[Grant], *, ttl_s: int, token_id: UUID) -> str:
        """A token for an identity with these rights. Raises InvalidArgumentError: it would be too long."""
        import jwt

        Identity(name=name, proof="token")
        now_s = self._clock.now_ms() // 1000
        claims = {
            "iss": self._name,
            "aud": self._name,
            "sub": name,
            "iat": now_s,
            "exp": now_s + ttl_s,
            "jti": token_id.hex,
            OWN_GRANTS: [grant_text(grant) for grant in grants],
        }
        token = jwt.encode(claims, self._key.private(), algorithm="EdDSA", headers={"kid": self._key.id})
        if len(token) > TOKEN_MAX:
            raise InvalidArgumentError("the token has too many rights", rights=len(grants))
        return token

    def identity(self, token: str) -> tuple[Identity, float]:
        """As ``ProviderTokens.identity``, with the id of the token."""
        claims = self.claims(token)
        found = _identity(claims.get("sub"), grants_of(claims.get(OWN_GRANTS)))
        return replace(found, token=str(claims.get("jti", ""))), float(claims["exp"])

    def claims(self, token: str, *, ago_s: int = 0) -> Mapping[str, Any]:
        """The claims of a token of this store that is valid now, or expired less than ``ago_s`` seconds ago. Raises
        UnauthenticatedError."""
        header_of(token)
        return claims_of(
            token,
            self._public,
            algorithms=["EdDSA"],
            issuer=self._name,
            audience=self._name,
            leeway_s=ago_s,
            now_s=self._clock.now_ms() / 1000,
        )


def grants_of(claim: object) -> tuple[Grant, ...]:
    """The rights in a claim, those that can be read."""
    return _grants(_texts(claim))


def _identity(name: object, grants: Sequence[Grant]) -> Identity:
    try:
        return Identity(name=name if isinstance(name, str) else "", proof="token", grants=tuple(grants))
    except PenstockError:
        raise refused("the token names no identity") from None


def _claim(claims: Mapping[str, Any], path: str) -> object:
    """The claim of this name or, with dots, the one inside other claims."""
    if not path:
        return None
    if path in claims:
        return claims[path]
    found: object = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _texts(value: object) -> list[str]:
    """A claim with names: a list, or a text with spaces between."""
    items = value.split() if isinstance(value, str) else value
    return [item for item in items if isinstance(item, str)][:_GRANTS_MAX] if isinstance(items, list) else []


def _grants(texts: Sequence[str]) -> tuple[Grant, ...]:
    """The rights that can be read. Others give no right."""
    found = []
    for text in texts:
        try:
            found.append(parse_grant(text))
        except InvalidArgumentError:
            continue
    return tuple(found)
