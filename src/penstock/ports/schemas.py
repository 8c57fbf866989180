"""A schema registry: gives each schema a number, and refuses schemas that do not fit the earlier ones of a subject.

Calls block: an event loop makes them in a thread. An implementation may be used by several threads at once.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from penstock.model.values.dataclass import dataclass


class SchemaKind(Enum):
    """The language of a schema; the values are those of Confluent's interface."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReference:
    """A schema that another one imports: its name in the importing text, and where the registry has it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The text of a schema and what it imports."""

    kind: SchemaKind
    text: str
    references: tuple[SchemaReference, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema as a version of a subject. ``id``: its number in the whole registry, which events carry."""

    id: int
    subject: str
    version: int
    schema: Schema


class SchemaRegistry(Protocol):
    """Schemas by number and by subject.

    Laws: a number names one schema forever, so callers may cache it. Registering a schema again returns its number. A
    refused call changes nothing. Each call raises SchemaRegistryUnavailableError if the registry gives no answer, and
    SchemaRegistryRefusedError if it refuses the caller.
    """

    def schema(self, schema_id: int) -> Schema:
        """The schema of a number. Raises SchemaNotFoundError."""
        ...

    def register(self, subject: str, schema: Schema) -> int:
        """Add a version to a subject, unless it has this schema already, and return the schema's number.

        Raises IncompatibleSchemaError (it does not fit the earlier versions), InvalidArgumentError (no schema)."""
        ...

    def find(self, subject: str, schema: Schema) -> RegisteredSchema:
        """The version of the subject that has this schema. Raises SchemaNotFoundError."""
        ...

    def latest(self, subject: str) -> RegisteredSchema:
        """The newest version of the subject. Raises SchemaNotFoundError."""
        ...
