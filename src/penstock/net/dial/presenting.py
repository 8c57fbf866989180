"""The credentials of a connection: asked for again before they expire and after a refusal."""

from __future__ import annotations

import asyncio
import base64
import binascii
import inspect
import json
from pathlib import Path

from penstock.model.credentials import Credentials, bearer_header
from penstock.model.errors import AccessError, InvalidArgumentError, UnauthenticatedError
from penstock.ports.clock import Clock

_EARLY_SHARE = 10
"""A token is asked for again when a tenth of its time is left, so that no call carries one that expires on the way."""
_EARLY_MIN_MS = 5_000
_UNKNOWN_MS = 60_000
"""How long a token without a readable time of expiry is used before it is asked for again."""
_TOKEN_MAX_BYTES = 16 << 10
_ASK_S = 30.0


class Presenting:
    """The header of the credentials, for any number of calls at once."""

    def __init__(self, credentials: Credentials, clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock
        self._header = credentials.header
        self._renew_at_ms = 0
        self._asking = asyncio.Lock()

    @property
    def file(self) -> Path | None:
        """The file that contains the token; None: the token is not from a file."""
        return self._credentials.file

    async def header(self) -> str:
        """The current header. Raises UnauthenticatedError if the file or the call that supplies a token fails."""
        if self._credentials.header or self._clock.now_ms() < self._renew_at_ms:
            return self._header
        async with self._asking:
            if self._clock.now_ms() >= self._renew_at_ms:
                await self._renew()
        return self._header

    def refused(self, header: str) -> bool:
        """The server refused the header. Returns whether another one may be had, by asking again."""
        if self._credentials.header:
            return False
        if header == self._header:
            self._renew_at_ms = 0
        return True

    async def _renew(self) -> None:
        token = await self._token()
        now_ms = self._clock.now_ms()
        try:
            self._header = bearer_header(token)
        except InvalidArgumentError as error:
            named = {} if self.file is None else {"path": str(self.file)}
            raise UnauthenticatedError("the supplied token is not a single word of text", **named) from error
        expires_ms = expiry_ms(token)
        if expires_ms is None:
            self._renew_at_ms = now_ms + _UNKNOWN_MS
        else:
            early_ms = max(_EARLY_MIN_MS, (expires_ms - now_ms) // _EARLY_SHARE)
            self._renew_at_ms = min(expires_ms - early_ms, now_ms + _UNKNOWN_MS * 10)

    async def _token(self) -> str:
        file, call = self._credentials.file, self._credentials.call
        if file is not None:
            return _read(file)
        if call is None:
            raise UnauthenticatedError("the credentials have no source")
        try:
            async with asyncio.timeout(_ASK_S):
                if inspect.iscoroutinefunction(call):
                    found = await call()
                else:
                    found = await asyncio.get_running_loop().run_in_executor(None, call)
                    if inspect.isawaitable(found):
                        found = await found
        except AccessError:
            raise
        except Exception as error:
            raise UnauthenticatedError(
                "the function that supplies tokens failed", reason=type(error).__name__
            ) from error
        return str(found)


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_TOKEN_MAX_BYTES + 1)
    except OSError as error:
        raise UnauthenticatedError(
            "the file with the token cannot be read", path=str(path), reason=str(error.strerror)
        ) from error
    if len(content) > _TOKEN_MAX_BYTES:
        raise UnauthenticatedError("the file with the token is too large", path=str(path))
    return content.decode("ascii", "replace").strip()


def expiry_ms(token: str) -> int | None:
    """When a JSON Web Token expires, by what it says; None if it says nothing that can be read. Verifies nothing."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return int(claims["exp"] * 1000)
    except (binascii.Error, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
