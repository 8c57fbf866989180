"""Find objects of the catalogue that are missing from tier 2. Other checks read only the objects that are there."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.codec.store import catalogue as codec
from penstock.codec.store import rows as records
from penstock.model.damage import Damage, DamageKind
from penstock.model.errors import CorruptDataError
from penstock.ports.objects import Objects
from penstock.segmentstore.metadata import MetadataRows


async def missing_objects(rows: MetadataRows, container: int, objects: Objects) -> Sequence[Damage]:
    """What is missing from a container's catalogue: its snapshot, an object of the snapshot, or a later journal.

    A store that has just begun has no snapshot yet. Batches that still wait in the outbox are not missing: the next start
    writes them. Skips a container whose outbox cannot be read, which other checks report.
    Raises: OSError, UnavailableError.
    """
    found = await _look(rows, container, objects)
    # A running store replaces objects while they are listed. Only an object that two listings miss is missing.
    return [item for item in await _look(rows, container, objects) if item in found] if found else ()


async def _look(rows: MetadataRows, container: int, objects: Objects) -> Sequence[Damage]:
    # Read the rows first: what they name as written stays in tier 2 from then on, though perhaps in other objects.
    committed = rows.committed()
    try:
        row = await committed.get(records.prefix(records.TAG_CATALOGUE, container))
        sequence = 0 if row is None else records.decode_catalogue(row).sequence
        waiting = await committed.scan(records.range_of(records.prefix(records.TAG_OUTBOX, container)), limit=1)
    except CorruptDataError:
        return ()
    written = records.parse_number(waiting[0][0][-8:]) - 1 if waiting else sequence
    place = f"{codec.DIRECTORY}/{container:x}"
    listed = [codec.parse_object_name(text) for text in await objects.list(place)]
    names = [name for name in listed if name is not None and name.container == container]
    gap = codec.find_gap(names, written)
    if gap is None or (gap.snapshot is None and gap.batches is None and sequence <= 1):
        return ()
    why = "there is no snapshot of the container"
    if gap.snapshot is not None:
        place, why = str(gap.snapshot), "object of the catalogue is missing"
    elif gap.batches is not None:
        first, last = gap.batches
        place, why = (
            f"{place}/j-{first:016x}-{last:016x}-*",
            f"journal of the catalogue is missing, with batches {first} to {last}",
        )
    return [Damage(kind=DamageKind.CATALOGUE, place=place, why=why, container=container)]
