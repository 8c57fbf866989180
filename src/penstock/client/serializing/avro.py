"""A serializer for Avro. Needs the extra ``avro``."""

from __future__ import annotations

import json
import struct
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from itertools import chain
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload
from uuid import UUID

import msgspec

from penstock.client.serializing.registered import RegisteredSchemas
from penstock.client.serializing.serializer import Serializer
from penstock.codec.schema_ids import IdStyle, decode_header, encode_header
from penstock.model.errors import DecodeError, InvalidArgumentError, SchemaNotFoundError, missing_extra
from penstock.ports.schemas import Schema, SchemaKind, SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")

_BUILTIN = (bytes, bytearray, datetime, date, time, Decimal, UUID)
"""Values that Avro stores as bytes or logical types. msgspec would turn them into text."""
_DECODING = (ValueError, TypeError, LookupError, EOFError, ArithmeticError, RecursionError, MemoryError, struct.error)
"""What fastavro raises for bytes of another schema."""
_SCHEMA_ERRORS = (ValueError, TypeError, KeyError, RecursionError)
"""What reading a schema raises besides the error of fastavro."""
_LEVELS_MAX = 100
"""How deep values of a schema that contains itself are nested. The compiled fastavro ends the process at some thousands."""
_SMALL_BYTES = 300
"""An event that is no larger cannot be nested deeper than its bytes."""


class AvroSerializer(Serializer[T], Generic[T]):
    """Avro's binary form of one schema.

    Values are dictionaries, or with ``kind`` objects of that type: a ``msgspec.Struct``, a dataclass or a ``TypedDict``.
    With a ``registry``, the schema is registered under ``subject`` and each event begins with its number, in the header
    of ``style``. An event of another schema is read by that schema and resolved to this one, as Avro defines it.
    Values of a schema that contains itself are nested at most 100 levels deep.
    """

    @overload
    def __init__(
        self: AvroSerializer[dict[str, Any]],
        schema: str | Mapping[str, Any],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = "",
        style: IdStyle = IdStyle.CONFLUENT,
        register: bool = True,
    ) -> None: ...

    @overload
    def __init__(
        self,
        schema: str | Mapping[str, Any],
        kind: type[T],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = "",
        style: IdStyle = IdStyle.CONFLUENT,
        register: bool = True,
    ) -> None: ...

    def __init__(
        self,
        schema: str | Mapping[str, Any],
        kind: type[Any] | None = None,
        *,
        registry: SchemaRegistry | None = None,
        subject: str = "",
        style: IdStyle = IdStyle.CONFLUENT,
        register: bool = True,
    ) -> None:
        """``schema``: Avro's JSON, as text or as parsed. ``register``: add it to the subject if it is not there.

        Raises MissingExtraError (no fastavro), InvalidArgumentError (not an Avro schema, or one with an array whose items
        take no bytes, as an array of nulls).
        """
        try:
            import fastavro
        except ImportError as error:
            raise missing_extra("fastavro", "avro") from error
        self._avro = fastavro
        self._kind = kind
        self._schema, text = self._parsed_own(schema)
        self._nests = _contains_itself(self._schema)
        self._schemas: RegisteredSchemas[Any] | None = None
        if registry is not None:
            own = Schema(kind=SchemaKind.AVRO, text=text)
            self._schemas = RegisteredSchemas(
                registry, subject, style=style, register=register, own=lambda _: own, parse=self._parsed
            )

    def _parsed_own(self, schema: str | Mapping[str, Any]) -> tuple[Any, str]:
        try:
            plain: Any = json.loads(schema) if isinstance(schema, str) else schema
            parsed = self._avro.parse_schema(plain)
            _check_items(parsed, {})
            return parsed, json.dumps(plain)
        except (*_SCHEMA_ERRORS, self._avro.schema.SchemaParseException) as error:
            raise InvalidArgumentError("schema is not a valid Avro schema", cause=repr(error)[:200]) from error

    def _parsed(self, schema: Schema) -> tuple[Any, bool]:
        """The schema of an event, and whether it contains itself."""
        if schema.kind is not SchemaKind.AVRO:
            raise DecodeError("event has the id of a schema that is not an Avro schema", kind=schema.kind.value)
        if schema.references:
            raise DecodeError(
                "event names a schema of Avro with references, which are not supported",
                references=", ".join(item.name for item in schema.references),
            )
        try:
            parsed = self._avro.parse_schema(json.loads(schema.text))
            _check_items(parsed, {})
            return parsed, _contains_itself(parsed)
        except (*_SCHEMA_ERRORS, self._avro.schema.SchemaParseException) as error:
            raise DecodeError("event has the id of a schema that cannot be parsed", cause=repr(error)[:200]) from error

    def encode(self, value: T) -> bytes:
        out = BytesIO()
        try:
            plain: Any = value if self._kind is None else msgspec.to_builtins(value, builtin_types=_BUILTIN)
            if self._nests and _is_deep(plain):
                raise ValueError(f"it is nested more than {_LEVELS_MAX} levels deep")
            self._avro.schemaless_writer(out, self._schema, plain, strict=True)
        except (*_DECODING, AttributeError) as error:
            raise InvalidArgumentError("value does not fit the schema", cause=repr(error)[:200]) from error
        if self._schemas is None:
            return out.getvalue()
        return encode_header(self._schemas.style, self._schemas.own_id()) + out.getvalue()

    def decode(self, data: bytes) -> T:
        at, writer, nests = 0, self._schema, self._nests
        if self._schemas is not None:
            schema_id, at = decode_header(self._schemas.style, data)
            try:
                writer, nests = self._schemas.get(schema_id)
            except SchemaNotFoundError as error:
                raise DecodeError(
                    "event has the id of a schema that the registry does not have", id=schema_id
                ) from error
        source = BytesIO(data)
        source.seek(at)
        try:
            found: Any = self._reader(nests and len(data) > _SMALL_BYTES)(source, writer, self._schema)
            if source.tell() != len(data):
                raise ValueError(f"{len(data) - source.tell()} bytes are left over")
            value: T = found if self._kind is None else msgspec.convert(found, self._kind, builtin_types=_BUILTIN)
            return value
        except (*_DECODING, self._avro.read.SchemaResolutionError) as error:
            raise DecodeError("event does not fit the schema", size_bytes=len(data), cause=repr(error)[:200]) from error

    def _reader(self, may_be_deep: bool) -> Any:
        """fastavro's compiled reader does not limit how deep it calls itself; its reader in Python does."""
        if not may_be_deep:
            return self._avro.schemaless_reader
        from fastavro import _read_py

        return _read_py.schemaless_reader

    def needs_lookup(self, data: bytes | None) -> bool:
        if self._schemas is None:
            return False
        if data is None:
            return not self._schemas.has_own_id
        try:
            return not self._schemas.is_known(decode_header(self._schemas.style, data)[0])
        except DecodeError:
            return False


