"""Which requests to place or release a hold are legal.

Source: docs/design/0011-retention-policies.md.
"""

from __future__ import annotations

import re

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName
from penstock.model.policies import LONG_MAX

ID_MAX = 128  # characters; the id is part of keys
OWNER_MAX = 256  # characters
REASON_MAX = 1024  # characters

_ID = re.compile(r"[A-Za-z0-9._-]+\Z")


def check_hold(
    target: StreamName | str,
    *,
    owner: str,
    reason: str,
    until_ms: int | None,
    cut: StreamCut | None,
    hold_id: str | None,
    now_ms: int,
) -> None:
    """Check a request to place a hold on a stream, or on a scope (text).

    Args:
        until_ms: When the hold ends, and ``now_ms``: milliseconds since the Unix epoch. None: when it is released.
        cut: Where the hold begins. None: at the head.
        hold_id: None: the store chooses one.
    Raises:
        InvalidArgumentError: Names the field, and the rule that its value breaks.
    """
    message = "a hold needs an owner and a reason"
    _check_text(message, "owner", owner, OWNER_MAX)
    _check_text(message, "reason", reason, REASON_MAX)
    if hold_id is not None and not (0 < len(hold_id) <= ID_MAX and _ID.match(hold_id)):
        raise InvalidArgumentError(
            "id of a hold is not legal",
            field="hold_id",
            value=hold_id[:60],
            rule=f"1 to {ID_MAX} letters, digits, dots, dashes and underscores",
        )
    if until_ms is not None and not now_ms < until_ms <= LONG_MAX:
        raise InvalidArgumentError(
            "a hold must end in the future",
            field="until_ms",
            value=until_ms,
            rule=f"later than now, at most {LONG_MAX}",
            now_ms=now_ms,
        )
    if cut is not None and not isinstance(target, StreamName):
        raise InvalidArgumentError("only a hold on one stream has a cut", field="cut", value=str(target))
    if isinstance(target, StreamName) and target.is_internal:
        raise InvalidArgumentError("an internal stream cannot have a hold", field="stream", value=str(target))


def check_release(owner: str) -> None:
    """Check a request to release a hold: the audit log records its ``owner``. Raises InvalidArgumentError."""
    _check_text("releasing a hold needs an owner", "owner", owner, OWNER_MAX)


def check_extension(until_ms: int | None, wanted_ms: int | None) -> None:
    """Check a request to let a hold end at ``wanted_ms``; None: when it is released. Raises InvalidArgumentError."""
    if wanted_ms is not None and (until_ms is None or not until_ms <= wanted_ms <= LONG_MAX):
        raise InvalidArgumentError(
            "a hold can only be extended; to end it earlier, release it",
            field="until_ms",
            value=wanted_ms,
            rule=f"not before its present end, at most {LONG_MAX}",
            until_ms=until_ms,
        )


def _check_text(message: str, field: str, text: object, longest: int) -> None:
    """JSON can contain lone surrogates, and control characters would garble the list of holds in a terminal."""
    if not isinstance(text, str) or not text.isprintable() or not text.strip() or len(text) > longest:
        raise InvalidArgumentError(
            message, field=field, value=ascii(text)[:60], rule=f"1 to {longest} printable characters"
        )
