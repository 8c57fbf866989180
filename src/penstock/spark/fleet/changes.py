"""A dry-run change of policy: applies it to the policy of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from penstock.codec.control.policy_document import FIELDS, decode_document, value_of
from penstock.core.policies.levels import check_effective, document_of, resolve, validate, with_value
from penstock.model.errors import InvalidArgumentError
from penstock.model.retention import EMPTY, INHERIT, EffectivePolicy, Inherit, PolicyDocument
from penstock.model.values.dataclass import dataclass

ALL_FIELDS = tuple(item.path for item in FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEdit:
    """A change of policy: clears some fields, then sets others.

    ``cleared``: paths such as ``retain.min_bytes``, which are cleared first. ``values``: the fields to set; other fields
    do not change. ``scopes``: only streams of these scopes; empty: all. Raises InvalidArgumentError if the values
    contradict each other, or if nothing is changed.
    """

    values: PolicyDocument = EMPTY
    cleared: tuple[str, ...] = ()
    scopes: frozenset[str] = frozenset()
    _known: dict[int, tuple[EffectivePolicy | None, EffectivePolicy | InvalidArgumentError]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.values == EMPTY and not self.cleared:
            raise InvalidArgumentError("the change is empty: set or clear at least one field")
        for path in self.cleared:
            if path not in ALL_FIELDS:
                raise InvalidArgumentError("no such field of a policy", field=path, known=", ".join(ALL_FIELDS))
        validate(self.values)

    def __getstate__(self) -> tuple[PolicyDocument, tuple[str, ...], frozenset[str]]:
        return self.values, self.cleared, self.scopes

    def __setstate__(self, state: tuple[PolicyDocument, tuple[str, ...], frozenset[str]]) -> None:
        for name, value in zip(("values", "cleared", "scopes"), state, strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_known", {})

    def in_words(self) -> str:
        """The change, for people: each field with its new value, and where it applies."""
        from penstock.app.cli.common.words import policy_value

        def shown(value: Any) -> str:
            return policy_value(path, getattr(value, "value", value))

        said = []
        for path in ALL_FIELDS:
            value = value_of(self.values, path)
            if not isinstance(value, Inherit):
                said.append(f"{path} {shown(value)}")
            elif path in self.cleared and len(self.cleared) < len(ALL_FIELDS):
                said.append(f"{path} left open")
        if len(self.cleared) == len(ALL_FIELDS):
            said.append("nothing else")
        where = f" for {', '.join(sorted(self.scopes))}" if self.scopes else ""
        return ", ".join(said) + where

    def reaches(self, scope: str) -> bool:
        return not self.scopes or scope in self.scopes

    def of(self, policy: EffectivePolicy | None) -> EffectivePolicy:
        """The policy after the change. Cached: equal arguments return the same object while they are in the cache.

        Raises InvalidArgumentError if the changed policy contradicts itself.
        """
        found = self._known.get(id(policy))
        if found is None or found[0] is not policy:
            if len(self._known) >= 4096:
                self._known.clear()
            # Keep the policy with its result, so that no other object can get its id.
            found = self._known[id(policy)] = policy, self._changed(policy)
        if isinstance(found[1], InvalidArgumentError):
            raise InvalidArgumentError(found[1].message, **found[1].fields)
        return found[1]

    def _changed(self, policy: EffectivePolicy | None) -> EffectivePolicy | InvalidArgumentError:
        document = EMPTY if policy is None else document_of(policy)
        for path in self.cleared:
            document = with_value(document, path, INHERIT)
        for path in ALL_FIELDS:
            value = value_of(self.values, path)
            if not isinstance(value, Inherit):
                document = with_value(document, path, value)
        try:
            changed = resolve(validate(document), EMPTY, EMPTY)
            check_effective(changed)
        except InvalidArgumentError as error:
            fields: Mapping[str, Any] = {**error.fields, "field": f"policy.{error.fields.get('field')}"}
            return InvalidArgumentError(error.message, **fields)
        return changed


def edit_of(
    change: PolicyEdit | PolicyDocument | Mapping[str, Any], *, scopes: frozenset[str] = frozenset()
) -> PolicyEdit:
    """The change that a document makes: its fields are set, the others stay. Raises InvalidArgumentError."""
    if isinstance(change, PolicyEdit):
        return change
    document = change if isinstance(change, PolicyDocument) else decode_document(change)
    return PolicyEdit(values=document, scopes=scopes)
