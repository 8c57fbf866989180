"""Answers of the control plane as JSON: the forms of docs/formats/planner.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, get_type_hints

import msgspec

from penstock.codec.control.effective_policy import decode_effective, encode_effective
from penstock.model.errors import CorruptDataError
from penstock.model.retention import EffectivePolicy

S = TypeVar("S", bound=msgspec.Struct)


def as_json(answer: object) -> dict[str, Any]:
    """The answer as plain values. Usable as the ``default`` of ``json``: raises TypeError for anything but a Struct."""
    if not isinstance(answer, msgspec.Struct):
        raise TypeError(f"not an answer. type={type(answer).__name__}")
    fields: dict[str, Any] = msgspec.to_builtins(answer)
    policy = getattr(answer, "policy", None)
    return fields | {"policy": encode_effective(policy)} if isinstance(policy, EffectivePolicy) else fields


def from_json(kind: type[S], fields: Mapping[str, Any]) -> S:
    """Inverse of ``as_json``. Unknown fields are ignored. Raises CorruptDataError."""
    known = fields
    if get_type_hints(kind).get("policy") is EffectivePolicy:
        known = {**fields, "policy": decode_effective(fields["policy"])}
    try:
        return msgspec.convert(known, kind, from_attributes=True)
    except msgspec.ValidationError as error:
        raise CorruptDataError("answer cannot be decoded", kind=kind.__name__, why=str(error)) from error
