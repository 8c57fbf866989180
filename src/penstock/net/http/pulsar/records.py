"""What the Pulsar facade itself records: tenants, namespaces and topics as created, bodies as sent.

One table of the store, one JSON object for each key, changed by compare-and-set.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from penstock.model.errors import (
    AlreadyExistsError,
    BadKeyVersionError,
    CorruptDataError,
    KeyNotFoundError,
)
from penstock.net.http.pulsar.bodies import AdminError
from penstock.net.http.pulsar.names import NamespaceName, TopicName
from penstock.ports.data.tables import KEY_ABSENT, TablePut, TableRemoval, Tables

TABLE = "_system/_tables/pulsar"
_TRIES_MAX = 32  # failed compare-and-sets in a row before the call is refused
_PAGE = 256  # entries of one scan

Record = dict[str, Any]


STARTED = b"started"
"""Exists once the tenant and namespace that every Pulsar has were created."""


def tenant_key(name: str) -> bytes:
    return f"tenant/{name}".encode()


def namespace_key(name: NamespaceName) -> bytes:
    return f"namespace/{name}".encode()


def topics_key(name: NamespaceName) -> bytes:
    """Prefix of the keys of all topics of the namespace."""
    return f"topic/{name}/".encode()


def topic_key(name: TopicName) -> bytes:
    return topics_key(name.namespace) + name.local.encode()


class Records:
    """The table."""

    def __init__(self, segments: Tables) -> None:
        self._segments = segments
        self._opened = False

    async def open(self) -> None:
        """Create the table if it is missing."""
        if not self._opened:
            with suppress(AlreadyExistsError):
                await self._segments.create_table(TABLE)
            self._opened = True

    async def get(self, key: bytes) -> Record | None:
        return (await self._entry(key))[0]

    async def _entry(self, key: bytes) -> tuple[Record | None, int]:
        await self.open()
        (entry,) = await self._segments.table_get(TABLE, [key])
        return (None if entry.version == KEY_ABSENT else _decode(entry.value, key)), entry.version

    async def create(self, key: bytes, record: Record) -> bool:
        """Write the record if it is absent. Returns whether it was."""
        await self.open()
        try:
            await self._segments.table_update(TABLE, [TablePut(key=key, value=_encode(record), version=KEY_ABSENT)])
        except BadKeyVersionError:
            return False
        return True

    async def change(self, key: bytes, change: Callable[[Record], Record]) -> Record:
        """Replace the record (``{}`` if absent) with the result of ``change``. Raises AdminError 409 if others keep
        changing it."""
        for _ in range(_TRIES_MAX):
            record, version = await self._entry(key)
            changed = change(record or {})
            if changed == record:
                return changed
            try:
                await self._segments.table_update(TABLE, [TablePut(key=key, value=_encode(changed), version=version)])
            except (BadKeyVersionError, KeyNotFoundError):
                continue
            return changed
        raise AdminError(409, "Concurrent modification")

    async def remove(self, key: bytes) -> None:
        await self.open()
        await self._segments.table_remove(TABLE, [TableRemoval(key=key)])

    async def under(self, prefix: bytes) -> list[tuple[str, Record]]:
        """All records with this key prefix, by the rest of the key, sorted."""
        await self.open()
        found: list[tuple[str, Record]] = []
        after: bytes | None = None
        while True:
            page = await self._segments.table_scan(
                TABLE, after=after, limit=_PAGE, first=prefix, last=prefix + b"\xff" * 8
            )
            # A key that is not text is returned with escapes: it must not hide the others.
            found.extend(
                (entry.key[len(prefix) :].decode("utf-8", "backslashreplace"), _decode(entry.value, entry.key))
                for entry in page
            )
            if not page:
                return found
            after = page[-1].key


def _encode(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":"), sort_keys=True).encode()


def _decode(value: bytes, key: bytes) -> Record:
    try:
        record = json.loads(value)
    except ValueError as error:
        raise CorruptDataError("record of the Pulsar facade is damaged", key=key.decode(errors="replace")) from error
    if not isinstance(record, dict):
        raise CorruptDataError("record of the Pulsar facade is damaged", key=key.decode(errors="replace"))
    return record
