"""A serializer for Protocol Buffers."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.message import DecodeError as ProtobufDecodeError
from google.protobuf.message import EncodeError, Message

from penstock.client.serializing.registered import RegisteredSchemas
from penstock.client.serializing.serializer import Serializer
from penstock.codec.schema_ids import IdStyle, decode_header, decode_indexes, encode_header
from penstock.model.errors import DecodeError, InvalidArgumentError
from penstock.ports.schemas import Schema, SchemaKind, SchemaReference, SchemaRegistry

M = TypeVar("M", bound=Message)

_KNOWN = "google/protobuf/"
"""Files that every registry and every language has."""


class ProtobufSerializer(Serializer[M]):
    """Messages of one generated class.

    With a ``registry``, the ``.proto`` file of the class is registered under ``subject``, and the files that it imports
    under their own names. Each event begins with the number of the schema, in the header of ``style``; Confluent's also
    names the place of the message in its file. An event of another place is refused.
    """

    def __init__(
        self,
        message: type[M],
        *,
        registry: SchemaRegistry | None = None,
        subject: str = "",
        style: IdStyle = IdStyle.CONFLUENT,
        register: bool = True,
    ) -> None:
        """``register``: add the schema to the subject if it is not there. Raises InvalidArgumentError: no such class."""
        if not (isinstance(message, type) and issubclass(message, Message)):
            raise InvalidArgumentError("not the class of a protobuf message", type=repr(message)[:80])
        self._message = message
        descriptor: Descriptor = message.DESCRIPTOR
        self._indexes = _place_of(descriptor)
        self._schemas: RegisteredSchemas[None] | None = None
        if registry is not None:
            self._schemas = RegisteredSchemas(
                registry,
                subject,
                style=style,
                register=register,
                own=lambda asked: _schema_of(descriptor.file, asked, register=register),
                parse=lambda _: None,
            )

    def encode(self, value: M) -> bytes:
        if not isinstance(value, self._message):
            raise InvalidArgumentError(
                "value is not a message of the class", wanted=self._message.__name__, type=type(value).__name__
            )
        try:
            data: bytes = value.SerializeToString()
        except (EncodeError, ValueError) as error:
            raise InvalidArgumentError("message cannot be encoded", cause=str(error)[:200]) from error
        if self._schemas is None:
            return data
        return encode_header(self._schemas.style, self._schemas.own_id(), self._indexes) + data

    def decode(self, data: bytes) -> M:
        at = 0
        if self._schemas is not None:
            schema_id, at = decode_header(self._schemas.style, data)
            if self._schemas.style is IdStyle.CONFLUENT:
                place, at = decode_indexes(data, at)
                if place != self._indexes:
                    raise DecodeError(
                        "event holds another message of its protobuf file",
                        id=schema_id,
                        place=list(place),
                        wanted=list(self._indexes),
                    )
        found: M = self._message()
        try:
            found.ParseFromString(data[at:])
        except (ProtobufDecodeError, ValueError, RecursionError) as error:
            raise DecodeError(
                "event is not a message of the class", wanted=self._message.__name__, cause=str(error)[:200]
            ) from error
        return found

    def needs_lookup(self, data: bytes | None) -> bool:
        return data is None and self._schemas is not None and not self._schemas.has_own_id


def _place_of(descriptor: Descriptor) -> tuple[int, ...]:
    """The index of the message in its file, after those of the messages around it."""
    above = descriptor.containing_type
    if above is not None:
        return (*_place_of(above), _index(above.nested_types, descriptor))
    file = FileDescriptorProto()
    descriptor.file.CopyToProto(file)
    return (_index(file.message_type, descriptor),)


def _index(messages: Iterable[Any], wanted: Descriptor) -> int:
    return [message.name for message in messages].index(wanted.name)


def _schema_of(file: FileDescriptor, registry: SchemaRegistry, *, register: bool) -> Schema:
    """The file's descriptor in base64, which registries take as well as text. Imports come first: nothing refers to a
    schema that is not registered."""
    references = []
    for imported in file.dependencies:
        if imported.name.startswith(_KNOWN):
            continue
        schema = _schema_of(imported, registry, register=register)
        if register:
            registry.register(imported.name, schema)
        found = registry.find(imported.name, schema)
        references.append(SchemaReference(name=imported.name, subject=imported.name, version=found.version))
    plain = FileDescriptorProto()
    file.CopyToProto(plain)
    text = base64.b64encode(plain.SerializeToString(deterministic=True)).decode()
    return Schema(kind=SchemaKind.PROTOBUF, text=text, references=tuple(references))
