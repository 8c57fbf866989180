"""Delegation tokens, signed with the store's key: JSON Web Tokens whose expiry Pravega's clients read.

The form is that of docs/reference/access.md. The audience differs from that of bearer tokens: neither serves as the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

from penstock.model.errors import PenstockError
from penstock.model.identity import Action, Grant, PlanLife
from penstock.model.names import StreamName
from penstock.ports.access.tokens import Delegated
from penstock.ports.clock import Clock
from penstock.storage.access.bearer import claims_of, header_of, refused
from penstock.storage.access.plan_tokens import sign_plan
from penstock.storage.access.store_key import StoreKey, key_id, public_key

TOKEN_S = 600
TOKEN_S_MIN, TOKEN_S_MAX = 10, 86_400
_CACHE_MAX = 4096  # tokens
_LETTERS = {Action.READ: "r", Action.WRITE: "w", Action.ADMIN: "a"}
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class _Cache(Generic[_K, _V]):
    """The latest values, a bounded number."""

    def __init__(self) -> None:
        self._items: OrderedDict[_K, _V] = OrderedDict()

    def get(self, key: _K) -> _V | None:
        return self._items.get(key)

    def put(self, key: _K, value: _V) -> None:
        self._items[key] = value
        if len(self._items) > _CACHE_MAX:
            self._items.popitem(last=False)


class Issuer:
    """A ``TokenIssuer``. ``token_s``: how long a token for segments is valid. It is issued again until a fifth of its time
    is over: the Java client asks before nearly every request."""

    def __init__(self, key: StoreKey, clock: Clock, *, token_s: int = TOKEN_S) -> None:
        self._key = key
        self._private = key.private()
        self._clock = clock
        self._token_s = token_s
        self._issued: _Cache[tuple[str, StreamName, str, str], tuple[str, int]] = _Cache()

    def issue(
        self,
        subject: str,
        stream: StreamName,
        actions: frozenset[Action],
        table_actions: frozenset[Action] = frozenset(),
        *,
        until_ms: int | None = None,
    ) -> str:
        import jwt

        now_ms = self._clock.now_ms()
        wanted = (subject, stream, _letters(actions), _letters(table_actions))
        expires_ms = now_ms + self._token_s * 1000
        # A token that must end earlier belongs to its caller alone.
        is_shared = until_ms is None or until_ms >= expires_ms
        found = self._issued.get(wanted) if is_shared else None
        if found is not None and 0 <= now_ms - found[1] < self._token_s * 200:
            return found[0]
        now_s = now_ms // 1000
        claims = {
            "iss": f"penstock:{self._key.id}",
            "aud": f"penstock-segments:{self._key.id}",
            "sub": subject,
            "res": str(stream),
            "act": wanted[2],
            "tab": wanted[3],
            "iat": now_s,
            "exp": now_s + self._token_s if until_ms is None or is_shared else until_ms // 1000,
        }
        token = jwt.encode(claims, self._private, algorithm="EdDSA", headers={"kid": self._key.id})
        if is_shared:
            self._issued.put(wanted, (token, now_ms))
        return token

    def issue_plan(self, subject: str, grants: Sequence[Grant], life: PlanLife) -> str:
        return sign_plan(self._key, self._private, subject, grants, life, now_ms=self._clock.now_ms())

    def now_ms(self) -> int:
        return self._clock.now_ms()


class Verifier:
    """A ``TokenVerifier`` with the store's public key."""

    def __init__(self, public: bytes, clock: Clock) -> None:
        self._id = key_id(public)
        self._public = public_key(public)
        self._clock = clock
        self._verified: _Cache[str, Delegated] = _Cache()

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def verify(self, token: str) -> Delegated:
        found = self._verified.get(token)
        if found is not None:
            if self._clock.now_ms() >= found.expires_ms:
                raise refused("the token has expired", expired=True)
            return found
        if not token:
            raise refused("this server needs a token")
        if header_of(token).get("kid") != self._id:
            raise refused("the token is not one of this store")
        claims = claims_of(
            token,
            self._public,
            algorithms=["EdDSA"],
            issuer=f"penstock:{self._id}",
            audience=f"penstock-segments:{self._id}",
            leeway_s=0,
            now_s=self._clock.now_ms() / 1000,
        )
        try:
            stream = StreamName.parse(str(claims.get("res")))
        except PenstockError:
            raise refused("the token names no stream") from None
        found = Delegated(
            subject=str(claims.get("sub")),
            stream=stream,
            actions=_actions(claims.get("act")),
            table_actions=_actions(claims.get("tab")),
            expires_ms=int(claims["exp"] * 1000),
        )
        self._verified.put(token, found)
        return found


def _letters(actions: frozenset[Action]) -> str:
    return "".join(letter for action, letter in _LETTERS.items() if action in actions)


def _actions(letters: object) -> frozenset[Action]:
    return frozenset(action for action, letter in _LETTERS.items() if isinstance(letters, str) and letter in letters)
