"""What serializers with a schema registry share: the number of their own schema, and the schemas of others by number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from penstock.codec.schema_ids import IdStyle
from penstock.model.errors import InvalidArgumentError
from penstock.ports.schemas import Schema, SchemaRegistry

S = TypeVar("S")

_KEPT_MAX = 1024  # schemas of other writers, the least recently used goes first


class RegisteredSchemas(Generic[S]):
    """The schemas that one serializer needs. Each is asked for once; later events need no registry."""

    def __init__(
        self,
        registry: SchemaRegistry,
        subject: str,
        *,
        style: IdStyle,
        register: bool,
        own: Callable[[SchemaRegistry], Schema],
        parse: Callable[[Schema], S],
    ) -> None:
        """``own`` makes the schema that is registered, ``parse`` reads one of the registry. ``register``: add ours to the
        subject if it is not there; otherwise it must be there."""
        if not subject:
            raise InvalidArgumentError("a serializer with a registry needs the subject of its schema")
        self.style = style
        self.subject = subject
        self._registry = registry
        self._register = register
        self._own = own
        self._parse = parse
        self._own_id: int | None = None
        self._known: OrderedDict[int, S] = OrderedDict()

    @property
    def has_own_id(self) -> bool:
        """Whether the number of our own schema is known."""
        return self._own_id is not None

    def own_id(self) -> int:
        """The number of our own schema. Raises as ``SchemaRegistry.register`` and ``find``; a later call asks again."""
        if self._own_id is None:
            schema = self._own(self._registry)
            if self._register:
                self._own_id = self._registry.register(self.subject, schema)
            else:
                self._own_id = self._registry.find(self.subject, schema).id
        return self._own_id

    def is_known(self, schema_id: int) -> bool:
        """Whether ``get`` would answer without the registry."""
        return schema_id in self._known

    def get(self, schema_id: int) -> S:
        """The parsed schema of a number. Raises as ``SchemaRegistry.schema``."""
        found = self._known.get(schema_id)
        if found is None:
            found = self._parse(self._registry.schema(schema_id))
            self._known[schema_id] = found
            if len(self._known) > _KEPT_MAX:
                self._known.popitem(last=False)
        return found
