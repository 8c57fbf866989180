"""The types of answers as JSON schemas, and values of those types as JSON: the schema and the encoding of each type.

A stream becomes ``scope/stream``, a cut its text, an enum its value, a record an object of all its fields. Policies and
answers of the planner have the forms of docs/formats/policy.md and docs/formats/planner.md.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from penstock.codec.answers import as_json
from penstock.codec.control.effective_policy import encode_effective
from penstock.codec.control.policy_document import FIELDS, VERSION, Field, Kind, encode_document
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, Level, PolicyDocument
from penstock.model.segments import SegmentId

Schema: TypeAlias = dict[str, Any]

_PLAIN: Mapping[Any, Schema] = {
    Any: {},
    type(None): {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    UUID: {"type": "string"},
    StreamName: {"type": "string", "description": "`scope/stream`"},
    SegmentId: {"type": "integer", "description": "Epoch of its creation times 2^32, plus its number"},
    StreamCut: {"type": "string", "description": "The text of a cut"},
}


def to_json(value: object) -> object:
    """The ``default`` of ``json.dumps`` for all types that ``Schemas`` supports. Raises TypeError for any other."""
    match value:
        case msgspec.Struct():
            return as_json(value)
        case StreamName() | UUID():
            return str(value)
        case StreamCut():
            return value.to_text()
        case PolicyDocument():
            return encode_document(value)
        case EffectivePolicy():
            return encode_effective(value)
        case enum.Enum():
            return value.value
        case Mapping():
            return dict(value)
        case _ if dataclasses.is_dataclass(value):
            return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        case _:
            raise TypeError(f"not an answer. type={type(value).__name__}")


class Schemas:
    """Schemas of types. ``named`` collects those that others refer to, by name."""

    def __init__(self) -> None:
        self.named: dict[str, Schema] = {}

    def of(self, hint: Any) -> Schema:
        """The schema of the type. ``Annotated`` with a name: the schema of that name, written by hand.

        Raises TypeError for a type that no answer uses yet.
        """
        if hint in _PLAIN:
            return _PLAIN[hint]
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return reference(arguments[1])
        if origin in (Union, types.UnionType):
            return _any_of([self.of(item) for item in arguments if item is not msgspec.UnsetType])
        if origin is Sequence or (origin is tuple and arguments[1:] == (...,)):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is Mapping:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return {"type": "string", "enum": [item.value for item in hint]}
        if isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or dataclasses.is_dataclass(hint)):
            return self._reference(hint)
        raise TypeError(f"no schema is known for {hint!r}")

    def _reference(self, kind: type) -> Schema:
        if kind.__name__ not in self.named:
            self.named[kind.__name__] = {}  # A type may refer to itself.
            self.named[kind.__name__] = {**self._record(kind), "description": inspect.getdoc(kind) or ""}
        return reference(kind.__name__)

    def _record(self, kind: Any) -> Schema:
        if kind is PolicyDocument:
            return _policy()
        if kind is EffectivePolicy:
            return _effective()
        if dataclasses.is_dataclass(kind):
            hints = get_type_hints(kind)
            names = [field.name for field in dataclasses.fields(kind)]
            return closed_object({name: self.of(hints[name]) for name in names}, names)
        fields = msgspec.structs.fields(kind)
        if kind.__struct_config__.array_like:
            return {"type": "array", "items": _any_of([self.of(field.type) for field in fields])}
        return closed_object(
            {field.encode_name: self.of(field.type) for field in fields},
            [field.encode_name for field in fields if field.default is not msgspec.UNSET],
        )


def reference(name: str) -> Schema:
    """A reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def closed_object(properties: Mapping[str, Schema], required: Iterable[str]) -> Schema:
    """An object of these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": sorted(required),
        "additionalProperties": False,
    }


def _any_of(schemas: Sequence[Schema]) -> Schema:
    different = [item for index, item in enumerate(schemas) if item not in schemas[:index]]
    return different[0] if len(different) == 1 else {"anyOf": different}


def _policy() -> Schema:
    whole: Schema = {"version": {"type": "integer", "enum": [VERSION]}}
    return closed_object(whole | _by_section({item: _field(item) for item in FIELDS}, needed=False), [])


def _effective() -> Schema:
    origin = {"type": "string", "enum": [level.value for level in Level]}
    values = {
        item: closed_object({"value": _effective_field(item), "from": origin}, ["value", "from"]) for item in FIELDS
    }
    properties = _by_section(values, needed=True) | {"truncates": _PLAIN[bool]}
    return closed_object(properties, properties)


def _by_section(fields: Mapping[Field, Schema], *, needed: bool) -> dict[str, Schema]:
    """The fields of the document as properties; each section is an object."""
    found: dict[str, Schema] = {}
    for item, schema in fields.items():
        if not item.section:
            found[item.name] = schema
            continue
        section = found.setdefault(item.section, closed_object({}, []))
        section["properties"][item.name] = schema
        section["required"] = sorted(section["properties"]) if needed else []
    return found


def _effective_field(item: Field) -> Schema:
    """As ``_field``. A time that no level sets is null."""
    schema = _field(item)
    return {**schema, "type": ["string", "null"]} if item.kind is Kind.TIME else schema


def _field(item: Field) -> Schema:
    """The schema of a field of the policy document."""
    if item.choices is not None:
        return {"type": "string", "enum": [choice.value for choice in item.choices]}
    if item.kind is Kind.TIME:
        return {"type": "string", "format": "date-time"}
    kind = "integer" if item.kind in (Kind.BYTES, Kind.EVENTS) else "number"
    return {"type": [kind, "null"] if item.null else kind, "minimum": 0}
