"""A dry-run change of policy: applies it to the policy of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.codec.control.policy_document import FIELDS, decode_document, value_of
from penstock.core.policies.levels import check_effective, document_of, resolve, validate, with_value
from penstock.model.errors import InvalidArgumentError
from penstock.model.retention import EMPTY, INHERIT, EffectivePolicy, Inherit, PolicyDocument

ALL_FIELDS = tuple(item.path for item in FIELDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEdit:
    """Fields of a policy that are set, after others are left open.

    ``cleared``: paths as ``retain.min_bytes``, left open first; ``values``: what is set, a field that it leaves open stays
    as it is. ``scopes``: only streams of these; empty: all. Raises: InvalidArgumentError where the values contradict
    themselves, or nothing is changed.
    """

    values: PolicyDocument = EMPTY
    cleared: tuple[str, ...] = ()
    scopes: frozenset[str] = frozenset()
    _known: dict[int, tuple[EffectivePolicy | None, EffectivePolicy | InvalidArgumentError]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.values == EMPTY and not self.cleared:
            raise InvalidArgumentError("a change changes something: name a field, or clear one")
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
        """The policy after the change: the same object for the same one, as long as that is remembered.

        Raises InvalidArgumentError where it contradicts itself.
        """
        found = self._known.get(id(policy))
        if found is None or found[0] is not policy:
            if len(self._known) >= 4096:
                self._known.clear()
            # The policy is kept beside its change, so that its id cannot pass to another one.
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
