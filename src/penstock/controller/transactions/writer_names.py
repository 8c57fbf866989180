"""Digests of forgotten writer names, eight bytes each, so that a batch under such a name is refused.

A record of a batch costs some 250 bytes, and each new query has a new name. For a name that was not used for a long
time, the store only needs to know that it was used. Source: docs/design/0038-what-grows.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.codec.control.streams import BatchRecord, ForgottenRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import CHUNK, Stored, stored
from penstock.core.streams.batch_memory import name_digest
from penstock.model.errors import WriterForgottenError
from penstock.model.names import StreamName
from penstock.ports.data.tables import KEY_ABSENT, TableEntry, TableRemoval

DAY_MS = 86_400_000
_NAMES_PER_STEP = CHUNK // 2
"""Each name takes one removal and at most one put, and the size of a table change is limited."""


async def check_remembered(ctx: Context, name: StreamName, writer: str) -> None:
    """For a writer without a record. Read the record first: a name is forgotten in the step that removes it.

    Raises: WriterForgottenError (the writer had a record, or may have had one; nobody knows which batches it has committed).
    """
    digest = name_digest(writer)
    found = await _shard(ctx, keys.forgotten_names(name, digest))
    if found is None:
        raise WriterForgottenError(
            "writer has no record, and the record of forgotten names that may hold it cannot be read, so this batch may be "
            "written already; the rows were not written; to write them, use another writer_id or txnAppId",
            stream=str(name),
            writer=writer,
        )
    if found.value is not None and digest in found.value.digests:
        raise WriterForgottenError(
            "writer was silent for more than 100 days and its last batch was forgotten, so this batch may be written "
            "already; the rows were not written; to write them, use another writer_id or txnAppId",
            stream=str(name),
            writer=writer,
        )


def dated(ctx: Context, record: BatchRecord, before: BatchRecord | None) -> BatchRecord:
    """The record with the time of its use. If nothing else has changed, that time is renewed once a day."""
    now_ms = ctx.retention_clock.now_ms()
    at_ms = None if before is None else before.at_ms
    if before is not None and at_ms is not None and replace(record, at_ms=at_ms) == before and now_ms < at_ms + DAY_MS:
        return before
    return replace(record, at_ms=now_ms)


async def forget_names(ctx: Context, name: StreamName, gone: Sequence[str], entries: Mapping[str, TableEntry]) -> None:
    """Replace the records of these writers by digests of their names. Those whose digests cannot be read keep their records.

    A digest is durable before its record is removed, or in the same step. Cancelled or failed: some names are forgotten.
    Raises BadKeyVersionError, KeyNotFoundError: a writer has committed in between; its record stays.
    """
    for start in range(0, len(gone), _NAMES_PER_STEP):
        part = gone[start : start + _NAMES_PER_STEP]
        shards: dict[bytes, Stored[ForgottenRecord] | None] = {}
        digests: dict[bytes, dict[bytes, None]] = {}
        removals: list[TableRemoval] = []
        for writer in part:
            digest = name_digest(writer)
            key = keys.forgotten_names(name, digest)
            if key not in shards:
                shards[key] = await _shard(ctx, key)
            found = shards[key]
            if found is None:
                continue
            known = () if found.value is None else found.value.digests
            digests.setdefault(key, dict.fromkeys(known))[digest] = None
            removals.append(TableRemoval(key=entries[writer].key, version=entries[writer].version))
        puts = [
            found.put(ForgottenRecord(digests=tuple(sorted(digests[key]))))
            for key, found in shards.items()
            if found is not None
        ]
        if removals:
            await ctx.metadata.change(puts, removals)


async def _shard(ctx: Context, key: bytes) -> Stored[ForgottenRecord] | None:
    """Digests of the names that were forgotten under this key. None: they cannot be read, which is reported once."""
    (entry,) = await ctx.metadata.entries([key])
    if entry.version != KEY_ABSENT and ctx.set_aside.read(entry, ForgottenRecord) is None:
        return None
    return stored(entry, ForgottenRecord)
