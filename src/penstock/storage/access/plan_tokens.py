"""Plan tokens, signed with the store's key: bearer tokens that the tasks of a plan present.

Their audience differs from that of other tokens, and their header has a type, so no token can be used as another kind.
Source: docs/design/0059-plan-tokens.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.access.resources import grant_text
from penstock.model.errors import InvalidArgumentError
from penstock.model.identity import Grant, Identity, PlanLife
from penstock.ports.clock import Clock
from penstock.storage.access.bearer import OWN_GRANTS, TOKEN_MAX, claims_of, grants_of, header_of, refused
from penstock.storage.access.store_key import StoreKey, public_key

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

TYPE = "plan+jwt"
"""The header ``typ`` of a plan token."""
_PROOF, _ENDS, _TOKEN = "prf", "end", "tok"


def is_plan(token: str) -> bool:
    """Whether the header says that this is a plan token. Raises UnauthenticatedError: it cannot be read."""
    return header_of(token).get("typ") == TYPE


def sign_plan(
    key: StoreKey, private: Ed25519PrivateKey, name: str, grants: Sequence[Grant], life: PlanLife, *, now_ms: int
) -> str:
    """A plan token. Raises InvalidArgumentError: it would be too long."""
    import jwt

    claims = {
        "iss": f"penstock:{key.id}",
        "aud": f"penstock-plans:{key.id}",
        "sub": name,
        "iat": now_ms // 1000,
        "exp": life.expires_ms // 1000,
        _ENDS: life.ends_ms // 1000,
        _PROOF: life.proof,
        OWN_GRANTS: [grant_text(grant) for grant in grants],
        **({_TOKEN: life.token} if life.token else {}),
    }
    token = jwt.encode(claims, private, algorithm="EdDSA", headers={"kid": key.id, "typ": TYPE})
    if len(token) > TOKEN_MAX:
        raise InvalidArgumentError("the plan has too many streams for one token", streams=len(grants))
    return token


class PlanTokens:
    """Verifies plan tokens of the store."""

    def __init__(self, key: StoreKey, clock: Clock) -> None:
        self._id = key.id
        self._public = public_key(key.public_bytes())
        self._clock = clock

    def identity(self, token: str) -> tuple[Identity, PlanLife]:
        """The identity of the plan, and the life of its token.

        Raises UnauthenticatedError, with the field ``expired`` if time is all that is wrong.
        """
        claims = claims_of(
            token,
            self._public,
            algorithms=["EdDSA"],
            issuer=f"penstock:{self._id}",
            audience=f"penstock-plans:{self._id}",
            leeway_s=0,
            now_s=self._clock.now_ms() / 1000,
        )
        name, proof, ends = claims.get("sub"), claims.get(_PROOF), claims.get(_ENDS)
        if not isinstance(name, str) or not isinstance(proof, str) or not isinstance(ends, int):
            raise refused("the token names no plan")
        life = PlanLife(
            proof=proof,
            expires_ms=int(claims["exp"] * 1000),
            ends_ms=ends * 1000,
            token=str(claims.get(_TOKEN, "")),
        )
        return Identity(name=name, proof="plan", grants=grants_of(claims.get(OWN_GRANTS)), plan=life), life
