"""A serializer for Avro. Needs the extra ``avro``."""

from __future__ import annotations

import json
import struct
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
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


class AvroSerializer(Serializer[T], Generic[T]):
    """Avro's binary form of one schema.

    Values are dictionaries, or with ``kind`` objects of that type: a ``msgspec.Struct``, a dataclass or a ``TypedDict``.
    With a ``registry``, the schema is registered under ``subject`` and each event begins with its number, in the header
    of ``style``. An event of another schema is read by that schema and resolved to this one, as Avro defines it.
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

        Raises MissingExtraError (no fastavro), InvalidArgumentError (not an Avro schema).
        """
        try:
            import fastavro
        except ImportError as error:
            raise missing_extra("fastavro", "avro") from error
        self._avro = fastavro
        self._kind = kind
        self._schema, text = self._parsed_own(schema)
        self._schemas: RegisteredSchemas[Any] | None = None
        if registry is not None:
            own = Schema(kind=SchemaKind.AVRO, text=text)
            self._schemas = RegisteredSchemas(
                registry, subject, style=style, register=register, own=lambda _: own, parse=self._parsed
            )

    def _parsed_own(self, schema: str | Mapping[str, Any]) -> tuple[Any, str]:
        try:
            plain: Any = json.loads(schema) if isinstance(schema, str) else schema
            return self._avro.parse_schema(plain), json.dumps(plain)
        except (ValueError, TypeError, KeyError, self._avro.schema.SchemaParseException) as error:
            raise InvalidArgumentError("schema is not a valid Avro schema", cause=repr(error)[:200]) from error

    def _parsed(self, schema: Schema) -> Any:
        if schema.kind is not SchemaKind.AVRO:
            raise DecodeError("event has the id of a schema that is not an Avro schema", kind=schema.kind.value)
        if schema.references:
            raise DecodeError(
                "event names a schema of Avro with references, which are not supported",
                references=", ".join(item.name for item in schema.references),
            )
        try:
            return self._avro.parse_schema(json.loads(schema.text))
        except (ValueError, TypeError, KeyError, self._avro.schema.SchemaParseException) as error:
            raise DecodeError("event has the id of a schema that cannot be parsed", cause=repr(error)[:200]) from error

    def encode(self, value: T) -> bytes:
        out = BytesIO()
        try:
            plain: Any = value if self._kind is None else msgspec.to_builtins(value, builtin_types=_BUILTIN)
            self._avro.schemaless_writer(out, self._schema, plain, strict=True)
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError, EOFError) as error:
            raise InvalidArgumentError("value does not fit the schema", cause=repr(error)[:200]) from error
        if self._schemas is None:
            return out.getvalue()
        return encode_header(self._schemas.style, self._schemas.own_id()) + out.getvalue()

    def decode(self, data: bytes) -> T:
        at, writer = 0, self._schema
        if self._schemas is not None:
            schema_id, at = decode_header(self._schemas.style, data)
            try:
                writer = self._schemas.get(schema_id)
            except SchemaNotFoundError as error:
                raise DecodeError(
                    "event has the id of a schema that the registry does not have", id=schema_id
                ) from error
        source = BytesIO(data)
        source.seek(at)
        try:
            found: Any = self._avro.schemaless_reader(source, writer, self._schema)
            if source.tell() != len(data):
                raise ValueError(f"{len(data) - source.tell()} bytes are left over")
            value: T = found if self._kind is None else msgspec.convert(found, self._kind, builtin_types=_BUILTIN)
            return value
        except (*_DECODING, self._avro.read.SchemaResolutionError) as error:
            raise DecodeError("event does not fit the schema", size_bytes=len(data), cause=repr(error)[:200]) from error

    def needs_lookup(self, data: bytes | None) -> bool:
        if self._schemas is None:
            return False
        if data is None:
            return not self._schemas.has_own_id
        try:
            return not self._schemas.is_known(decode_header(self._schemas.style, data)[0])
        except DecodeError:
            return False
