"""One container, open in this process: a segment store on a directory that is a cache.

All units of a process share its connections to ZooKeeper and BookKeeper, its threads, and the memory of events. Source:
docs/design/0065-cluster.md, "Units".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field, replace
from itertools import pairwise
from pathlib import Path

from penstock.app.cluster.address import ClusterAddress
from penstock.app.cluster.levels import LevelInForce
from penstock.app.integrity.start_check import check_start
from penstock.app.replicated.binding import bound_log, read_record
from penstock.app.replicated.log_keys import open_sealing
from penstock.app.replicated.log_place import LogMark, parse_log_place, read_mark, write_mark
from penstock.app.replicated.takeover import begin_takeover, is_takeover_needed, load_store
from penstock.app.segments import OpenLog, StoreSource, cluster_memory_min_bytes, open_on_log, store_settings
from penstock.app.settings import EmbeddedSettings
from penstock.app.tier2 import locate_tier, part_of_tier2
from penstock.codec.store.cluster_nodes import CONTAINERS, ClusterConfig
from penstock.codec.store.container_record import ContainerRecord
from penstock.model.errors import CorruptDataError, InvalidArgumentError
from penstock.model.values.dataclass import dataclass
from penstock.ports.cluster.ledgers import Ledgers
from penstock.ports.cluster.nodes import Nodes
from penstock.ports.objects import Objects
from penstock.ports.offload import Offload
from penstock.segmentstore.settings import StoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tiering.tail_cache import CacheMemory
from penstock.storage.chunks.claim import bind_tier, reserve_tier
from penstock.storage.machine.data_directory import DataDirectory
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import OffloadPart, ThreadOffload
from penstock.storage.rows.sqlite_keyvalue import SqliteKeyValue

_log = logging.getLogger(__name__)

_THREADS_S = 2.0
"""How long a unit that ends waits for its threads. A write takes milliseconds, but on a file system that hangs it never
ends."""


class UnitsMemory:
    """Implements ``app.memory_watch.CachingStore`` for all units of a process.

    They share one ``CacheMemory``, because their number changes, and a busy one may use what the others leave. Other
    budgets are for each container, divided as if the process owned all of them.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self.events = CacheMemory(settings.cache_bytes, settings.max_unflushed_bytes)

    @property
    def cached_bytes(self) -> int:
        """As the protocol says."""
        return self.events.cached_bytes

    def allow_memory(self, *, cache_bytes: int, unflushed_bytes: int) -> None:
        """As the protocol says."""
        self.events.allow(cache_bytes, unflushed_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsShared:
    """What all units of a process share; its parts are borrowed.

    ``base``: settings with the directory of the process, which it has locked, and its whole memory budget. ``memory``: of
    ``source``. ``in_force``: the level of the cluster.
    """

    address: ClusterAddress
    config: ClusterConfig
    base: EmbeddedSettings
    nodes: Nodes
    ledgers: Ledgers
    source: StoreSource
    memory: UnitsMemory
    in_force: LevelInForce = field(default_factory=LevelInForce)

    @property
    def offload(self) -> Offload:
        return self.source.offload


def share_units(
    address: ClusterAddress,
    config: ClusterConfig,
    base: EmbeddedSettings,
    *,
    nodes: Nodes,
    ledgers: Ledgers,
    source: StoreSource,
    in_force: LevelInForce | None = None,
) -> UnitsShared:
    """Divide the memory of a process among its units. ``source``: without a memory of events. ``in_force``: None: that of
    this version. Raises InvalidArgumentError: the budget is not enough."""
    least_bytes = cluster_memory_min_bytes(config.containers)
    if base.memory_bytes < least_bytes:
        raise InvalidArgumentError(
            "memory budget is too small for a store that may own all containers of this cluster",
            memory_bytes=base.memory_bytes,
            least_bytes=least_bytes,
            containers=config.containers,
        )
    memory = UnitsMemory(store_settings(base, containers=config.containers))
    return UnitsShared(
        address=address,
        config=config,
        base=base,
        nodes=nodes,
        ledgers=ledgers,
        source=replace(source, memory=memory.events),
        memory=memory,
        in_force=in_force or LevelInForce(),
    )


@asynccontextmanager
async def open_unit(number: int, shared: UnitsShared) -> AsyncIterator[SegmentStore]:
    """Take the container over, and serve it until the block ends. Any earlier owner is fenced.

    The directory ``containers/<number>`` is used as far as its metadata is valid; else it is loaded again. On normal exit,
    all is checkpointed and published; on an error, nothing is, and the next owner replays the log.

    Raises CorruptDataError (tier 2 or the log is damaged, or ZooKeeper's data were lost: a record is never created),
    InvalidArgumentError (a directory or tier 2 of another cluster), UnavailableError, ContainerOfflineError (another owner
    was faster), DirectoryInUseError, StorageFullError, OSError. Cancelled: threads may still work in the directory; it stays
    locked until they have ended.
    """
    shared, part = _with_part(shared)
    offload = shared.offload
    since_s = asyncio.get_running_loop().time()
    settings = await offload.run(lambda: _settings_of(number, shared))
    async with AsyncExitStack() as stack:
        # Never marked as complete: what is missing in a cache was not lost.
        directory = await _locked(settings.data, offload)
        stack.push_async_callback(_unlock, directory, part, settings.data)
        record = await _record_of(number, settings, shared)
        is_kept = await _prepare(record, settings, shared)
        try:
            store = await stack.enter_async_context(_opened(number, settings, shared, since_s))
        except CorruptDataError as error:
            if not is_kept:
                raise
            _log.warning(
                "cache of a container cannot be used, so it is loaded from tier 2 again",
                extra={"container": number, "error": str(error)},
            )
            await begin_takeover(
                await _record_of(number, settings, shared),
                settings,
                _url_of(settings),
                offload=offload,
                rng=shared.source.rng,
            )
            store = await stack.enter_async_context(_opened(number, settings, shared, since_s))
        yield store


async def _locked(data: Path, offload: Offload) -> DataDirectory:
    """The open directory. Cancelled: it is closed as soon as the thread has opened it; otherwise nothing would ever close it,
    and this process could not open the container again. Raises DirectoryInUseError, InvalidArgumentError, OSError."""
    opening = asyncio.ensure_future(offload.run(lambda: DataDirectory.open(data)))
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_abandoned)
        raise


