"""Retention policies on the command line: how they are given, and one sentence that says what they do."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from penstock.app.units import format_duration, format_size, parse_duration_ms, parse_size
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import RetentionPolicy, RetentionType

TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="size|time", help="Limit by size or by age.", show_default=False),
]
MinOption = Annotated[
    str | None,
    typer.Option("--min", metavar="LIMIT", help="Keep at least this: 10MB, or 12h.", show_default=False),
]
MaxOption = Annotated[
    str | None,
    typer.Option("--max", metavar="LIMIT", help="Keep at most this, even if unread.", show_default=False),
]


def parse_policy(kind: str | None, minimum: str | None, maximum: str | None) -> RetentionPolicy | None:
    """The policy that the options describe; None where none is given. Raises InvalidArgumentError."""
    if kind is None:
        if minimum is not None or maximum is not None:
            raise InvalidArgumentError("say what the limits count: --type size or --type time")
        return None
    if kind not in ("size", "time"):
        raise InvalidArgumentError("retention type is size or time", type=repr(kind))
    parse = parse_size if kind == "size" else parse_duration_ms
    return RetentionPolicy(
        type=RetentionType(kind),
        minimum=parse(minimum) if minimum is not None else 0,
        maximum=parse(maximum) if maximum is not None else None,
    )


def sentence(policy: RetentionPolicy | None) -> str:
    """What the policy does, for people."""
    if policy is None:
        return "kept for ever (no retention policy)"
    show = format_size if policy.type is RetentionType.SIZE else format_duration
    least = f"kept at least {show(policy.minimum)}" if policy.minimum else "kept until consumed"
    most = f", at most {show(policy.maximum)} even if unread" if policy.maximum is not None else ""
    return f"{least}{most}; what all subscribers have consumed goes within a cycle"


def as_fields(policy: RetentionPolicy | None) -> dict[str, Any] | None:
    """The policy as plain values, for JSON."""
    if policy is None:
        return None
    return {"type": policy.type.value, "min": policy.minimum, "max": policy.maximum, "unit": policy.unit}
