"""Settings of authentication: plain values, checked once, from options and a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.core.access.resources import parse_grant
from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.storage.access.bearer import JwtSettings
from penstock.storage.access.delegation import TOKEN_S, TOKEN_S_MAX, TOKEN_S_MIN

_FILE_MAX_BYTES = 1 << 20
_JWT_TEXTS = ("issuer", "audience", "jwks", "name_claim", "grants_claim", "roles_claim")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Callers need an identity.

    ``users``: the file of the users; None: ``access/users.json`` in the data directory. ``jwt``: tokens of an identity
    provider; None: only those of the store. ``token_s``: how long a token for the segments of a stream is valid (default
    10 minutes); a removed right ends on data connections after that.
    """

    users: Path | None = None
    jwt: JwtSettings | None = None
    token_s: int = TOKEN_S

    def __post_init__(self) -> None:
        if not TOKEN_S_MIN <= self.token_s <= TOKEN_S_MAX:
            raise InvalidArgumentError(f"token_seconds must be {TOKEN_S_MIN} to {TOKEN_S_MAX}", token_s=self.token_s)


def load_access_settings(path: Path) -> AccessSettings:
    """The settings in a TOML file; docs/reference/access.md describes it. Raises InvalidArgumentError, OSError."""
    import tomllib  # only here: most servers have no such file

    with path.open("rb") as file:
        data = file.read(_FILE_MAX_BYTES)
    try:
        document = tomllib.loads(data.decode())
    except ValueError as error:
        raise InvalidArgumentError("the settings file is not TOML", path=str(path), reason=str(error)[:200]) from error
    _check_names(document, {"users", "token_seconds", "jwt"}, "")
    users, token_s, jwt = document.get("users"), document.get("token_seconds", TOKEN_S), document.get("jwt")
    if not isinstance(users, str | None) or not isinstance(token_s, int) or not isinstance(jwt, dict | None):
        raise InvalidArgumentError(
            "a setting has the wrong type: users must be a path, token_seconds a number, jwt a table", path=str(path)
        )
    return AccessSettings(
        users=None if users is None else path.parent / users,
        jwt=None if jwt is None else _jwt(jwt),
        token_s=token_s,
    )


def _jwt(table: Mapping[str, Any]) -> JwtSettings:
    _check_names(table, {*_JWT_TEXTS, "algorithms", "roles", "leeway_seconds"}, "jwt.")
    chosen: dict[str, Any] = {name: table[name] for name in _JWT_TEXTS if name in table}
    for name, value in chosen.items():
        if not isinstance(value, str):
            raise InvalidArgumentError("a setting must be text", setting=f"jwt.{name}")
    if "algorithms" in table:
        chosen["algorithms"] = tuple(_texts(table["algorithms"], "jwt.algorithms"))
    if "leeway_seconds" in table:
        chosen["leeway_s"] = table["leeway_seconds"]
    roles = table.get("roles", {})
    if not isinstance(roles, dict):
        raise InvalidArgumentError("roles must be a table with a list of rights for each role", setting="jwt.roles")
    chosen["roles"] = {
        role: tuple(map(parse_grant, _texts(rights, f"jwt.roles.{role}"))) for role, rights in roles.items()
    }
    missing = [name for name in ("issuer", "audience", "jwks") if name not in chosen]
    if missing:
        raise InvalidArgumentError("a setting is missing", setting=f"jwt.{missing[0]}")
    return JwtSettings(**chosen)


def _texts(value: object, setting: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InvalidArgumentError("a setting must be a list of strings", setting=setting)
    return value


def _check_names(table: Mapping[str, Any], known: set[str], prefix: str) -> None:
    unknown = sorted(set(table) - known)
    if unknown:
        raise InvalidArgumentError("no such setting", setting=f"{prefix}{unknown[0]}", known=", ".join(sorted(known)))