def _contains_itself(schema: Any, within: frozenset[str] = frozenset()) -> bool:
    """Whether a record of the parsed schema has itself among its parts: only then an event limits how deep it is nested."""
    if isinstance(schema, str):
        return schema in within
    if isinstance(schema, list):
        return any(_contains_itself(item, within) for item in schema)
    kind = schema["type"]
    match kind:
        case "record" | "error":
            inner = within | {schema["name"]}
            return any(_contains_itself(field["type"], inner) for field in schema["fields"])
        case "array":
            return _contains_itself(schema["items"], within)
        case "map":
            return _contains_itself(schema["values"], within)
    return _contains_itself(kind, within)


def _check_items(schema: Any, sizeless: dict[str, bool]) -> bool:
    """Whether a value of the parsed schema takes no bytes. Raises ValueError for an array of such items: an event of six
    bytes could hold two billion of them, and fill the memory.

    ``sizeless``: the same of the named types so far.
    """
    if isinstance(schema, str):
        # A record within itself is not decided yet. It takes bytes: else no value of it would end.
        return schema == "null" or sizeless.get(schema, False)
    if isinstance(schema, list):
        for item in schema:
            _check_items(item, sizeless)
        return False
    kind = schema["type"]
    match kind:
        case "record" | "error":
            fields = [_check_items(field["type"], sizeless) for field in schema["fields"]]
            sizeless[schema["name"]] = all(fields)
            return all(fields)
        case "array":
            if _check_items(schema["items"], sizeless):
                raise ValueError("an array has items that take no bytes")
            return False
        case "map":
            _check_items(schema["values"], sizeless)  # each has a key
            return False
        case "fixed":
            sizeless[schema["name"]] = schema["size"] == 0
            return bool(schema["size"] == 0)
        case "enum":
            return False
    return _check_items(kind, sizeless)


def _is_deep(value: object) -> bool:
    """Whether the value is nested more than ``_LEVELS_MAX`` levels deep, or contains itself."""
    level: list[Any] = [[value]]
    for _ in range(_LEVELS_MAX):
        parts = chain.from_iterable(item.values() if isinstance(item, dict) else item for item in level if item)
        level = list({id(part): part for part in parts if isinstance(part, dict | list | tuple)}.values())
        if not level:
            return False
    return True
