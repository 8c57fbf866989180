"""A container whose log is lost, as far as tier 2 has it: settled, and written to the catalogue as a new snapshot.

Source: docs/design/0065-cluster.md, "Rebuild".
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from penstock.codec.store import catalogue as codec
from penstock.codec.store import rows as records
from penstock.codec.store.container_record import CataloguePosition
from penstock.model.values.dataclass import dataclass
from penstock.ports.keyvalue import KeyValueStore
from penstock.ports.objects import Objects
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair.rebuild import settle_container

_PART_BYTES = 8 << 20  # of one object of the snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledContainer:
    """``at``: the position of the new snapshot. ``lost_bytes`` and ``lost_events``: what rows named and only the log held.
    ``segments``: how many lost some of it."""

    at: CataloguePosition
    lost_bytes: int
    lost_events: int
    segments: int


async def settle_in_tier(
    objects: Objects, container: int, at: CataloguePosition, keyvalue: KeyValueStore, *, epoch: int, containers: int
) -> SettledContainer:
    """Cut the rows in ``keyvalue``, which are those of the position ``at``, to what tier 2 holds, and write them as a
    snapshot of ``epoch``, which nobody has used. Repeating the call replaces the objects. ``containers``: their number.

    Raises CorruptDataError (a row cannot be read), and what the objects and the key-value store raise.
    """
    lost_bytes = lost_events = segments = 0
    async for segment in settle_container(keyvalue, container, epoch=epoch):
        lost_bytes += segment.lost_bytes
        lost_events += segment.lost_events
        segments += bool(segment.lost_bytes)
    run, part, count = epoch << 32 | 1, 0, 0
    pieces: list[bytes] = []
    async for rows in _pages(keyvalue, container):
        pieces.append(codec.encode_rows(rows))
        count += len(rows)
        if sum(map(len, pieces)) >= _PART_BYTES:
            await _put(objects, container, containers, run, at.batch, part, pieces, count, end=False)
            pieces, count, part = [], 0, part + 1
    await _put(objects, container, containers, run, at.batch, part, pieces, count, end=True)
    settled = CataloguePosition(run=run, included=at.batch, batch=at.batch, upto=at.upto, begins=((epoch, at.batch),))
    return SettledContainer(at=settled, lost_bytes=lost_bytes, lost_events=lost_events, segments=segments)


async def _pages(keyvalue: KeyValueStore, container: int) -> AsyncIterator[list[tuple[bytes, bytes]]]:
    """The rows that a catalogue has, in the order of their keys."""
    rows = MetadataRows(keyvalue)
    for tag in sorted(records.CATALOGUED):
        found = await rows.scan_all(records.range_of(records.prefix(bytes([tag]), container)))
        for start in range(0, len(found), 1000):
            yield list(found[start : start + 1000])


async def _put(
    objects: Objects,
    container: int,
    containers: int,
    run: int,
    batch: int,
    part: int,
    pieces: list[bytes],
    count: int,
    *,
    end: bool,
) -> None:
    name = codec.ObjectName(
        kind=codec.Kind.SNAPSHOT,
        container=container,
        run=run,
        first=batch,
        last=batch if end else 0,
        part=part,
        end=end,
    )
    await objects.put(str(name), codec.encode_object(name, b"".join(pieces), containers=containers, count=count))
