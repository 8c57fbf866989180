"""A schema registry in memory, for tests and programs without one."""

from __future__ import annotations

from collections.abc import Callable

from penstock.model.errors import IncompatibleSchemaError, SchemaNotFoundError
from penstock.ports.schemas import RegisteredSchema, Schema

Fits = Callable[[Schema, Schema], bool]
"""Whether a new schema, the first argument, may follow an older one in its subject."""


class MemorySchemaRegistry:
    """A ``SchemaRegistry`` that forgets everything with the process. ``fits`` decides which schemas may follow each
    other; without it, every schema may."""

    def __init__(self, fits: Fits | None = None) -> None:
        self._fits = fits
        self._ids: dict[Schema, int] = {}
        self._schemas: dict[int, Schema] = {}
        self._subjects: dict[str, list[RegisteredSchema]] = {}

    def schema(self, schema_id: int) -> Schema:
        """See ``SchemaRegistry.schema``."""
        if schema_id not in self._schemas:
            raise SchemaNotFoundError("registry has no such schema", id=schema_id)
        return self._schemas[schema_id]

    def register(self, subject: str, schema: Schema) -> int:
        """See ``SchemaRegistry.register``."""
        versions = self._subjects.get(subject, [])
        for found in versions:
            if found.schema == schema:
                return found.id
        if versions and self._fits is not None and not self._fits(schema, versions[-1].schema):
            raise IncompatibleSchemaError(
                "schema does not fit the earlier ones of its subject", subject=subject, reason="refused by the rule"
            )
        number = self._ids.setdefault(schema, len(self._ids) + 1)
        self._schemas[number] = schema
        self._subjects[subject] = [
            *versions,
            RegisteredSchema(id=number, subject=subject, version=len(versions) + 1, schema=schema),
        ]
        return number

    def find(self, subject: str, schema: Schema) -> RegisteredSchema:
        """See ``SchemaRegistry.find``."""
        for found in self._subjects.get(subject, []):
            if found.schema == schema:
                return found
        raise SchemaNotFoundError("subject has no such schema", subject=subject)

    def latest(self, subject: str) -> RegisteredSchema:
        """See ``SchemaRegistry.latest``."""
        if subject not in self._subjects:
            raise SchemaNotFoundError("registry has no such subject", subject=subject)
        return self._subjects[subject][-1]
