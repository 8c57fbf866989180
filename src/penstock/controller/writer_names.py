"""Writers' names that were forgotten: eight bytes of each, so that a batch under one of them is refused.

A record of a batch costs some 250 bytes, and each new query has a new name. What must stay of a name that is silent for long
is that it was used. Source: docs/design/0006-controller.md, "What grows".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.codec.metadata import BatchRecord, ForgottenRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import CHUNK, Stored
from penstock.core.batch_memory import name_digest
from penstock.model.errors import WriterForgottenError
from penstock.model.names import StreamName
from penstock.ports.segment_service import TableEntry, TableRemoval

DAY_MS = 86_400_000
_NAMES_PER_STEP = CHUNK // 2
"""Each takes a removal, and at most one put, of what one change of the table may hold."""


async def check_remembered(ctx: Context, name: StreamName, writer: str) -> None:
    """For a writer without a record. Read the record first: a name is forgotten in the step that removes it.

    Raises: WriterForgottenError (the writer had a record; nobody knows which batches it has committed).
    """
    digest = name_digest(writer)
    found = await ctx.metadata.get(keys.forgotten_names(name, digest), ForgottenRecord)
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
    """Replace the records of these writers by digests of their names.

    A digest is durable before its record is removed, or in the same step. Cancelled or failed: some names are forgotten.
    Raises BadKeyVersionError, KeyNotFoundError: a writer has committed in between; its record stays.
    """
    for start in range(0, len(gone), _NAMES_PER_STEP):
        part = gone[start : start + _NAMES_PER_STEP]
        shards: dict[bytes, Stored[ForgottenRecord]] = {}
        digests: dict[bytes, dict[bytes, None]] = {}
        for digest in map(name_digest, part):
            key = keys.forgotten_names(name, digest)
            if key not in shards:
                shards[key] = found = await ctx.metadata.get(key, ForgottenRecord)
                digests[key] = dict.fromkeys(() if found.value is None else found.value.digests)
            digests[key][digest] = None
        puts = [shards[key].put(ForgottenRecord(digests=tuple(sorted(digests[key])))) for key in shards]
        removals = [TableRemoval(key=entries[writer].key, version=entries[writer].version) for writer in part]
        await ctx.metadata.change(puts, removals)
