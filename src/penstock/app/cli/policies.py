"""Retention policies on the command line: Pravega's form as options, and a one-sentence summary of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.core.policies import sentence as policy_sentence
from penstock.core.policies.levels import effective_of
from penstock.core.units import parse_duration_ms, parse_size
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import RetentionPolicy, RetentionType
from penstock.model.retention import EffectivePolicy

if TYPE_CHECKING:
    from penstock.client.blocking.stores import Store

TypeOption = Annotated[
    str | None,
    typer.Option("--type", metavar="size|time", help="Limit by size or by age, as in Pravega.", show_default=False),
]
MinOption = Annotated[
    str | None,
    typer.Option("--min", metavar="LIMIT", help="With --type: keep at least this: 10MB, or 12h.", show_default=False),
]
MaxOption = Annotated[
    str | None,
    typer.Option(
        "--max",
        metavar="LIMIT",
        help="With --type: keep at most this, even if unread: 10MB, or 12h.",
        show_default=False,
    ),
]


def parse_policy(kind: str | None, minimum: str | None, maximum: str | None) -> RetentionPolicy | None:
    """The policy that the options describe; None where none is given. Raises InvalidArgumentError."""
    if kind is None:
        if minimum is not None or maximum is not None:
            raise InvalidArgumentError("limits need a type; give --type size or --type time")
        return None
    if kind not in ("size", "time"):
        raise InvalidArgumentError("retention type must be size or time", type=repr(kind))
    parse = parse_size if kind == "size" else parse_duration_ms
    return RetentionPolicy(
        type=RetentionType(kind),
        minimum=parse(minimum) if minimum is not None else 0,
        maximum=parse(maximum) if maximum is not None else None,
    )


def sentence(policy: EffectivePolicy | RetentionPolicy | None) -> str:
    """What the policy does, for people. How often the store applies it is not known here."""
    effective = policy if isinstance(policy, EffectivePolicy) else effective_of(policy)
    said = policy_sentence.sentence(effective, cycle_ms=None)
    return f"{said} (no retention policy)" if said == "kept forever" and not effective.truncates else said


def sentence_in_force(store: Store, stream: str) -> str:
    """What applies to the stream after all levels. The store returns it, because only it knows how often rules
    apply."""
    return store.stream(stream).retention.plan().sentence


def as_fields(policy: RetentionPolicy | None) -> dict[str, Any] | None:
    """Pravega's form of a policy as plain values, for JSON."""
    if policy is None:
        return None
    return {"type": policy.type.value, "min": policy.minimum, "max": policy.maximum, "unit": policy.unit}
