"""The tokens that a store has issued, and which of them were revoked. One JSON file, replaced as a whole.

It has no secrets: an id proves nothing. An entry stays for a day after its token has expired, because plans of the token
may be valid that long.
Format: docs/reference/access.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.access.plans import PLAN_END_S
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    UnauthenticatedError,
    VersionTooNewError,
)
from penstock.model.values.dataclass import dataclass
from penstock.storage.access.secret_files import FOLDER, MALFORMED, locked, read_secret, write_secret
from penstock.storage.access.shared_note import check_not_lost

log = logging.getLogger(__name__)

VERSION = 1
TOKENS_MAX = 10_000  # valid tokens, with those expired ones beside them that were not revoked; the oldest give way
_MAX_BYTES = 256 << 20  # each has at most 12 KiB of rights, and most have far less
_UNREAD: object = ("unread",)
"""The stamp of no file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedToken:
    """A token: its id, the identity and the rights that it proves, and when it was issued, expires, and was revoked (None:
    it was not), in seconds since the Unix epoch. One of an earlier version that was revoked has no rights here."""

    id: str
    name: str
    grants: tuple[str, ...]
    issued_s: int
    expires_s: int
    revoked_s: int | None = None

    @property
    def plans_end_s(self) -> int:
        """When the last plan that the token can have made ends, in seconds since the Unix epoch."""
        return self.expires_s + PLAN_END_S


Tokens = Mapping[str, IssuedToken]


def tokens_path(data: Path) -> Path:
    """The file of a data directory."""
    return data / FOLDER / "tokens.json"


def load_tokens(path: Path) -> Tokens:
    """All tokens by id, in the order of issue; none if there is no file. Raises InvalidArgumentError (others can read the
    file), CorruptDataError, VersionTooNewError, OSError."""
    data = read_secret(path, max_bytes=_MAX_BYTES)
    return {} if data is None else parse_tokens(data, path)


def parse_tokens(data: bytes, path: Path = Path("tokens.json")) -> Tokens:
    """The tokens in the contents of a file, as ``load_tokens``. ``path``: for errors. Raises CorruptDataError,
    VersionTooNewError."""
    try:
        document = json.loads(data)
        version = int(document["v"])
        if version > VERSION:
            raise VersionTooNewError(
                "the list of tokens was written by a newer version", path=str(path), version=version
            )
        tokens = [_token(item) for item in document["tokens"]]
    except MALFORMED as error:
        raise CorruptDataError(
            "the list of tokens cannot be read", path=str(path), reason=type(error).__name__
        ) from None
    return {token.id: token for token in tokens}


def merge_tokens(one: bytes, other: bytes) -> bytes:
    """The contents of a file with the tokens of both. A token that either has revoked is revoked, since the earlier time.
    Equal to ``other`` if that has all of it already. Raises as ``parse_tokens``."""
    first, found = parse_tokens(one), dict(parse_tokens(other))
    before = dict(found)
    for token in first.values():
        there = found.get(token.id, token)
        revoked = [at for at in (token.revoked_s, there.revoked_s) if at is not None]
        found[token.id] = replace(there, revoked_s=min(revoked, default=None))
    return other if found == before else _encoded(found)


def change_tokens(path: Path, change: Callable[[dict[str, IssuedToken]], None], *, now_s: int) -> Tokens:
    """Change the list durably, one process at a time, without those whose plans have ended; return the new one. Raises
    what ``change`` raises, with nothing changed, and as ``load_tokens``; InvalidArgumentError: there are too many, which no
    revocation causes; UnavailableError: the file was lost, and its cluster has it."""
    with locked(path):
        check_not_lost(path)
        tokens = {key: token for key, token in load_tokens(path).items() if token.plans_end_s > now_s}
        change(tokens)
        valid = sum(token.revoked_s is None and token.expires_s > now_s for token in tokens.values())
        if valid > TOKENS_MAX:
            raise InvalidArgumentError(
                "too many tokens are valid; issue them for a shorter time, or use an identity provider",
                limit=TOKENS_MAX,
            )
        expired = [key for key, token in tokens.items() if token.revoked_s is None and token.expires_s <= now_s]
        for key in expired[: max(0, len(expired) - (TOKENS_MAX - valid))]:
            del tokens[key]
        write_secret(path, _encoded(tokens))
        return tokens


def _encoded(tokens: Tokens) -> bytes:
    return json.dumps({"v": VERSION, "tokens": [_document(token) for token in tokens.values()]}, indent=1).encode()


def _document(token: IssuedToken) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "id": token.id,
        "name": token.name,
        "grants": list(token.grants),
        "issued_s": token.issued_s,
        "expires_s": token.expires_s,
    }
    return found if token.revoked_s is None else {**found, "revoked_s": token.revoked_s}


def _token(item: Mapping[str, Any]) -> IssuedToken:
    revoked: Any = item.get("revoked_s")
    return IssuedToken(
        id=str(item["id"]),
        name=str(item["name"]),
        grants=tuple(map(str, item["grants"])),
        issued_s=int(item["issued_s"]),
        expires_s=int(item["expires_s"]),
        revoked_s=None if revoked is None else int(revoked),
    )


class RevokedTokens:
    """The ids of the revoked tokens, as the file has them now. While it cannot be read, no token is accepted: one that was
    revoked must not become valid again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: object = _UNREAD
        self._ids: frozenset[str] | None = frozenset()
        self._unread_why = ""

    def check(self, token_id: str) -> None:
        """Raises UnauthenticatedError: the token was revoked, by what ``refresh`` has read, or nobody knows."""
        if self._ids is None:
            raise UnauthenticatedError("the server cannot read which tokens were revoked; its log has the reason")
        if token_id in self._ids:
            raise UnauthenticatedError("the token was revoked")

    def refresh(self) -> bool:
        """Read the file again if it has changed; return whether other tokens are revoked now. Takes a few microseconds if
        the file has not changed."""
        before = self._ids
        stamp: object = _UNREAD
        try:
            stamp = self._now()
            if stamp == self._stamp:
                return False
            tokens = load_tokens(self._path)
            self._ids = frozenset(token.id for token in tokens.values() if token.revoked_s is not None)
            self._stamp = stamp
        except (PenstockError, OSError) as error:
            # A failure of the machine ends without a change of the file. Contents that cannot be read do not, and reading
            # them again for each call could take long.
            self._ids, self._stamp = None, _UNREAD if isinstance(error, OSError) else stamp
            if str(error) != self._unread_why:
                log.error("the revoked tokens cannot be read; no token is accepted", extra={"error": str(error)})
            self._unread_why = str(error)
        else:
            self._unread_why = ""
        return self._ids != before

    def _now(self) -> object:
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        return (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)
