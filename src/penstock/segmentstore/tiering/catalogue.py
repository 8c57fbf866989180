"""The catalogue of a container: a copy of its rows in tier 2, so that tier 2 alone can restore a store.

Each checkpoint commits its rows together with a batch that describes their changes: the outbox. From there, batches go
to tier 2 in order, and only then may the log drop their frames. Periodically all rows are written there as a snapshot,
and the objects that it replaces are deleted. Where ``parts.publications`` exist, a batch counts once it is published.
Source: docs/design/0015-integrity.md, docs/design/0064-start-elsewhere.md, docs/formats/catalogue.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.codec.store import catalogue as codec
from penstock.codec.store import rows as records
from penstock.codec.store.container_record import CataloguePosition
from penstock.core.cluster.ownership import counted_objects
from penstock.model.errors import CorruptDataError, DamagedRowError, UnavailableError
from penstock.ports.objects import Objects
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.parts import StoreParts
from penstock.segmentstore.state import ContainerState

_log = logging.getLogger(__name__)
_PAGE = 1000  # rows of one scan, which bounds the memory of a page
_PAGES_PER_REST = 4  # pages after which a snapshot yields to other work
_ASIDE_PAGE = 4
"""Rows of segments that were set aside are frames of the log, each of which may be megabytes."""

_DAMAGED_PAUSE_S = 3600.0
"""Pause between two attempts at a snapshot that a damaged row prevents: each attempt reads all rows before it."""

Row = tuple[bytes, bytes]


class Catalogue:
    """Writes a container's batches to ``objects``. Without ``objects`` there are no batches, and the log waits for
    none.

    A journal object is replaced by a longer one until it is ``catalogue_object_bytes`` long: objects are written whole,
    and should be few. No two objects ever have the same name.
    """

    def __init__(self, state: ContainerState, parts: StoreParts, ask_checkpoint: Callable[[], None]) -> None:
        """``ask_checkpoint``: called after a snapshot, so that the log can be truncated."""
        self._state = state
        self._parts = parts
        self._ask_checkpoint = ask_checkpoint
        self._objects = parts.catalogue
        self._publications = parts.publications
        self._sequence = 0
        self._taken = 0
        """As ``_sequence``, with the batch of a commit that is under way, or whose end nobody knows."""
        self._taken_batch = b""
        self._pending: deque[tuple[int, bytes]] = deque()
        self._pending_bytes = 0
        self._unpublished: list[int] = []
        self._obsolete: list[int] = []
        self._clearing = 0
        self._written = 0
        self._written_upto = 0
        """The log address up to which the rows are complete at the batch ``_written``."""
        self._position = CataloguePosition()
        """What was published last; its ``begins`` are those of the start of this opening."""
        self._written_at = 0.0
        self._open: list[tuple[int, bytes]] = []
        self._open_name: str | None = None
        self._surplus: list[str] = []
        self._count = 0
        self._journal_bytes = 0
        self._journal_objects = 0
        self._snapshot_bytes = 0
        self._continues = self._looked = False
        self._has_snapshot = False
        """Whether tier 2 holds all that was written so far, as far as is known."""
        self._complete_at: tuple[int, int, int] | None = None
        """Of the newest snapshot: where it begins, up to which batch it needs the journal, and its run."""
        self._is_whole = True
        """Whether it lacks no damaged row. Otherwise the objects that it replaces are kept."""
        self._wanted = asyncio.Event()
        self._lock = asyncio.Lock()
        self._snapshots = asyncio.Lock()

    # --- life ---------------------------------------------------------------------------------------------

    @property
    def enabled(self) -> bool:
        return self._objects is not None

    async def recover(self, row: records.ContainerRecord | None) -> None:
        """Continue where an earlier opening stopped. ``row``: the container's checkpoint. Raises CorruptDataError: it was
        published that there were later batches."""
        state = self._state
        if self._objects is None:
            return
        damaged: list[bytes] = []
        head = records.range_of(records.prefix(records.TAG_CATALOGUE, state.index))
        stored = [value for _, value in await state.rows.scan(head, limit=1, damaged=damaged)]
        bounds = records.range_of(records.prefix(records.TAG_OUTBOX, state.index))
        waiting = [
            (records.parse_number(key[-8:]), value) for key, value in await state.rows.scan_all(bounds, damaged=damaged)
        ]
        known = records.decode_catalogue(stored[0]) if stored else None
        if known is not None:
            self._sequence = self._taken = known.sequence
        self._written_upto = 0 if row is None else row.complete_upto
        if damaged:
            self._restart(damaged, [sequence for sequence, _ in waiting])
            return
        published = self._published_before()
        if published > self._sequence:
            raise CorruptDataError(
                "metadata are older than what the store has published: this is an old copy of the directory. Use the newest"
                " one, or take the store over in a new directory",
                container=state.index,
                batch=self._sequence,
                published=published,
            )
        for sequence, value in waiting:
            if sequence <= published:
                self._obsolete.append(sequence)  # only the end of the process kept it
            else:
                self._queue(sequence, value)
        self._written = self._pending[0][0] - 1 if self._pending else self._sequence
        if self._pending:
            self._written_upto = self._position.upto
        # No batch holds the rows that an earlier version changed.
        self._continues = (
            known is not None
            and row is not None
            and (known.epoch, known.complete_upto) == (row.epoch, row.complete_upto)
            and (self._publications is None or self._written == published)
        )
        self._wanted.set()

    def _published_before(self) -> int:
        """Take up the position that earlier openings have published. Returns its batch; 0: none."""
        if self._publications is not None:
            self._position = self._publications.position(self._state.index) or CataloguePosition()
        return self._position.batch

    def _restart(self, damaged: Sequence[bytes], waiting: Sequence[int]) -> None:
        """Start again after damage to a row of the outbox. The catalogue in tier 2 cannot be continued, but a snapshot of all
        rows can replace it. Until then the log keeps what it holds."""
        _log.error(
            "outbox of the catalogue is damaged, all rows are written to tier 2 again",
            extra={"container": self._state.index, "key": damaged[0].hex()},
        )
        behind = records.prefix(records.TAG_OUTBOX, self._state.index)
        self._obsolete = [*waiting, *(records.parse_number(key[-8:]) for key in damaged if key.startswith(behind))]
        # Above every number ever used: numbers count from the start of an opening.
        self._sequence = self._taken = max(self._sequence, *self._obsolete, self._state.log.epoch << 32)
        self._written = self._sequence
        self._wanted.set()

    async def _look(self) -> None:
        """Check whether the catalogue in tier 2 can be continued; if so, no snapshot is needed now."""
        listed = await self._listed()
        journals = [size for name, size in listed.items() if name.kind is codec.Kind.JOURNAL]
        self._journal_objects, self._journal_bytes = len(journals), sum(journals)
        self._snapshot_bytes = sum(listed.values()) - self._journal_bytes
        self._looked = True
        if self._continues and codec.covers(self._counted(listed), self._written):
            self._has_snapshot = True
            self._wanted.clear()

    def _counted(self, names: Iterable[codec.ObjectName]) -> list[codec.ObjectName]:
        """The objects that count, each with the batches that count. A deposed owner may have written others."""
        if self._publications is None:
            return list(names)
        return counted_objects(names, self._position)

    async def _listed(self) -> Mapping[codec.ObjectName, int]:
        """The objects in tier 2, and their total size."""
        found = await self._require().list(f"{codec.DIRECTORY}/{self._state.index:x}")
        names = ((codec.parse_object_name(text), size) for text, size in found.items())
        return {name: size for name, size in names if name is not None}

    def _require(self) -> Objects:
        if self._objects is None:
            raise UnavailableError("store has no catalogue")
        return self._objects

    async def run(self) -> None:
        """Write snapshots when needed. Never ends; retries after transient failures."""
        settings = self._parts.settings
        failures = 0
        while True:
            await self._wanted.wait()
            try:
                await self._satisfy()
            except DamagedRowError as error:
                # The catalogue in tier 2 holds the row as it was. A snapshot without that row must not replace it.
                _log.error(
                    "catalogue takes no new snapshot, because a row of the metadata is damaged",
                    extra={"container": self._state.index, **error.fields},
                )
                self._wanted.clear()
                await asyncio.sleep(_DAMAGED_PAUSE_S)
                self._wanted.set()
            except (OSError, UnavailableError, CorruptDataError) as error:
                failures += 1
                self._parts.telemetry.add("catalogue_failures")
                if failures == 1:
                    _log.warning(
                        "snapshot of the catalogue failed, will be tried again",
                        extra={"container": self._state.index},
                        exc_info=error,
                    )
                await asyncio.sleep(min(settings.retry_max_s, settings.retry_min_s * 2 ** min(failures, 16)))
            else:
                failures = 0
                self._ask_checkpoint()

    # --- the outbox ---------------------------------------------------------------------------------------

    def take(
        self, puts: Sequence[Row], deletes: Sequence[bytes], ranges: Sequence[Row]
    ) -> tuple[Sequence[Row], Sequence[bytes]]:
        """Rows to put and to delete in the commit that is about to change these."""
        if self._objects is None:
            return (), ()
        index = self._state.index
        head = records.prefix(records.TAG_CONTAINER, index)
        row = next((records.decode_container(value) for key, value in puts if key == head), None)
        if row is None:
            row = records.ContainerRecord(epoch=self._state.log.epoch, complete_upto=0)
        # A failed commit may have happened: reuse its number for a batch that includes all of its changes.
        self._taken = self._sequence + 1
        self._taken_batch = codec.encode_batch(
            codec.Batch(
                sequence=self._taken,
                complete_upto=row.complete_upto,
                time_ms=self._parts.clock.now_ms(),
                ranges=[item for item in ranges if item[0][0] in records.CATALOGUED],
                deletes=[key for key in deletes if key[0] in records.CATALOGUED],
                puts=[item for item in puts if item[0][0] in records.CATALOGUED],
            )
        )
        state = records.CatalogueRecord(sequence=self._taken, epoch=row.epoch, complete_upto=row.complete_upto)
        rows = [
            (records.outbox_key(index, self._taken), self._taken_batch),
            (records.prefix(records.TAG_CATALOGUE, index), records.encode_catalogue(state)),
        ]
        self._clearing = len(self._obsolete)
        return rows, [records.outbox_key(index, sequence) for sequence in self._obsolete]

    def taken(self) -> None:
        """The commit is durable."""
        if self._objects is not None:
            self._sequence = self._taken
            # More may have been written since: those rows are still there.
            del self._obsolete[: self._clearing]
            self._queue(self._sequence, self._taken_batch)
            self._taken_batch = b""

    def _queue(self, sequence: int, batch: bytes) -> None:
        self._pending.append((sequence, batch))
        self._pending_bytes += len(batch)

    # --- the journal --------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The last batch that is durable in the outbox."""
        return self._sequence

    @property
    def safe(self) -> int:
        """The last batch that tier 2 alone can restore, with all before it. -1: none, because there is no snapshot."""
        if self._objects is None:
            return self._sequence
        if not self._has_snapshot:
            return -1
        return self._written if self._publications is None else self._position.batch

    def is_due(self) -> bool:
        """Whether waiting batches should be written now."""
        settings = self._parts.settings
        waited = asyncio.get_running_loop().time() - self._written_at
        return self._pending_bytes >= settings.catalogue_object_bytes or waited >= settings.catalogue_interval_s

    async def write(self) -> None:
        """Write all waiting batches to tier 2. Raises what the objects raise."""
        if self._objects is None:
            return
        async with self._lock:
            limit = self._parts.settings.catalogue_object_bytes
            while self._pending:
                taken, size = list(self._open), sum(len(batch) for _, batch in self._open)
                count = 0
                while count < len(self._pending) and (count == 0 or size < limit):
                    taken.append(self._pending[count])
                    size += len(self._pending[count][1])
                    count += 1
                await self._put_journal(taken, count, size)
            await self._publish()
            await self._clear_surplus()
            self._written_at = asyncio.get_running_loop().time()
            settings = self._parts.settings
            if (
                self._journal_bytes > max(settings.catalogue_growth_bytes, 2 * self._snapshot_bytes)
                or self._journal_objects > settings.catalogue_objects
            ):
                self._wanted.set()

    async def _put_journal(self, taken: list[tuple[int, bytes]], fresh: int, size: int) -> None:
        name = codec.ObjectName(
            kind=codec.Kind.JOURNAL,
            container=self._state.index,
            run=self._new_run(),
            first=taken[0][0],
            last=taken[-1][0],
        )
        await self._put(name, b"".join(batch for _, batch in taken), len(taken))
        if self._open_name is not None:
            self._surplus.append(self._open_name)
        else:
            self._journal_objects += 1
        self._open, self._open_name = taken, str(name)
        if size >= self._parts.settings.catalogue_object_bytes:
            self._open, self._open_name = [], None
        self._written, self._written_upto = taken[-1][0], codec.complete_upto(taken[-1][1])
        for _ in range(fresh):
            sequence, batch = self._pending.popleft()
            self._pending_bytes -= len(batch)
            self._journal_bytes += len(batch)
            self._unpublished.append(sequence)

    async def _publish(self) -> None:
        """Publish what was written, once tier 2 can restore it. From here on the outbox does not need it."""
        run, included = self._position.run, self._position.included
        if self._complete_at is not None and self._written >= self._complete_at[1]:
            included, _, run = self._complete_at
        elif not self._has_snapshot and self._publications is not None:
            return
        if self._publications is not None:
            at = CataloguePosition(run=run, included=included, batch=self._written, upto=self._written_upto)
            if at != replace(self._position, begins=()):
                await self._publications.publish(self._state.index, at)
                self._position = replace(at, begins=self._position.begins)
        self._obsolete += self._unpublished
        self._unpublished = []

    def _new_run(self) -> int:
        self._count += 1
        return self._state.log.epoch << 32 | self._count

    async def _put(self, name: codec.ObjectName, payload: bytes, count: int) -> None:
        data = codec.encode_object(name, payload, containers=self._parts.settings.containers, count=count)
        await self._require().put(str(name), data)
        self._parts.telemetry.add("catalogue_bytes", len(data))

    async def _clear_surplus(self) -> None:
        """Delete objects that a longer journal or a complete snapshot replaces."""
        objects = self._require()
        if self._complete_at is not None and self._written >= self._complete_at[1]:
            first, _, run = self._complete_at
            self._has_snapshot = True
            self._complete_at = None
            listed = await self._listed()
            # A later owner's objects are its own, even if this one does not know yet that it was deposed.
            own = [name for name in listed if name.epoch <= self._state.log.epoch]
            obsolete = [name for name in own if self._is_whole and _is_obsolete(name, first, run)]
            self._journal_objects = sum(name.kind is codec.Kind.JOURNAL for name in listed.keys() - set(obsolete))
            self._surplus = [str(name) for name in obsolete]
            if self._open_name in self._surplus:
                self._open, self._open_name = [], None
        while self._surplus:
            await objects.delete(self._surplus[-1])
            self._surplus.pop()

    async def tidy_outbox(self) -> None:
        """Remove written batches from the outbox if no further commit will."""
        if self._obsolete:
            index = self._state.index
            taken = list(self._obsolete)
            await self._parts.keyvalue.commit([], [records.outbox_key(index, item) for item in taken])
            del self._obsolete[: len(taken)]

    async def begin(self) -> None:
        """Make sure that there is a snapshot. Raises what the key-value store and the objects raise."""
        if self._objects is not None and not self._has_snapshot:
            await self._satisfy()

    async def _satisfy(self) -> None:
        async with self._snapshots:
            if not self._looked:
                await self._look()
            if self._wanted.is_set():
                await self._snapshot()

    # --- snapshots ----------------------------------------------------------------------------------------

    async def _snapshot(self) -> None:
        """Write all rows. Commits continue meanwhile, so the snapshot is complete only with the batches up to its
        end."""
        self._wanted.clear()
        parts: list[codec.ObjectName] = []
        try:
            # A snapshot that lacks damaged rows must not replace one that holds them. If tier 2 has no usable one, it
            # is better than none: until there is one, the log keeps everything, for all containers.
            lacking: list[bytes] | None = None if self._has_snapshot else []
            await self._write_snapshot(parts, lacking)
        except DamagedRowError:
            for name in parts:
                await self._require().delete(str(name))
            self._wanted.set()
            raise
        except BaseException:
            self._wanted.set()
            raise

    async def _write_snapshot(self, parts: list[codec.ObjectName], lacking: list[bytes] | None) -> None:
        """``parts`` receives the names of all objects except the last. ``lacking`` receives the keys of damaged rows,
        which are left out and marked; without that list the first of them raises DamagedRowError."""
        first, run = self._sequence, self._new_run()
        index, limit = self._state.index, self._parts.settings.catalogue_part_bytes
        committed = MetadataRows(self._parts.keyvalue)
        # Encode page by page: as row objects they would take several times their size.
        pieces: list[bytes] = []
        rows = size = total = part = 0
        for tag in sorted(records.CATALOGUED):
            start, end = records.range_of(records.prefix(bytes([tag]), index))
            pages = 0
            while True:
                # Only committed rows: the changes in memory come with a batch.
                limit_rows = _ASIDE_PAGE if bytes([tag]) == records.TAG_ASIDE else _PAGE
                page = await committed.scan((start, end), limit=limit_rows, damaged=lacking)
                pieces.append(codec.encode_rows(page))
                rows, size = rows + len(page), size + len(pieces[-1])
                if size >= limit:
                    parts.append(await self._put_part(b"".join(pieces), rows, run, first, part))
                    total, part = total + size, part + 1
                    pieces, rows, size = [], 0, 0
                if len(page) < limit_rows:
                    break
                start = page[-1][0] + b"\0"
                pages += 1
                if pages % _PAGES_PER_REST == 0:
                    await asyncio.sleep(0)
        if lacking:
            pieces.append(codec.encode_rows([(records.lacking_key(index, key), b"") for key in lacking]))
            rows, size = rows + len(lacking), size + len(pieces[-1])
            _log.error(
                "snapshot of the catalogue lacks damaged rows",
                extra={"container": index, "rows": len(lacking), "key": lacking[0].hex()},
            )
        last = self._taken
        name = codec.ObjectName(
            kind=codec.Kind.SNAPSHOT, container=index, run=run, first=first, last=last, part=part, end=True
        )
        await self._put(name, b"".join(pieces), rows)
        async with self._lock:
            self._complete_at, self._is_whole = (first, last, run), not lacking
            self._snapshot_bytes, self._journal_bytes = total + size, sum(len(batch) for _, batch in self._pending)
        self._parts.telemetry.add("catalogue_snapshots")
        if last <= self._sequence:
            await self.write()

    async def _put_part(self, payload: bytes, count: int, run: int, first: int, part: int) -> codec.ObjectName:
        name = codec.ObjectName(
            kind=codec.Kind.SNAPSHOT, container=self._state.index, run=run, first=first, last=0, part=part
        )
        await self._put(name, payload, count)
        return name


def _is_obsolete(name: codec.ObjectName, first: int, run: int) -> bool:
    """Whether the complete snapshot of ``run``, which begins behind batch ``first``, replaces the object. The journal with
    that batch is kept: only it shows up to which address of the log the snapshot is complete."""
    if name.kind is codec.Kind.JOURNAL:
        return name.last < first
    return name.run != run