def _with_part(shared: UnitsShared) -> tuple[UnitsShared, OffloadPart | None]:
    """The same, with threads that report when this unit no longer uses them. None: the functions run inline."""
    if not isinstance(shared.offload, ThreadOffload):
        return shared, None
    part = shared.offload.part()
    return replace(shared, source=replace(shared.source, offload=part)), part


async def _unlock(directory: DataDirectory, part: OffloadPart | None, data: Path) -> None:
    """Unlock the directory once no thread of the unit works there: a thread whose caller was cancelled may still write.
    Waits for a moment; after that, the directory stays locked until the last thread has ended."""
    if part is None:
        directory.close()
        return
    closed = asyncio.Event()

    def close() -> None:
        directory.close()
        closed.set()

    part.when_idle(close)
    try:
        async with asyncio.timeout(_THREADS_S):
            await closed.wait()
    except TimeoutError:
        _log.warning("directory stays locked until its threads end", extra={"data": str(data), "calls": part.running})


def _close_abandoned(opening: asyncio.Future[DataDirectory]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _settings_of(number: int, shared: UnitsShared) -> EmbeddedSettings:
    """Settings of one unit. Creates its parts of the directory and of tier 2 if they are missing."""
    address, config, base = shared.address, shared.config, shared.base
    return replace(
        base,
        data=base.data / CONTAINERS / str(number),
        log_at=f"bookkeeper://{address.hosts}{address.root}/{CONTAINERS}/{number}?ledgers={config.ledgers}",
        take_over=True,
        tier2=part_of_tier2(config.tier2, f"container-{number}", data=base.data),
        tier2_endpoint=config.endpoint,
    )


def _url_of(settings: EmbeddedSettings) -> str:
    return str(settings.log_at)


async def _record_of(number: int, settings: EmbeddedSettings, shared: UnitsShared) -> ContainerRecord:
    path = parse_log_place(_url_of(settings)).path
    record = await read_record(shared.nodes, path)
    if record is None:
        raise CorruptDataError(
            "the record of the container is missing, so ZooKeeper's data were lost. A store never creates it, because the"
            " container would then be empty: see `penstock cluster doctor --rebuild`",
            container=number,
            node=path,
        )
    return record


async def _prepare(record: ContainerRecord, settings: EmbeddedSettings, shared: UnitsShared) -> bool:
    """Prepare the directory for an opening. Returns whether its metadata is kept."""
    data, offload = settings.data, shared.offload
    mark = await offload.run(lambda: read_mark(data))
    has_metadata = await offload.run((data / "metadata" / "store.db").exists)
    if record.home is not None and is_takeover_needed(record, mark, data, has_metadata=has_metadata):
        await begin_takeover(record, settings, _url_of(settings), offload=offload, rng=shared.source.rng)
        return False
    if mark is None:
        await offload.run(lambda: write_mark(data, LogMark(uid=record.uid, url=_url_of(settings))))
    # The mark is not random: of two stores that open a new container at the same time, each may be the first.
    files = RealFiles(data, offload)
    tier = await locate_tier(settings, files, offload=offload)
    await bind_tier(tier.objects, files, store=record.tier or record.uid, place=str(tier.place), endpoint=tier.endpoint)
    return has_metadata


@asynccontextmanager
async def _opened(
    number: int, settings: EmbeddedSettings, shared: UnitsShared, since_s: float
) -> AsyncIterator[SegmentStore]:
    """The store in a prepared directory. ``since_s``: when the opening began, by the clock of the event loop."""
    loop = asyncio.get_running_loop()
    times_s = [since_s, loop.time()]
    source, offload, url = shared.source, shared.offload, _url_of(settings)
    budgets = shared.memory.settings
    facts = await check_start(settings, offload=offload, containers=shared.config.containers, owned=[number])
    files = RealFiles(settings.data, offload)
    times_s.append(loop.time())
    tier = await reserve_tier(files, place=str(facts.tier.place), endpoint=facts.tier.endpoint, rng=source.rng)
    async with (
        open_sealing(
            settings, files, offload=offload, clock=source.clock, may_write=lambda: shared.in_force.seals_ledgers
        ) as sealing,
        bound_log(
            shared.ledgers,
            shared.nodes,
            parse_log_place(url),
            url,
            settings.data,
            rng=source.rng,
            is_new=facts.is_new,
            epoch_min=facts.epoch_min,
            tier=tier,
            may_create=False,
            sealing=sealing,
        ) as log,
    ):
        times_s.append(loop.time())

        async def load(objects: Objects, keyvalue: SqliteKeyValue) -> None:
            await load_store(log, settings.data, objects, keyvalue, max_lease_ms=budgets.max_lease_ms)

        opened = OpenLog(log=log, publications=log.publications, load=load, owns_tier=True)
        async with open_on_log(opened, settings, files, source, budgets=budgets, owned=[number]) as store:
            times_s.append(loop.time())
            steps = ("prepare_ms", "check_ms", "fence_ms", "recover_ms")
            taken = {
                name: round(1000 * (end - start)) for name, (start, end) in zip(steps, pairwise(times_s), strict=True)
            }
            _log.info("container is open", extra={"container": number, "epoch": log.epoch, **taken})
            yield store
