"""``penstock cluster doctor --rebuild``: rebuilds the nodes of a cluster whose ZooKeeper data were lost.

Source: docs/design/0065-cluster.md, "Rebuild".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from penstock.app.cluster.init import creation
from penstock.app.cluster.operations.doctor import ledger_facts
from penstock.app.cluster.operations.reading import NodeReader
from penstock.codec.store import catalogue as codec
from penstock.codec.store import rows as rows_of
from penstock.codec.store.cluster_nodes import (
    ASSIGNMENT,
    CONFIG,
    CONTAINERS,
    CONTROLLERS,
    FEATURES,
    HOLDERS,
    INCARNATIONS,
    REQUESTS,
    RESTORED,
    STORES,
    TERM,
    Assignment,
    ClusterConfig,
    Features,
    Requests,
    Restored,
    Term,
    decode_node,
    encode_node,
)
from penstock.codec.store.container_record import CataloguePosition, ContainerRecord
from penstock.codec.store.ledger_entries import decode_header, decode_part
from penstock.core.cluster.diagnosis import LedgerFacts
from penstock.core.cluster.levels import LEVEL
from penstock.core.cluster.rebuilding import Chain, LedgerExtent, chain, earlier, newest_epoch, positions
from penstock.core.segments.garbage import chunk_epoch
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidArgumentError,
    NodeNotFoundError,
    NotFoundError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.ledgers import LedgerKey
from penstock.model.values.dataclass import dataclass
from penstock.ports.clock import Clock
from penstock.ports.cluster.coordination import Change, Coordination, Create, Delete, Set
from penstock.ports.cluster.ledger_keys import LedgerKeys
from penstock.ports.cluster.ledgers import Ledgers
from penstock.ports.objects import Objects
from penstock.ports.rng import Rng
from penstock.segmentstore.metadata import MetadataRows
from penstock.segmentstore.repair.load import load_published
from penstock.segmentstore.repair.rebuild import list_catalogue, read_object
from penstock.segmentstore.repair.settled import settle_in_tier
from penstock.storage.chunks.claim import tier_mark
from penstock.storage.ledgers.inspection import LedgerInspection
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.storage.objects.ledger_keys import ObjectLedgerKeys

_STEPS_BACK: Final = 64
"""At most this many batches are dropped, one by one, while they name missing chunks. A deposed owner wrote them within
a few seconds."""
_JUMP_MIN, _JUMP_SPAN = 1 << 20, 1 << 23  # as for a restored store
_CHUNKS = "chunks/"


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltContainer:
    """``state``: ``new`` (it was never used), ``complete`` (nothing is known to be missing), ``cut`` (its log ends early), or
    ``tier2`` (its log is lost).

    ``upto``: the last address of the log that is recovered. ``as_of_ms``: when the newest batch of its catalogue was
    made, wall clock; None: there is none. ``log_bytes``: recovered from the log. ``unreachable_bytes``: of ledgers that
    exist and cannot be applied; what missing ledgers held is unknown. ``lost_bytes`` and ``lost_events``: what the
    catalogue in tier 2 names and tier 2 lacks. ``missing_chunks``: chunks that are missing as a whole.
    """

    container: int
    state: str
    upto: int = 0
    as_of_ms: int | None = None
    log_bytes: int = 0
    unreachable_bytes: int = 0
    lost_bytes: int = 0
    lost_events: int = 0
    missing_chunks: int = 0

    @property
    def is_complete(self) -> bool:
        return self.state in ("new", "complete")


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """``applied``: the nodes were written. False: nothing was missing, or something is lost and that was not accepted."""

    cluster: str
    containers: Sequence[RebuiltContainer]
    applied: bool

    @property
    def is_complete(self) -> bool:
        return all(one.is_complete for one in self.containers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a rebuild reads. ``part``: the objects of a container's part of tier 2."""

    ledgers: Ledgers
    inspection: LedgerInspection
    part: Callable[[int], Awaitable[Objects]]


