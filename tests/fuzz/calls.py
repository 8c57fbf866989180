"""Inputs for the requests and replies of our own calls (``codec.values``)."""

from __future__ import annotations

import inspect
import random
import re
import typing
from collections.abc import Callable, Sequence

from penstock.codec.values import Call
from penstock.model.errors import PenstockError
from penstock.net.native.calls import control_calls, info_call, segment_calls
from tests.drawn_values import value_of

_CALLS: Sequence[Call] = (
    *(call for calls in control_calls().values() for call in calls.values()),
    *segment_calls().values(),
    info_call(),
)
_INPUT_BYTES_MAX = 4096
_JSON_FORM = re.compile("model.answers|EffectivePolicy|PolicyDocument")


def decode_request(data: bytes) -> object:
    """A request to a server. The first byte selects the call."""
    return _CALLS[data[0] % len(_CALLS)].decode_request(data[1:]) if data else None


def decode_reply(data: bytes) -> object:
    """A reply to a client. The first byte selects the call."""
    return _CALLS[data[0] % len(_CALLS)].decode_reply(data[1:]) if data else None


def requests() -> Sequence[bytes]:
    """One request of each call, drawn from its type hints."""
    return [found for number in range(len(_CALLS)) if (found := _drawn(number, _request)) is not None]


def replies() -> Sequence[bytes]:
    """One reply of each call whose answer is made of fields; the planner's answers have a JSON form of their own."""
    return [
        found
        for number, call in enumerate(_CALLS)
        if not _JSON_FORM.search(repr(typing.get_type_hints(call.declared)["return"]))
        and (found := _drawn(number, _reply)) is not None
    ]


def _request(call: Call, rng: random.Random) -> bytes:
    hints = typing.get_type_hints(call.declared)
    names = list(inspect.signature(call.declared).parameters)[1:]
    data = call.encode_request((), {name: value_of(rng, hints[name]) for name in names})
    call.decode_request(data)
    return data


def _reply(call: Call, rng: random.Random) -> bytes:
    data = call.encode_reply(value_of(rng, typing.get_type_hints(call.declared)["return"]))
    call.decode_reply(data)
    return data


def _drawn(number: int, draw: Callable[[Call, random.Random], bytes]) -> bytes | None:
    """The first drawn input that is legal and short. None: the type has too few legal values."""
    rng = random.Random(number)
    for _ in range(200):
        try:
            found = draw(_CALLS[number], rng)
        except (PenstockError, OverflowError, UnicodeEncodeError):
            continue
        if len(found) <= _INPUT_BYTES_MAX:
            return bytes([number]) + found
    return None
