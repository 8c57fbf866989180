"""Serializers for bytes, text and JSON."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec

from penstock.client.options import as_bytes
from penstock.client.serializing.registered import RegisteredSchemas
from penstock.client.serializing.serializer import Serializer
from penstock.codec.schema_ids import IdStyle, decode_header, encode_header
from penstock.model.errors import DecodeError, InvalidArgumentError
from penstock.ports.schemas import Schema, SchemaKind, SchemaRegistry

T = TypeVar("T")

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
"""What msgspec writes. Registries look for it."""


class BytesSerializer(Serializer[bytes]):
    """Events as they are."""

    def encode(self, value: bytes) -> bytes:
        return as_bytes(value, "value")

    def decode(self, data: bytes) -> bytes:
        return data


class TextSerializer(Serializer[str]):
    """Text in UTF-8."""

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise InvalidArgumentError("value must be text", type=type(value).__name__)
        return as_bytes(value, "value")

    def decode(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise DecodeError("event is not text in UTF-8", size_bytes=len(data), position=error.start) from error


class JsonSerializer(Serializer[T]):
    """JSON of one type: a ``msgspec.Struct``, a dataclass, a ``TypedDict``, ``dict``, ``list[int]`` and so on.

    A decoded event has the fields and types of ``kind``, or raises DecodeError. With a ``registry``, the JSON Schema of
    ``kind`` is registered under ``subject``, and each event begins with its number, in the header of ``style``.
    """

    def __init__(
        self,
        kind: type[T],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = "",
        style: IdStyle = IdStyle.CONFLUENT,
        register: bool = True,
    ) -> None:
        """``register``: add the schema to the subject if it is not there. Raises InvalidArgumentError: no JSON type."""
        try:
            self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)
            text = json.dumps({"$schema": _DIALECT, **msgspec.json.schema(kind)}, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(
                "this type cannot be written as JSON", kind=repr(kind)[:80], cause=str(error)
            ) from error
        self._encoder = msgspec.json.Encoder()
        self._kind = kind
        self._schemas: RegisteredSchemas[None] | None = None
        if registry is not None:
            schema = Schema(kind=SchemaKind.JSON, text=text)
            self._schemas = RegisteredSchemas(
                registry, subject, style=style, register=register, own=lambda _: schema, parse=lambda _: None
            )

    def encode(self, value: T) -> bytes:
        try:
            data = self._encoder.encode(value)
            self._decoder.decode(data)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidArgumentError(
                "value does not fit the type", kind=repr(self._kind)[:80], cause=str(error)
            ) from error
        if self._schemas is None:
            return data
        return encode_header(self._schemas.style, self._schemas.own_id()) + data

    def decode(self, data: bytes) -> T:
        body: Any = data
        if self._schemas is not None:
            body = memoryview(data)[decode_header(self._schemas.style, data)[1] :]
        try:
            return self._decoder.decode(body)
        except (ValueError, RecursionError) as error:
            raise DecodeError(
                "event is not JSON of the type", kind=repr(self._kind)[:80], size_bytes=len(data), cause=str(error)
            ) from error

    def needs_lookup(self, data: bytes | None) -> bool:
        return data is None and self._schemas is not None and not self._schemas.has_own_id
