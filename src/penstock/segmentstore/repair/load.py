"""The rows of a container as they were at the position that its owner published, from the catalogue in tier 2.

Unlike ``rebuild``, which makes the best of what it finds, this needs all of it: the log continues exactly there. Source:
docs/design/0064-start-elsewhere.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from penstock.codec.store import catalogue as codec
from penstock.codec.store import rows as records
from penstock.codec.store.container_record import CataloguePosition
from penstock.core.cluster.ownership import batches_of
from penstock.model.errors import CorruptDataError
from penstock.ports.keyvalue import KeyValueStore
from penstock.ports.objects import Objects
from penstock.segmentstore.repair.rebuild import list_catalogue, read_object, take_missing_rows

_log = logging.getLogger(__name__)


async def load_published(
    objects: Objects, positions: Mapping[int, CataloguePosition], keyvalue: KeyValueStore, *, epoch: int
) -> None:
    """Fill ``keyvalue``, which is empty, with the rows of all containers. ``epoch``: the one before
    this opening of the log.

    A container that has published nothing gets no rows: the log still has all its frames. The row of the store comes last: a
    key-value store without it was not filled. With no position at all, nothing is written.

    Raises: CorruptDataError (the catalogue does not hold all of it), VersionTooNewError, what the objects and the
    key-value store raise.
    """
    listed = await list_catalogue(objects)
    totals = [
        await _load_container(objects, container, at, listed.get(container, []), keyvalue, epoch=epoch)
        for container, at in sorted(positions.items())
    ]
    if totals:
        row = records.encode_store(totals[0])
        await keyvalue.commit([(records.STORE_KEY, row), (records.STORE_COPY_KEY, row)])


async def _load_container(
    objects: Objects,
    container: int,
    at: CataloguePosition,
    names: Sequence[codec.ObjectName],
    keyvalue: KeyValueStore,
    *,
    epoch: int,
) -> int:
    """Returns the number of containers of the store."""
    containers = await _load_snapshot(objects, at, names, keyvalue)
    await _load_batches(objects, container, at, names, keyvalue)
    for key in await take_missing_rows(keyvalue, container):
        _log.error("catalogue lacks a row that was damaged", extra={"container": container, "key": key.hex()})
    state = records.encode_container(records.ContainerRecord(epoch=epoch, complete_upto=at.upto))
    outbox = records.CatalogueRecord(sequence=at.batch, epoch=epoch, complete_upto=at.upto)
    await keyvalue.commit(
        [
            (records.prefix(records.TAG_CONTAINER, container), state),
            (records.container_copy_key(container), state),
            (records.prefix(records.TAG_CATALOGUE, container), records.encode_catalogue(outbox)),
        ]
    )
    return containers


async def _load_snapshot(
    objects: Objects, at: CataloguePosition, names: Sequence[codec.ObjectName], keyvalue: KeyValueStore
) -> int:
    parts = sorted((name for name in names if name.run == at.run and _is_snapshot(name)), key=lambda name: name.part)
    if not parts or not parts[-1].end or [name.part for name in parts] != list(range(len(parts))):
        raise CorruptDataError("snapshot of the catalogue is not in tier 2", run=f"{at.run:x}", objects=len(parts))
    containers = 0
    for name in parts:
        found = await read_object(objects, str(name))
        if found.damage is not None:
            raise CorruptDataError("object of the catalogue is damaged", object=str(name), why=found.damage)
        rows = list(codec.decode_rows(found.payload))
        containers = found.containers
        if rows:
            await keyvalue.commit(rows)
    return containers


async def _load_batches(
    objects: Objects,
    container: int,
    at: CataloguePosition,
    names: Sequence[codec.ObjectName],
    keyvalue: KeyValueStore,
) -> None:
    applied = at.included
    journals = (name for name in names if not _is_snapshot(name))
    for name in sorted(journals, key=lambda name: (name.first, name.last, name.run)):
        first, last = batches_of(at, name.epoch)
        if min(last, name.last) <= applied or name.first > applied + 1:
            continue
        try:
            found = await read_object(objects, str(name))
        except CorruptDataError as error:
            # The last deletions of the owner before: a longer object with the same batches follows.
            _log.warning("object of the catalogue cannot be read", extra={"object": str(name), "error": str(error)})
            continue
        for batch in codec.decode_batches(found.payload):
            if batch.sequence == applied + 1 and first <= batch.sequence <= last:
                await keyvalue.commit(batch.puts, batch.deletes, delete_ranges=batch.ranges)
                applied = batch.sequence
    if applied < at.batch:
        raise CorruptDataError(
            "catalogue in tier 2 ends before the position that was published",
            container=container,
            last=applied,
            published=at.batch,
        )


def _is_snapshot(name: codec.ObjectName) -> bool:
    return name.kind is codec.Kind.SNAPSHOT
