"""Public keys of an identity provider: a JSON Web Key Set from a file or a URL, cached, and used for a bounded time while
its place does not answer."""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import json
import logging
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.model.errors import InvalidArgumentError, UnauthenticatedError

log = logging.getLogger(__name__)

FRESH_S = 300.0
"""How long keys are used before they are fetched again."""
STALE_S = 3600.0
"""How long keys are used at most while their place does not answer."""
_PAUSE_S = 10.0
"""Between two fetches, whatever key ids callers name."""
_TIMEOUT_S = 5.0
_MAX_BYTES = 256 << 10
_KEYS_MAX = 100  # keys of a set
_RSA_BITS_MIN = 2048

Fetch = Callable[[], bytes]


class KeySet:
    """Keys by id. ``fetch`` returns the JSON document; it runs in a thread. ``steady_s``: a clock that never jumps."""

    def __init__(self, fetch: Fetch, *, place: str, steady_s: Callable[[], float]) -> None:
        self._fetch = fetch
        self._place = place
        self._steady_s = steady_s
        self._keys: Mapping[str, Any] = {}
        self._fetched_s = float("-inf")
        self._tried_s = float("-inf")
        self._fetching = asyncio.Lock()

    async def key(self, key_id: str) -> Any:
        """The key with this id, as PyJWT reads it. An unknown id fetches the keys again, at most every 10 seconds: the
        provider may have rotated them. Raises UnauthenticatedError."""
        now_s = self._steady_s()
        if key_id not in self._keys or now_s - self._fetched_s > FRESH_S:
            await self._refresh(key_id)
        if self._steady_s() - self._fetched_s > STALE_S:
            raise UnauthenticatedError("the keys of the identity provider cannot be read")
        found = self._keys.get(key_id)
        if found is None:
            raise UnauthenticatedError("the token is signed with an unknown key")
        return found

    async def _refresh(self, key_id: str) -> None:
        async with self._fetching:
            now_s = self._steady_s()
            if key_id in self._keys and now_s - self._fetched_s <= FRESH_S:
                return  # another caller has fetched them meanwhile
            if now_s - self._tried_s < _PAUSE_S:
                return
            self._tried_s = now_s
            try:
                self._keys = parse_keys(await asyncio.to_thread(self._fetch))
            except (OSError, http.client.HTTPException, ValueError, InvalidArgumentError) as error:
                log.warning(
                    "keys of the identity provider cannot be read", extra={"place": self._place, "error": str(error)}
                )
            else:
                self._fetched_s = self._steady_s()


def key_set(place: str, *, steady_s: Callable[[], float]) -> KeySet:
    """The keys at a path, at an https URL, or at an http URL on loopback. Raises InvalidArgumentError for another URL."""
    if "://" not in place:
        return KeySet(lambda: _read_file(Path(place)), place=place, steady_s=steady_s)
    parts = urlsplit(place)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
        raise InvalidArgumentError("keys of an identity provider need an https URL, or a file", jwks=place)
    if parts.username or parts.password:
        raise InvalidArgumentError("the URL of the keys must not contain credentials", jwks=place)
    return KeySet(lambda: _read_url(place), place=place, steady_s=steady_s)


def parse_keys(document: bytes) -> Mapping[str, Any]:
    """The public keys for signatures, by id. Others are left out. Raises ValueError, InvalidArgumentError."""
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    parsed = json.loads(document)
    items = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(items, list) or len(items) > _KEYS_MAX:
        raise InvalidArgumentError("not a JSON Web Key Set")
    found: dict[str, Any] = {}
    for item in items:
        usable = isinstance(item, dict) and isinstance(item.get("kid"), str) and item.get("use", "sig") == "sig"
        # Never a symmetric key: the server that verifies with it could also sign.
        if not usable or item.get("kty") not in ("RSA", "EC", "OKP"):
            continue
        try:
            key = PyJWK.from_dict({name: value for name, value in item.items() if name != "d"})
        except (PyJWTError, ValueError, TypeError, KeyError, NotImplementedError):
            continue
        if item["kty"] == "RSA" and key.key.key_size < _RSA_BITS_MIN:
            continue
        found[item["kid"]] = key
    return found


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return _bounded(file.read(_MAX_BYTES + 1))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The URL is the administrator's choice; the server there must not choose another one."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _read_url(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, headers={"accept": "application/json"})  # checked by key_set
    with opener.open(request, timeout=_TIMEOUT_S) as answer:
        return _bounded(answer.read(_MAX_BYTES + 1))


def _bounded(data: bytes) -> bytes:
    if len(data) > _MAX_BYTES:
        raise InvalidArgumentError("the key set is too large", limit_bytes=_MAX_BYTES)
    return data
