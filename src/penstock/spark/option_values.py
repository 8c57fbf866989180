"""Values of options: sizes, and the form of events."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Literal, TypeAlias

from penstock.core.access.plans import PLAN_S_MAX, PLAN_S_MIN
from penstock.model.errors import InvalidArgumentError

PlainEvents: TypeAlias = Literal["fail", "null"]
"""What a read of records makes of an event that is not a record: an error, or a row without key, value and headers."""

TOKEN_S = 3600
"""How long the token of a plan is valid, in seconds. A task must start within this time; a running task renews the
token."""

_SIZE = re.compile(r"(\d{1,19}(?:\.\d{1,19})?)\s*([a-z]*)\Z", re.IGNORECASE)
# One letter as Spark and Java mean it; two and three as our command line does.
_UNITS = (
    {"": 1, "b": 1}
    | {letter: 1 << 10 * power for power, letter in enumerate("kmgt", 1)}
    | {f"{letter}ib": 1 << 10 * power for power, letter in enumerate("kmgt", 1)}
    | {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
)

Given: TypeAlias = Callable[[str], str | None]
"""The text of an option; None where it is not given."""


def reads_records(given: Given) -> bool:
    """Whether events are records. Raises InvalidArgumentError, also for an option that has no meaning beside it."""
    text = (given("event_format") or "bytes").lower()
    if text not in ("bytes", "record"):
        raise InvalidArgumentError("option event_format must be bytes or record", value=text[:40])
    if text == "record" and given("event_column") is not None:
        raise InvalidArgumentError("records have the columns key, value, headers and timestamp; drop event_column")
    if text == "bytes" and given("plain_events") is not None:
        raise InvalidArgumentError("option plain_events belongs to event_format=record")
    return text == "record"


def plain_events(given: Given) -> PlainEvents:
    """What becomes of events that are not records. Raises InvalidArgumentError."""
    text = (given("plain_events") or "fail").lower()
    match text:
        case "fail" | "null":
            return text
    raise InvalidArgumentError("option plain_events must be fail or null", value=text[:40])


def token_seconds(given: Given) -> int:
    """How long the token of a plan is valid, in seconds. Raises InvalidArgumentError."""
    text = given("token_seconds") or str(TOKEN_S)
    # Longer numbers are refused before they are converted.
    found = int(text) if re.fullmatch(r"[0-9]{1,9}", text) else 0
    if not PLAN_S_MIN <= found <= PLAN_S_MAX:
        raise InvalidArgumentError(
            f"option token_seconds must be a whole number from {PLAN_S_MIN} to {PLAN_S_MAX}", value=text[:40]
        )
    return found


def size_of(name: str, text: str) -> int:
    """Bytes of a size, at least one. Raises InvalidArgumentError, which names the option."""
    match = _SIZE.match(text)
    unit = _UNITS.get(match[2].lower()) if match else None
    size_bytes = 0 if match is None or unit is None else round(Fraction(match[1]) * unit)
    if size_bytes < 1:
        raise InvalidArgumentError(
            f"option {name} must be a size of at least 1, such as 1000, 64m, 64MiB or 10MB", value=text[:40]
        )
    return size_bytes
