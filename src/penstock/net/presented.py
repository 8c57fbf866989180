"""What a client presents to a store, and which authorities it trusts: from arguments, or from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from penstock.model.credentials import (
    CLIENT_CERT,
    CLIENT_KEY,
    INSECURE,
    PASSWORD_FILE,
    TLS_CA,
    TOKEN_FILE,
    USER,
    Credentials,
)
from penstock.model.errors import InvalidArgumentError, UnsupportedError
from penstock.model.values.dataclass import dataclass
from penstock.net.tls.client import ClientTls

_PRAVEGA = "pravega_client_"
_SECRET_MAX_BYTES = 16 << 10


class ConnectOptions(TypedDict, total=False):
    """Keyword arguments of ``penstock.connect`` and ``penstock.connect_async``. What is not given is taken from the
    environment.

    ``tls_ca``: a file or directory with the authorities to trust, in PEM (default: those of the system). ``tls_cert`` and
    ``tls_key``: the client's certificate and key for mutual TLS. ``credentials``: see ``penstock.Credentials``.
    ``insecure``: send credentials over plain connections beyond this machine.
    """

    tls_ca: str | Path | None
    tls_cert: str | Path | None
    tls_key: str | Path | None
    credentials: Credentials | None
    insecure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    """``tls``: None if nothing about TLS was given: the address then decides, and the system's authorities are trusted."""

    tls: ClientTls | None = None
    credentials: Credentials | None = None
    insecure: bool = False
    default_tls: ClientTls | None = None
    """What the environment names: it applies if the address asks for TLS, and never asks for TLS itself."""


def presented(options: ConnectOptions | None = None, environment: Mapping[str, str] | None = None) -> Presented:
    """What the options name, and for the rest what the environment names.

    Raises InvalidArgumentError (an unknown option, a file that cannot be read), UnsupportedError (Keycloak's variables of
    Pravega's clients).
    """
    given = dict(options or {})
    unknown = sorted(set(given) - set(ConnectOptions.__annotations__))
    if unknown:
        raise InvalidArgumentError("no such option of a connection", option=unknown[0])
    environment = os.environ if environment is None else environment
    files = [_path(given.get(name)) for name in ("tls_ca", "tls_cert", "tls_key")]
    tls = None
    if any(file is not None for file in files):
        tls = ClientTls(ca=files[0], certificate=files[1], key=files[2])
    credentials = given.get("credentials")
    if credentials is not None and not isinstance(credentials, Credentials):
        raise InvalidArgumentError("credentials are made by penstock.Credentials", type=type(credentials).__name__)
    return Presented(
        tls=tls,
        credentials=credentials if credentials is not None else credentials_of(environment),
        insecure=bool(given.get("insecure") or environment.get(INSECURE) in ("1", "true")),
        default_tls=_tls_of(environment),
    )


def _path(value: object) -> Path | None:
    return None if value is None else Path(str(value))


def _tls_of(environment: Mapping[str, str]) -> ClientTls | None:
    ca = environment.get(TLS_CA) or environment.get(f"{_PRAVEGA}tls_cert_path")
    certificate, key = environment.get(CLIENT_CERT), environment.get(CLIENT_KEY)
    if not (ca or certificate or key):
        return None
    return ClientTls(ca=_path(ca or None), certificate=_path(certificate or None), key=_path(key or None))


def credentials_of(environment: Mapping[str, str]) -> Credentials | None:
    """The credentials that the environment names: ours first, then those of Pravega's clients."""
    if path := environment.get(TOKEN_FILE):
        return Credentials.bearer_file(path)
    if user := environment.get(USER):
        password_file = environment.get(PASSWORD_FILE)
        if not password_file:
            raise InvalidArgumentError(
                f"a user needs the file of its password: --password-file or {PASSWORD_FILE}", user=user[:40]
            )
        return Credentials.basic(user, _secret(Path(password_file)))
    if environment.get(PASSWORD_FILE):
        raise InvalidArgumentError(f"a password needs the name of its user: --user or {USER}")
    method = environment.get(f"{_PRAVEGA}auth_method", "")
    if method.lower() == "basic":
        user, password = (environment.get(f"{_PRAVEGA}auth_{name}", "") for name in ("username", "password"))
        return Credentials.basic(user, password) if user else None
    if method:
        raise UnsupportedError(
            f"{_PRAVEGA}auth_method names a method that is not known here; use {TOKEN_FILE} for tokens",
            method=method[:40],
        )
    return None


def _secret(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_SECRET_MAX_BYTES + 1)
        if len(content) > _SECRET_MAX_BYTES:
            raise InvalidArgumentError("the file with the password is too large", path=str(path))
        # An editor ends a file with a line end; no password does.
        return content.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise InvalidArgumentError(
            "the file with the password cannot be read", path=str(path), reason=str(reason)
        ) from None
