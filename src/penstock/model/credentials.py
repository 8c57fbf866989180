"""What a client presents to a server to prove who it is."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NoReturn, Self

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

TLS_CA, CLIENT_CERT, CLIENT_KEY = "PENSTOCK_TLS_CA", "PENSTOCK_CLIENT_CERT", "PENSTOCK_CLIENT_KEY"
TOKEN_FILE, USER, PASSWORD_FILE = "PENSTOCK_TOKEN_FILE", "PENSTOCK_USER", "PENSTOCK_PASSWORD_FILE"
INSECURE = "PENSTOCK_INSECURE"
"""Variables of the environment. All but ``USER`` and ``INSECURE`` name files."""

TokenCall = Callable[[], str | Awaitable[str]]
_HEADER_MAX = 16 << 10  # characters; a server refuses longer ones


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """Who the client is. Made by ``basic``, ``bearer``, ``bearer_file`` or ``bearer_from``. Shows no secret, and cannot be
    pickled, so that it reaches no other machine."""

    kind: str
    _header: str = ""
    _file: Path | None = None
    _call: TokenCall | None = None

    @classmethod
    def basic(cls, user: str, password: str) -> Self:
        """A user's name and password. Raises InvalidArgumentError: the name is empty or has a colon."""
        if not user or ":" in user:
            raise InvalidArgumentError("a user's name must have a character, and no colon")
        return cls("basic", _checked("Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()))

    @classmethod
    def bearer(cls, token: str) -> Self:
        """A token, which stays the same. Raises InvalidArgumentError if it is empty or has a blank."""
        return cls("bearer", bearer_header(token))

    @classmethod
    def bearer_file(cls, path: str | Path) -> Self:
        """The token in a file, which is read again before the token expires and after a refusal. Something else renews
        it, for example Kubernetes."""
        return cls("bearer_file", _file=Path(path))

    @classmethod
    def bearer_from(cls, call: TokenCall) -> Self:
        """The token that ``call`` returns, as text or as an awaitable of text. It is called again before the token
        expires and after a refusal. A function that is not a coroutine function runs in a thread."""
        return cls("bearer_from", _call=call)

    @property
    def header(self) -> str:
        """The text of HTTP's header ``authorization``; empty if a file or a call supplies it."""
        return self._header

    @property
    def file(self) -> Path | None:
        """The file with the token."""
        return self._file

    @property
    def call(self) -> TokenCall | None:
        """What returns the token."""
        return self._call

    def __repr__(self) -> str:
        return f"Credentials({self.kind}, hidden)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials are not pickled; create them where they are used")


def bearer_header(token: str) -> str:
    """The header of a token. Raises InvalidArgumentError if it is empty or has a blank."""
    if not token or any(character.isspace() for character in token):
        raise InvalidArgumentError("a token must be one word without blanks")
    return _checked(f"Bearer {token}")


def _checked(header: str) -> str:
    if len(header) > _HEADER_MAX or not header.isascii() or not header.isprintable():
        raise InvalidArgumentError("the credentials do not fit into a header", limit=_HEADER_MAX)
    return header
