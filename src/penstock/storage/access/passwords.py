"""Hashes of passwords: argon2id, and Pravega's PBKDF2 inside it.

A hash imported from Pravega is hashed again with argon2id, so what is stored is as slow to guess as our own. Each check
takes as many rounds of PBKDF2 as the slowest stored hash, so its time does not show whether a name exists, or of which
kind its hash is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from penstock.model.errors import InvalidArgumentError
from penstock.model.values.dataclass import dataclass

if TYPE_CHECKING:
    from argon2 import PasswordHasher

PASSWORD_MAX = 1024  # characters
PASSWORD_MIN = 8  # characters
_DERIVED_BYTES = 64
_ROUNDS = 5_000  # of PBKDF2, as Pravega uses
_ROUNDS_MAX = 1_000_000  # of PBKDF2
_PRAVEGA = re.compile(r"(\d{1,7}):((?:[0-9a-f]{2}){8,64}):([0-9a-f]{128})\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PasswordHash:
    """A stored hash. ``salt`` and ``rounds``: of the PBKDF2 whose result was hashed, for imported ones; else empty."""

    argon2: str
    salt: str = ""
    rounds: int = 0


def check_password(password: str) -> str:
    """The password, if it can be set. Raises InvalidArgumentError, which does not contain it."""
    if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
        raise InvalidArgumentError(f"a password must have {PASSWORD_MIN} to {PASSWORD_MAX} characters")
    if "\n" in password or "\0" in password:
        raise InvalidArgumentError("a password must be one line of text")
    return password


def hash_password(password: str) -> PasswordHash:
    """Hash a new password. Takes some 50 ms and 19 MiB."""
    return PasswordHash(argon2=_hasher().hash(password))


def import_pravega(text: str) -> PasswordHash:
    """The hash of a line of Pravega's password file: the hex text of ``rounds:salt:hash``. Raises InvalidArgumentError."""
    try:
        plain = bytes.fromhex(text.strip()).decode("ascii")
    except ValueError as error:
        raise InvalidArgumentError("the hash is not one of Pravega's password tool") from error
    found = _PRAVEGA.match(plain)
    if found is None or not 1 <= int(found[1]) <= _ROUNDS_MAX:
        raise InvalidArgumentError("the hash is not one of Pravega's password tool")
    return PasswordHash(argon2=_hasher().hash(found[3]), salt=found[2], rounds=int(found[1]))


def rounds_of(stored: Iterable[PasswordHash]) -> int:
    """The rounds of PBKDF2 of the slowest of these hashes: each check takes as many."""
    return max((one.rounds for one in stored), default=0) or _ROUNDS


def matches(stored: PasswordHash | None, password: str, rounds: int = _ROUNDS) -> bool:
    """Whether the password is the stored one. None, an unknown user, takes as long and is False. ``rounds``: of
    ``rounds_of``."""
    from argon2.exceptions import InvalidHashError, VerificationError

    one = stored or _nobody()
    own = one.rounds or rounds
    derived = _derived(password, bytes.fromhex(one.salt), own)
    if own < rounds:
        _derived(password, b"", rounds - own)
    try:
        _hasher().verify(one.argon2, derived if one.rounds else password)
    except (VerificationError, InvalidHashError):
        return False
    return stored is not None


def _derived(password: str, salt: bytes, rounds: int) -> str:
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds, _DERIVED_BYTES).hex()


@cache
def _hasher() -> PasswordHasher:
    from argon2 import PasswordHasher

    # OWASP's first choice: more memory would let a few calls at the same time exhaust a small server.
    return PasswordHasher(time_cost=2, memory_cost=19 << 10, parallelism=1)


@cache
def _nobody() -> PasswordHash:
    return hash_password("nobody knows this one")
