"""A client's tokens for segments: one for each stream, fetched before the first command and renewed before it expires."""

from __future__ import annotations

import asyncio
import base64
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from penstock.core.access.resources import of_segment
from penstock.model.errors import NotConnectedError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.net.wire.wire_errors import own_token

_KEPT_MAX = 10_000  # tokens
_UNKNOWN_LIFE_S = 60.0
_USED = 0.7
"""The part of a token's life after which it is renewed. The server may return one that has used a fifth of its life."""
_USED_MAX = 0.8
"""The part of its life for which a token is used while the controller cannot be reached."""
_ASK_AGAIN_S = 5.0

AskToken = Callable[[StreamName], Awaitable[str]]
"""Returns a token for the segments of a stream; empty where none are needed."""


@dataclass(slots=True)
class _Held:
    text: str
    renew_s: float
    """When to ask for another one, in the loop's time."""
    ends_s: float


class SegmentTokens:
    """Tokens by stream. ``ask``: None where no tokens are needed, as in a store without authentication."""

    def __init__(self, ask: AskToken | None = None) -> None:
        self._ask = ask
        self._held: OrderedDict[str, _Held] = OrderedDict()
        self._asking: dict[str, asyncio.Lock] = {}

    async def ensure(self, segment: str) -> None:
        """Have a valid token for the segment. Raises UnauthenticatedError, PermissionDeniedError, NotConnectedError."""
        if self._ask is None:
            return
        place = _place(segment)
        if self._is_fresh(place):
            # The token that was not used for longest is forgotten first, and never one that a command is about to use.
            self._held.move_to_end(place)
            return
        lock = self._asking.setdefault(place, asyncio.Lock())
        try:
            async with lock:
                if not self._is_fresh(place):
                    await self._renew(self._ask, place, of_segment(segment))
        finally:
            self._asking.pop(place, None)

    def of(self, segment: str) -> str:
        """What a command about the segment carries as its token."""
        held = self._held.get(_place(segment)) if self._held else None
        return own_token("") if held is None else held.text

    def refused(self, segment: str) -> None:
        """The server refused the token: ask for another one next time. Until then commands carry this one, because
        others may be about to send theirs."""
        held = self._held.get(_place(segment))
        if held is not None:
            held.renew_s = held.ends_s = 0.0

    def renew_at(self, segment: str) -> float | None:
        """When the token must be renewed, in the loop's time; None: the segment needs none."""
        held = self._held.get(_place(segment)) if self._held else None
        return None if held is None or held.text == own_token("") else held.renew_s

    def _is_fresh(self, place: str) -> bool:
        held = self._held.get(place)
        return held is not None and asyncio.get_running_loop().time() < held.renew_s

    async def _renew(self, ask: AskToken, place: str, stream: StreamName) -> None:
        try:
            text = await ask(stream)
        except NotConnectedError:
            held, now_s = self._held.get(place), asyncio.get_running_loop().time()
            if held is None or now_s >= held.ends_s:
                raise
            # Segment stores may serve while their controller restarts.
            held.renew_s = now_s + _ASK_AGAIN_S
            return
        now_s, valid_s = asyncio.get_running_loop().time(), life_s(text)
        self._held[place] = _Held(own_token(text), now_s + _USED * valid_s, now_s + _USED_MAX * valid_s)
        self._held.move_to_end(place)
        if len(self._held) > _KEPT_MAX:
            self._held.popitem(last=False)


def _place(segment: str) -> str:
    """The key of a segment's stream: the name without its last part, as ``of_segment`` reads it."""
    return segment.rpartition("/")[0] if segment.count("/") == 2 else segment


def life_s(token: str) -> float:
    """How long a token is valid from its issue on, by its own claims. Both times are the server's, so the clock of this
    machine does not matter."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return max(1.0, float(claims["exp"]) - float(claims["iat"]))
    except (LookupError, ValueError, TypeError):
        return _UNKNOWN_LIFE_S
