"""The users of a store: names, password hashes, names in certificates, and rights. One JSON file, replaced as a whole.

Format: docs/reference/access.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock.core.access.resources import grant_text, parse_grant
from penstock.model.errors import CorruptDataError, InvalidArgumentError, PenstockError, VersionTooNewError
from penstock.model.identity import Grant, Identity
from penstock.model.values.dataclass import dataclass
from penstock.storage.access.passwords import PasswordHash
from penstock.storage.access.secret_files import FOLDER, MALFORMED, locked, read_secret, write_secret
from penstock.storage.access.shared_note import check_not_lost

VERSION = 1
USERS_MAX = 10_000  # users
_MAX_BYTES = 16 << 20
_KINDS = ("DNS:", "URI:", "email:")
_NAME_BAD = frozenset(":;,/\\\"' ")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user. Without a password it can only prove itself by a certificate with one of the names.

    Raises InvalidArgumentError: the name is not legal.
    """

    name: str
    password: PasswordHash | None = None
    certificates: tuple[str, ...] = ()
    grants: tuple[Grant, ...] = ()

    def __post_init__(self) -> None:
        Identity(name=self.name, proof="password")
        if set(self.name) & _NAME_BAD:
            raise InvalidArgumentError("a user's name has no spaces, quotes, slashes or : ; ,", name=self.name[:80])


Users = Mapping[str, User]


def certificate_name(name: str) -> str:
    """A name in a certificate, with its kind as TLS returns it: ``DNS:host``, ``URI:...`` or ``email:...``.

    Without a kind, a name with ``://`` is a URI and one with ``@`` an address. Any other is the name of a host.
    """
    if not name.startswith(_KINDS):
        kind = "URI:" if "://" in name else "email:" if "@" in name else "DNS:"
        name = kind + name
    kind, _, host = name.partition(":")
    return f"DNS:{host.lower()}" if kind == "DNS" else name


def users_path(data: Path) -> Path:
    """The file of the users of a data directory."""
    return data / FOLDER / "users.json"


def load_users(path: Path) -> Users:
    """All users by name; none if there is no file. Raises InvalidArgumentError (others can read the file),
    CorruptDataError, VersionTooNewError, OSError."""
    data = read_secret(path, max_bytes=_MAX_BYTES)
    return {} if data is None else parse_users(data, path)


def parse_users(data: bytes, path: Path = Path("users.json")) -> Users:
    """The users in the contents of a file, as ``load_users``. ``path``: for errors. Raises CorruptDataError,
    VersionTooNewError."""
    try:
        document = json.loads(data)
        version = int(document["v"])
        if version > VERSION:
            raise VersionTooNewError("the users were written by a newer version", path=str(path), version=version)
        users = [_user(item) for item in document["users"]]
    except (VersionTooNewError, CorruptDataError):
        raise
    except (*MALFORMED, PenstockError) as error:
        # The error may quote the file.
        raise CorruptDataError(
            "the file of users cannot be read", path=str(path), reason=type(error).__name__
        ) from None
    return {user.name: user for user in users}


def change_users(path: Path, change: Callable[[dict[str, User]], None]) -> Users:
    """Change the users durably, one process at a time, and return the new ones. Raises what ``change`` raises, with
    nothing changed, and as ``load_users``; UnavailableError: the file was lost, and its cluster has it."""
    with locked(path):
        check_not_lost(path)
        users = dict(load_users(path))
        change(users)
        if len(users) > USERS_MAX:
            raise InvalidArgumentError("too many users; use tokens of an identity provider", limit=USERS_MAX)
        document = {"v": VERSION, "users": [_document(users[name]) for name in sorted(users)]}
        write_secret(path, json.dumps(document, indent=1).encode())
        return users


def with_grants(user: User, added: tuple[Grant, ...], removed: tuple[Grant, ...] = ()) -> User:
    """The user with more rights, and with fewer. Rights on one resource are one entry. Raises InvalidArgumentError: a
    removed right is not there."""
    found = {grant.resource: grant.actions for grant in user.grants}
    for grant in added:
        found[grant.resource] = found.get(grant.resource, frozenset()) | grant.actions
    for grant in removed:
        held = found.pop(grant.resource, frozenset())
        if not grant.actions <= held:
            raise InvalidArgumentError("the user has no such right", name=user.name, right=grant_text(grant))
        if held - grant.actions:
            found[grant.resource] = held - grant.actions
    return replace(user, grants=tuple(Grant(resource, found[resource]) for resource in sorted(found)))


def _document(user: User) -> Mapping[str, Any]:
    found: dict[str, Any] = {"name": user.name, "grants": [grant_text(grant) for grant in user.grants]}
    if user.password is not None:
        found["hash"] = user.password.argon2
        if user.password.rounds:
            found["pravega"] = {"salt": user.password.salt, "rounds": user.password.rounds}
    if user.certificates:
        found["certificates"] = list(user.certificates)
    return found


def _user(item: Mapping[str, Any]) -> User:
    inner = item.get("pravega") or {"salt": "", "rounds": 0}
    password = None
    if "hash" in item:
        password = PasswordHash(argon2=str(item["hash"]), salt=str(inner["salt"]), rounds=int(inner["rounds"]))
    return User(
        name=str(item["name"]),
        password=password,
        certificates=tuple(map(str, item.get("certificates", ()))),
        grants=tuple(parse_grant(str(text)) for text in item["grants"]),
    )
