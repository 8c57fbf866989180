"""Laws of ``ports.schemas.SchemaRegistry``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from penstock.model.errors import IncompatibleSchemaError, SchemaNotFoundError
from penstock.ports.schemas import Schema, SchemaKind, SchemaRegistry
from penstock.testing.conformance import check

_ABSENT_ID = 2_000_000_000  # no registry gives this number


def order_schema(kind: str, *, name: str = "Order") -> Schema:
    """A record of Avro with one field of this type."""
    text = json.dumps({"type": "record", "name": name, "fields": [{"name": "number", "type": kind}]})
    return Schema(kind=SchemaKind.AVRO, text=text)


class SchemaRegistryLaws:
    """Subclass and implement ``open`` and ``subject``. The registry refuses schemas that cannot read what the earlier ones
    of their subject wrote. Calls run in threads, since they block."""

    def open(self) -> SchemaRegistry:
        """A registry; each call may return the same one."""
        raise NotImplementedError

    def subject(self) -> str:
        """A subject that has no schema yet."""
        raise NotImplementedError

    async def law_a_schema_has_one_number_forever(self) -> None:
        registry, subject, other = self.open(), self.subject(), self.subject()
        schema = order_schema("long")
        first = await asyncio.to_thread(registry.register, subject, schema)
        for name in (subject, other):
            again = await asyncio.to_thread(registry.register, name, schema)
            check(again == first, "registering again returns the number", first=first, again=again)
        check(same(await asyncio.to_thread(registry.schema, first), schema), "the number gives the schema")

    async def law_found_and_latest_versions_count_from_one(self) -> None:
        registry, subject = self.open(), self.subject()
        old, new = order_schema("int"), order_schema("long")
        ids = [await asyncio.to_thread(registry.register, subject, one) for one in (old, new)]
        check(ids[0] != ids[1], "two schemas have two numbers")
        for version, schema in enumerate((old, new), start=1):
            found = await asyncio.to_thread(registry.find, subject, schema)
            check((found.id, found.version) == (ids[version - 1], version), "a schema is found", found=found)
        latest = await asyncio.to_thread(registry.latest, subject)
        check(
            (latest.id, latest.version, latest.subject) == (ids[1], 2, subject), "the latest is the last", found=latest
        )
        check(same(latest.schema, new), "the latest has its schema")

    async def law_a_schema_that_does_not_fit_changes_nothing(self) -> None:
        registry, subject = self.open(), self.subject()
        first = await asyncio.to_thread(registry.register, subject, order_schema("string"))
        await self._fails(IncompatibleSchemaError, lambda: registry.register(subject, order_schema("long")))
        check((await asyncio.to_thread(registry.latest, subject)).id == first, "the subject is unchanged")
        await self._fails(SchemaNotFoundError, lambda: registry.find(subject, order_schema("long")))

    async def law_what_is_absent_is_not_found(self) -> None:
        registry, subject = self.open(), self.subject()
        await self._fails(SchemaNotFoundError, lambda: registry.latest(subject))
        await self._fails(SchemaNotFoundError, lambda: registry.find(subject, order_schema("long")))
        await self._fails(SchemaNotFoundError, lambda: registry.schema(_ABSENT_ID))

    async def _fails(self, kind: type[Exception], call: Callable[[], object]) -> None:
        try:
            found = await asyncio.to_thread(call)
        except kind:
            return
        check(False, f"the call raises {kind.__name__}", found=found)


def same(found: Schema, given: Schema) -> bool:
    """Whether two schemas of JSON are equal, however they are written."""
    return found.kind is given.kind and json.loads(found.text) == json.loads(given.text)
