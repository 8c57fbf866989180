"""Choose the first segment number of a new stream: from a record of the name, but never below one floor for all names.

No two segments of a store ever have the same name. Otherwise bytes and writers' numbers of a deleted stream could count as
those of its successor. A record for each deleted name would grow forever. So the floor replaces the oldest records: none of
those streams ever had a segment with that number or a higher one.
Source: docs/design/0038-what-grows.md.
"""

from __future__ import annotations

import logging

from penstock.codec.control.streams import CounterRecord
from penstock.controller import keys
from penstock.controller.context import Context
from penstock.controller.metadata import CHUNK
from penstock.model.errors import BadKeyVersionError, KeyNotFoundError
from penstock.ports.data.tables import KEY_ABSENT, TableCheck, TableEntry, TableRemoval

log = logging.getLogger(__name__)

NUMBERS_KEPT = 1000
"""Number of names of deleted streams with their own record: enough to keep numbers of reused names low."""

FORGET_EVERY = 100
"""Number of deletions between two counts of the records."""


def first_number(own: TableEntry, floor: TableEntry) -> tuple[int, list[TableCheck]]:
    """Return the first number of a new stream, and the conditions of the step that creates the stream.

    Raises: CorruptDataError, VersionTooNewError if the record that decides cannot be read.
    """
    # The record of a name can be below the floor of a restored store: the original may have used the numbers between.
    used = [own, floor]
    number = max((CounterRecord.decode(item.value).value for item in used if item.version != KEY_ABSENT), default=0)
    return number, [TableCheck(key=item.key, version=item.version) for item in used]


async def forget_numbers_sometimes(ctx: Context) -> None:
    """Called after each deletion of a stream."""
    ctx.streams.deletions += 1
    if ctx.streams.deletions % FORGET_EVERY == 1:
        await forget_numbers(ctx)


async def forget_numbers(ctx: Context) -> int:
    """Raise the floor to the oldest records beyond ``NUMBERS_KEPT`` and remove them; returns how many.

    The floor is durable before the records are removed or in the same step. So after any crash, new numbers are unused.
    """
    entries = [entry async for entry in ctx.metadata.scan_all(keys.NUMBERS)]
    # Versions grow with every change of the table: the lowest belong to the names that were deleted first.
    entries.sort(key=lambda entry: entry.version)
    oldest = entries[: max(0, len(entries) - NUMBERS_KEPT)]
    for start in range(0, len(oldest), CHUNK):
        part = oldest[start : start + CHUNK]
        read = [(entry, record) for entry in part if (record := ctx.set_aside.read(entry, CounterRecord)) is not None]
        floor = await ctx.metadata.get(keys.NUMBER_FLOOR, CounterRecord)
        values = [record.value for _, record in read]
        highest = max(values if floor.value is None else [*values, floor.value.value], default=0)
        removals = [TableRemoval(key=entry.key, version=entry.version) for entry, _ in read]
        try:
            await ctx.metadata.change([floor.put(CounterRecord(value=highest))], removals)
        except (BadKeyVersionError, KeyNotFoundError):
            # A stream of one of the names was created or deleted in between: the next call removes the rest.
            return start
    return len(oldest)
