"""The tokens that a store has issued, and which of them were revoked. One JSON file, replaced as a whole.

It has no secrets: an id proves nothing. Entries are removed once their tokens have expired.
Format: docs/reference/access.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    UnauthenticatedError,
    VersionTooNewError,
)
from penstock.storage.access.secret_files import FOLDER, locked, read_secret, write_secret

log = logging.getLogger(__name__)

VERSION = 1
TOKENS_MAX = 10_000  # tokens that have not expired
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


Tokens = Mapping[str, IssuedToken]


def tokens_path(data: Path) -> Path:
    """The file of a data directory."""
    return data / FOLDER / "tokens.json"


def load_tokens(path: Path) -> Tokens:
    """All tokens by id, in the order of issue; none if there is no file. Raises InvalidArgumentError (others can read the
    file), CorruptDataError, VersionTooNewError, OSError."""
    data = read_secret(path, max_bytes=_MAX_BYTES)
    if data is None:
        return {}
    try:
        document = json.loads(data)
        version = int(document["v"])
        if version > VERSION:
            raise VersionTooNewError(
                "the list of tokens was written by a newer version", path=str(path), version=version
            )
        tokens = [_token(item) for item in document["tokens"]]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise CorruptDataError(
            "the list of tokens cannot be read", path=str(path), reason=type(error).__name__
        ) from None
    return {token.id: token for token in tokens}


def change_tokens(path: Path, change: Callable[[dict[str, IssuedToken]], None], *, now_s: int) -> Tokens:
    """Change the list durably, one process at a time, without those that have expired; return the new one. Raises what
    ``change`` raises, with nothing changed, and as ``load_tokens``; InvalidArgumentError: there are too many."""
    with locked(path):
        tokens = {key: token for key, token in load_tokens(path).items() if token.expires_s > now_s}
        change(tokens)
        if len(tokens) > TOKENS_MAX:
            raise InvalidArgumentError(
                "too many tokens are valid; issue them for a shorter time, or use an identity provider",
                limit=TOKENS_MAX,
            )
        document = {"v": VERSION, "tokens": [_document(token) for token in tokens.values()]}
        write_secret(path, json.dumps(document, indent=1).encode())
        return tokens


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
        try:
            stamp = self._now()
            if stamp != self._stamp:
                tokens = load_tokens(self._path)
                self._ids = frozenset(token.id for token in tokens.values() if token.revoked_s is not None)
                self._stamp = stamp
        except (PenstockError, OSError) as error:
            self._ids, self._stamp = None, _UNREAD
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