async def rebuild_nodes(
    coordination: Coordination,
    wanted: ClusterConfig,
    sources: Sources,
    *,
    accept_loss: bool,
    reason: str,
    clock: Clock,
    rng: Rng,
) -> RebuildReport:
    """Rebuild the missing and damaged nodes of a cluster; valid nodes stay.

    The ledgers of containers without a record are fenced, so no earlier owner acknowledges anything any more. Nodes are
    written in one step, with a new incarnation: a process that knew earlier ones cannot change them. If something is lost and
    ``accept_loss`` is not set, the nodes are not written.

    Raises ConflictError (a process is registered; ledgers do not show whose they are), InvalidArgumentError (the cluster
    there has other settings), VersionTooNewError (a newer version has written a node), CorruptDataError (the catalogue of
    a container is damaged), UnavailableError (bookies or tier 2 do not answer).
    """
    await coordination.sync()
    await _refuse_running(coordination)
    reader = NodeReader(coordination)
    config = await _config(reader, wanted)
    records = {number: await reader.record(number) for number in range(config.containers)}
    missing = [number for number, record in records.items() if record is None]
    # What is damaged is noted.
    await reader.needed(REQUESTS, Requests)
    await reader.needed(ASSIGNMENT, Assignment)
    await reader.needed(TERM, Term)
    await _refuse_newer(reader, coordination)
    if not missing and not reader.damaged:
        return RebuildReport(cluster=config.cluster, containers=[], applied=False)
    facts = await ledger_facts(sources.inspection.nodes, besides=set())
    found = {number: await _Container(number, config, sources, facts, clock, rng).rebuild(False) for number in missing}
    report = RebuildReport(cluster=config.cluster, containers=[one for _, one in found.values()], applied=False)
    if not report.is_complete:
        _refuse_unlabelled(facts)
        if not accept_loss:
            return report
        # Only now: a snapshot of what is left replaces what was published. If another container refused the rebuild then,
        # the log that seems to be lost would be of no use any more, wherever it is found.
        for number in [number for number, (_, one) in found.items() if not one.is_complete]:
            found[number] = await _Container(number, config, sources, facts, clock, rng).rebuild(True)
        report = replace(report, containers=[one for _, one in found.values()])
    records |= {number: record for number, (record, _) in found.items()}
    config = replace(config, incarnation=str(rng.uuid()))
    lost = None if report.is_complete else Restored(jump=_JUMP_MIN + rng.randrange(_JUMP_SPAN), reason=reason)
    complete = [record for record in records.values() if record is not None]
    changes = await _changes(coordination, config, complete, missing, term=clock.now_ms() // 1000, restored=lost)
    await _refuse_running(coordination)
    await coordination.multi(changes)
    return replace(report, applied=True)


async def _refuse_running(coordination: Coordination) -> None:
    for folder in (STORES, CONTROLLERS, HOLDERS):
        with suppress(NodeNotFoundError):
            names = await coordination.members(folder)
            if names:
                raise ConflictError(
                    "processes of the cluster are running: stop all stores and controllers first",
                    registered=", ".join(f"{folder}/{name}" for name in names),
                )


async def _refuse_newer(reader: NodeReader, coordination: Coordination) -> None:
    """Raise VersionTooNewError if a newer version has written a node: this one would replace it, as if it were damaged."""
    levels = NodeReader(coordination)  # of its own: `cluster upgrade` repairs this node
    features = await levels.registration(FEATURES, Features)
    newer = [one.node for one in (*reader.damaged, *levels.damaged) if one.is_newer]
    newer += [FEATURES] if features is not None and features.level > LEVEL else []
    if newer:
        raise VersionTooNewError(
            "a newer version of Penstock has written nodes of the cluster: rebuild it with that version",
            nodes=", ".join(newer),
        )


async def _config(reader: NodeReader, wanted: ClusterConfig) -> ClusterConfig:
    """The settings that are there, or those that are wanted. Raises InvalidArgumentError: they differ."""
    found = await reader.needed(CONFIG, ClusterConfig)
    if found is None:
        return wanted
    names = ("cluster", "containers", "ledgers", "tier2")
    different = [
        f"{name} is {getattr(found, name)}, not {getattr(wanted, name)}"
        for name in names
        if getattr(found, name) != getattr(wanted, name)
    ]
    if different:
        raise InvalidArgumentError("the cluster at this root has other settings", different="; ".join(different))
    return replace(found, bookkeeper=wanted.bookkeeper)


def _refuse_unlabelled(facts: Sequence[LedgerFacts]) -> None:
    """An earlier version did not label ledgers, so they may contain the log that seems to be lost."""
    unknown = [one.ledger for one in facts if one.is_ours and one.log is None]
    if unknown:
        raise ConflictError(
            "a log seems to be lost, but BookKeeper has ledgers that do not show which log they belong to. If they belong to"
            " another store or are not needed, delete them, and try again",
            ledgers=tuple(unknown[:20]),
        )


async def _changes(
    coordination: Coordination,
    config: ClusterConfig,
    records: Sequence[ContainerRecord],
    rebuilt: Sequence[int],
    *,
    term: int,
    restored: Restored | None,
) -> Sequence[Change]:
    """What must be written so that all nodes are there. ``term``: above every earlier one, because seconds since 1970 are
    more than elections."""
    always = {CONFIG, *(f"{CONTAINERS}/{number}" for number in rebuilt)}
    changes: list[Change] = []
    for change in creation(config, records, term=term):
        if not isinstance(change, Create):
            continue
        try:
            node = await coordination.read(change.path)
        except NodeNotFoundError:
            changes.append(change)
            continue
        if change.path in always or not _is_valid(change.path, node.data):
            changes.append(Set(change.path, change.data, node.version))
    with suppress(NodeNotFoundError):
        for name in await coordination.members(INCARNATIONS):
            path = f"{INCARNATIONS}/{name}"
            changes.append(Delete(path, (await coordination.read(path)).version))
    if restored is not None:
        try:
            node = await coordination.read(RESTORED)
            changes.append(Set(RESTORED, encode_node(restored), node.version))
        except NodeNotFoundError:
            changes.append(Create(RESTORED, encode_node(restored)))
    return changes


def _is_valid(path: str, data: bytes) -> bool:
    kinds = {FEATURES: Features, REQUESTS: Requests, ASSIGNMENT: Assignment, TERM: Term}
    try:
        if path in kinds:
            decode_node(kinds[path], data)
    except (CorruptDataError, VersionTooNewError):
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """A position of the catalogue, and its rows."""

    at: CataloguePosition
    as_of_ms: int | None
    rows: MemoryKeyValue
    missing: Sequence[str]


class _Container:
    """One container whose record is missing."""

    def __init__(
        self,
        number: int,
        config: ClusterConfig,
        sources: Sources,
        facts: Sequence[LedgerFacts],
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._number = number
        self._config = config
        self._sources = sources
        self._facts = facts
        self._clock = clock
        self._rng = rng

    async def rebuild(self, accept_loss: bool) -> tuple[ContainerRecord, RebuiltContainer]:
        """Its record, and what was found. With ``accept_loss``, tier 2 gets a snapshot of what is left if the log is lost."""
        number = self._number
        objects = await self._sources.part(number)
        uid = await tier_mark(objects)
        names = (await list_catalogue(objects)).get(number, [])
        if uid is None:
            if names:
                raise CorruptDataError("part of tier 2 has a catalogue but no mark", container=number)
            return ContainerRecord(uid=str(self._rng.uuid())), RebuiltContainer(container=number, state="new")
        keys = ObjectLedgerKeys(objects, uid=uid, clock=self._clock)
        found_extents = [await self._extent(one.ledger, keys) for one in self._facts if one.log == uid]
        extents = [one for one in found_extents if one is not None]
        chunks = [name.removeprefix(_CHUNKS) for name in await objects.list(_CHUNKS.rstrip("/"))]
        epochs = [epoch for name in chunks if (epoch := chunk_epoch(name)) is not None]
        known = max((newest_epoch(names, ()), *epochs))
        epoch = max(known, newest_epoch((), extents)) + 1
        loaded = await self._load(objects, names, frozenset(chunks))
        upto = 0 if loaded is None else loaded.at.upto
        linked = chain(upto, extents, epoch=known)
        record = ContainerRecord(
            uid=uid,
            epoch=epoch,
            truncated=linked.first - 1,
            ledgers=linked.ledgers,
            catalogues=() if loaded is None else ((number, loaded.at),),
            home=str(self._rng.uuid()),  # of no directory, so every cache is loaded again
            tier=uid,
        )
        found = self._found(loaded, linked, extents)
        if linked.is_complete or linked.ledgers:
            return record, found
        if loaded is None:
            return replace(record, truncated=0), found
        if not accept_loss:
            return record, found
        settled = await settle_in_tier(
            objects, number, loaded.at, loaded.rows, epoch=epoch, containers=self._config.containers
        )
        record = replace(record, catalogues=((number, settled.at),))
        return record, replace(found, lost_bytes=settled.lost_bytes, lost_events=settled.lost_events)

    def _found(self, loaded: _Loaded | None, linked: Chain, extents: Sequence[LedgerExtent]) -> RebuiltContainer:
        sizes = {one.ledger: one.size_bytes for one in extents}
        state = "complete" if linked.is_complete else "cut" if linked.ledgers else "tier2"
        return RebuiltContainer(
            container=self._number,
            state=state,
            upto=linked.reached,
            as_of_ms=None if loaded is None else loaded.as_of_ms,
            log_bytes=sum(sizes[one.ledger] for one in linked.ledgers),
            unreachable_bytes=linked.unusable_bytes,
            missing_chunks=0 if loaded is None else len(loaded.missing),
        )

    async def _load(
        self, objects: Objects, names: Sequence[codec.ObjectName], chunks: frozenset[str]
    ) -> _Loaded | None:
        """The newest rows that can be loaded, and whose chunks are all there if there are such; None: nothing was published.
        Raises CorruptDataError: there is a catalogue, and it cannot be loaded."""
        first: _Loaded | None = None
        for start in positions(names):
            at: CataloguePosition | None = start
            for _ in range(_STEPS_BACK):
                if at is None:
                    break
                loaded = await self._load_at(objects, names, at, chunks)
                if loaded is None:
                    break
                if not loaded.missing:
                    return loaded
                first = first or loaded
                at = earlier(at)
        if first is None and names:
            raise CorruptDataError(
                "catalogue of a container is damaged: no snapshot is complete, with all batches that follow it",
                container=self._number,
            )
        return first

    async def _load_at(
        self, objects: Objects, names: Sequence[codec.ObjectName], at: CataloguePosition, chunks: frozenset[str]
    ) -> _Loaded | None:
        end = await self._end_of(objects, names, at)
        if end is None and at.batch:
            return None
        at = replace(at, upto=0 if end is None else end.complete_upto)
        rows = MemoryKeyValue()
        try:
            await load_published(objects, {self._number: at}, rows, epoch=0)
        except CorruptDataError:
            return None
        bounds = rows_of.range_of(rows_of.prefix(rows_of.TAG_CHUNK, self._number))
        named = [rows_of.decode_chunk(value).name for _, value in await MetadataRows(rows).scan_all(bounds)]
        missing = sorted({name for name in named if name not in chunks})
        return _Loaded(at=at, as_of_ms=None if end is None else end.time_ms, rows=rows, missing=missing)

    async def _end_of(
        self, objects: Objects, names: Sequence[codec.ObjectName], at: CataloguePosition
    ) -> codec.Batch | None:
        """The last batch of the position: it shows up to which address the rows are complete. None: no object has it."""
        # The newest epoch that may have written it: the same number of an earlier one is void.
        owner = next((epoch for epoch, after in reversed(at.begins) if after < at.batch), at.run >> 32)
        for name in sorted(names, key=lambda name: name.run, reverse=True):
            if name.kind is codec.Kind.JOURNAL and name.first <= at.batch <= name.last and name.epoch <= owner:
                with suppress(CorruptDataError):
                    for batch in codec.decode_batches((await read_object(objects, str(name))).payload):
                        if batch.sequence == at.batch:
                            return batch
        return None

    async def _extent(self, ledger: int, keys: LedgerKeys) -> LedgerExtent | None:
        """Fence and close the ledger, and see which frames it has. Its key may be gone: a wipe has destroyed it and could not
        delete the ledger, or the key is lost. None: its writer died before the ledger had its header, so it was never used.
        """
        inspection = self._sources.inspection
        try:
            info = await self._sources.ledgers.take_over(ledger)
        except UnavailableError:
            # A takeover takes no answers without an entry for proof, so this ledger can never be closed.
            if await inspection.has_no_beginning(ledger, await inspection.metadata(ledger)):
                return None
            raise
        if info.last < 0:
            return None  # BookKeeper's own recovery has closed it
        metadata = await inspection.metadata(ledger)
        header = decode_header(bytes((await inspection.entry(ledger, metadata, 0)).payload), ledger=ledger)
        is_readable = True
        if header.key is not None:
            try:
                await keys.read(LedgerKey(epoch=header.epoch, id=header.key))
            except (NotFoundError, CorruptDataError):
                is_readable = False
        first, last = header.first, header.first - 1
        if info.last > 0:
            first = decode_part((await inspection.entry(ledger, metadata, 1)).payload, ledger=ledger).address
            payload = (await inspection.entry(ledger, metadata, info.last)).payload
            part = decode_part(payload, ledger=ledger)
            last = part.address if part.index == part.total - 1 else part.address - 1
        return LedgerExtent(
            ledger=ledger,
            epoch=header.epoch,
            begun=header.first,
            first=first,
            last=last,
            last_entry=info.last,
            size_bytes=info.size_bytes,
            sealed=header.key is not None,
            is_readable=is_readable,
        )
