"""Records made again from tier 2 and the ledgers: nothing acknowledged is lost while the ledgers are there, and otherwise
what is left is a beginning of it that goes on."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.app.cluster.operations.rebuild import RebuildReport, Sources, rebuild_nodes
from penstock.app.cluster.unit import UnitsShared, open_unit
from penstock.codec.ledger_metadata import ledger_path
from penstock.codec.store.catalogue import Kind, ObjectName
from penstock.codec.store.cluster_nodes import (
    CONFIG,
    CONTAINERS,
    FEATURES,
    INCARNATIONS,
    REQUESTS,
    RESTORED,
    STORES,
    TERM,
    ClusterConfig,
    Features,
    Restored,
    Term,
    decode_node,
    encode_node,
)
from penstock.codec.store.container_record import CataloguePosition, ContainerRecord
from penstock.codec.store.ledger_keys import DIRECTORY, encode_marker
from penstock.core.cluster.levels import LEVEL
from penstock.core.cluster.ownership import counted_objects, frozen
from penstock.core.cluster.rebuilding import LedgerExtent, chain, earlier, positions
from penstock.model.errors import (
    ConflictError,
    CorruptDataError,
    InvalidArgumentError,
    PenstockError,
    UnavailableError,
    VersionTooNewError,
)
from penstock.model.ledgers import LedgerSpec
from penstock.ports.objects import Objects
from penstock.segmentstore.store import SegmentStore
from penstock.storage.ledgers.beginnings import LOG_LABEL
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.inspection import open_inspection
from penstock.storage.ledgers.metadata import LedgerNodes, closed_at
from penstock.storage.ledgers.writer import BookKeeperWriter
from penstock.storage.machine.clock import RealClock
from penstock.storage.machine.files import RealFiles
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.memory.memory_coordination import MemoryCoordinator
from penstock.storage.objects.file_objects import FileObjects
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from tests.cluster.damage_kit import put
from tests.cluster.store_node_kit import MemoryCluster, numbers, write

REASON = "the disks of ZooKeeper are lost"


class Killed(OSError):
    """The process ends without a checkpoint."""


async def has(store: SegmentStore, segment: str) -> bool:
    return bool(await store.infos([segment]))


async def serve(
    shared: UnitsShared, number: int, segment: str, events: Sequence[int], *, kill: bool = False, flush: bool = False
) -> list[int]:
    """Open the container, append the events, and return all that it has."""
    found: list[int] = []
    try:
        async with open_unit(number, shared) as store:
            if not await has(store, segment):
                await store.create_segment(segment)
            half = len(events) // 2
            await write(store, segment, events[:half])
            if flush:
                await store.flush()
            await write(store, segment, events[half:])
            found = await numbers(store, segment)
            if kill:
                raise Killed
    except Killed:
        pass
    return found


def lose(cluster: MemoryCluster, *, ledgers: bool = False) -> None:
    """What ZooKeeper had of the cluster; with ``ledgers``, what BookKeeper had there too."""
    nodes = cluster.bookkeeper.nodes.nodes
    for path in list(nodes):
        is_ledger = path.startswith(f"{ROOT}/") and path[len(ROOT) + 1].isdigit()
        if path.startswith("/penstock/") or (ledgers and is_ledger):
            del nodes[path]


async def rebuild(
    cluster: MemoryCluster,
    *,
    accept_loss: bool = False,
    coordinator: MemoryCoordinator | None = None,
    config: ClusterConfig | None = None,
) -> RebuildReport:
    """Rebuild in an empty coordinator; the new records are those that units use from now on."""
    coordinator = coordinator or MemoryCoordinator()
    session = coordinator.open()
    world = cluster.bookkeeper
    async with (
        ThreadOffload(threads=2) as offload,
        open_ledgers(world.nodes, root=ROOT, clock=RealClock(), rng=cluster.rng, connect=world.connect) as ledgers,
        open_inspection(world.nodes, root=ROOT, connect=world.connect) as inspection,
    ):

        async def part(number: int) -> Objects:
            place = cluster.path / "tier2" / f"container-{number}"
            place.mkdir(exist_ok=True)
            return FileObjects(RealFiles(place, offload))

        report = await rebuild_nodes(
            session,
            config or cluster.config,
            Sources(ledgers=ledgers, inspection=inspection, part=part),
            accept_loss=accept_loss,
            reason=REASON,
            clock=RealClock(),
            rng=cluster.rng,
        )
        if report.applied:
            for number in range(cluster.containers):
                data = (await session.read(f"{CONTAINERS}/{number}")).data
                cluster.bookkeeper.nodes.nodes[cluster.record_path(number)] = (data, 0)
    return report


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
def test_nothing_is_lost_while_the_ledgers_are_there(tmp_path: Path, seed: int) -> None:
    """After any run of owners, with and without checkpoints, and again and again."""
    rng = random.Random(seed)
    cluster = MemoryCluster(tmp_path, containers=2)
    segment = cluster.segment_of(1)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            written = 0
            for _ in range(3):
                for _ in range(rng.randrange(1, 4)):
                    count = rng.randrange(0, 40)
                    events = range(written, written + count)
                    options = {"kill": rng.random() < 0.7, "flush": rng.random() < 0.5}
                    found = await serve(rng.choice([a, b]), 1, segment, events, **options)
                    written += count
                    assert found == list(range(written))
                before = cluster.record(1)
                lose(cluster)
                report = await rebuild(cluster)
                assert [one.state for one in report.containers] == ["new", "complete"]
                after = cluster.record(1)
                assert after.epoch > before.epoch
                assert after.uid == before.uid

    asyncio.run(main())


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 40))])
def test_without_ledgers_a_beginning_is_left_and_goes_on(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    cluster = MemoryCluster(tmp_path, containers=2)
    segment = cluster.segment_of(1)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            known: list[int] = []
            following = 0
            for _ in range(3):
                for _ in range(rng.randrange(1, 4)):
                    count = rng.randrange(1, 40)
                    events = range(following, following + count)
                    options = {"kill": rng.random() < 0.7, "flush": rng.random() < 0.5}
                    found = await serve(rng.choice([a, b]), 1, segment, events, **options)
                    following += count
                    assert found == [*known, *events], "once the log goes on, nothing more is lost"
                    known = found
                lose(cluster, ledgers=True)
                refused = await rebuild(cluster)
                assert not refused.applied
                assert not refused.is_complete
                report = await rebuild(cluster, accept_loss=True)
                assert [one.state for one in report.containers] == ["new", "tier2"]
                left = await serve(a, 1, segment, [], kill=rng.random() < 0.5)
                assert left == known[: len(left)]
                known = left

    asyncio.run(main())


def test_what_was_flushed_before_a_clean_end_is_all_there_without_ledgers(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    segment = cluster.segment_of(1)

    async def main() -> None:
        async with cluster.shared("a") as a:
            async with open_unit(1, a) as store:
                await store.create_segment(segment)
                await write(store, segment, range(20))
                await store.flush()
            lose(cluster, ledgers=True)
            (_, one) = (await rebuild(cluster, accept_loss=True)).containers
            assert (one.lost_bytes, one.missing_chunks) == (0, 0)
            assert one.as_of_ms is not None
            assert await serve(a, 1, segment, range(20, 30)) == list(range(30))

    asyncio.run(main())


@pytest.mark.parametrize("flushed", [False, True])
def test_a_log_that_lacks_a_ledger_goes_on_before_the_gap_and_what_is_behind_it_never_comes_back(
    tmp_path: Path, flushed: bool
) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    segment = cluster.segment_of(1)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            if flushed:
                await serve(a, 1, segment, [], flush=True)
            for number in range(3):
                await serve(b, 1, segment, range(5 * number, 5 * number + 5), kill=True)
            first, second, third = cluster.record(1).ledgers[-3:]
            del cluster.bookkeeper.nodes.nodes[f"{ROOT}/{ledger_path(second.ledger)}"]
            lose(cluster)
            (_, refused) = (await rebuild(cluster)).containers
            assert refused.state == "cut"
            assert refused.unreachable_bytes > 0
            (_, cut) = (await rebuild(cluster, accept_loss=True)).containers
            assert cut == refused
            ledgers = [one.ledger for one in cluster.record(1).ledgers]
            assert first.ledger in ledgers
            assert third.ledger not in ledgers
            assert await serve(a, 1, segment, range(70, 75), kill=True) == [*range(5), *range(70, 75)]
            lose(cluster)
            (_, again) = (await rebuild(cluster)).containers
            assert (again.state, again.unreachable_bytes) == ("complete", 0)
            assert await serve(b, 1, segment, []) == [*range(5), *range(70, 75)]

    asyncio.run(main())


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_ledger_whose_creator_died_before_its_header_stops_no_rebuild(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    segment = cluster.segment_of(1)

    async def die(self: BookKeeperWriter, header: bytes) -> None:
        raise Killed

    async def create(world: SimBookKeeper, spec: LedgerSpec) -> None:
        async with open_ledgers(
            world.nodes, root=ROOT, clock=RealClock(), rng=cluster.rng, connect=world.connect
        ) as ledgers:
            await ledgers.create(spec, b"")

    async def main() -> None:
        async with cluster.shared("a") as a:
            await serve(a, 1, segment, range(5), kill=True)
            spec = LedgerSpec(labels=((LOG_LABEL, cluster.record(1).uid.encode()),))
            with monkeypatch.context() as patched:
                patched.setattr(BookKeeperWriter, "add_header", die)
                with pytest.raises(Killed):
                    await create(cluster.bookkeeper, spec)
            lose(cluster)
            stopped = [cluster.bookkeeper.bookies[name] for name in ("bookie-0", "bookie-1")]
            for bookie in stopped:
                bookie.stop()
            with pytest.raises(UnavailableError):
                await rebuild(cluster)
            for bookie in stopped:
                bookie.start()
            if is_closed:  # by BookKeeper's own recovery
                nodes = LedgerNodes(cluster.bookkeeper.nodes, ROOT)
                ledger = max(await nodes.ledgers())
                metadata, version = await nodes.read(ledger)
                await nodes.replace(ledger, closed_at(metadata, last=-1, length_bytes=0), version)
            report = await rebuild(cluster)
            assert [one.state for one in report.containers] == ["new", "complete"]
            assert await serve(a, 1, segment, [5]) == [*range(6)]

    asyncio.run(main())


@pytest.mark.parametrize("left", [None, encode_marker(1), b"damaged"])
def test_frames_whose_key_is_gone_are_reported_as_lost(tmp_path: Path, left: bytes | None) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    segment = cluster.segment_of(1)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            await serve(a, 1, segment, range(5), kill=True)
            await serve(b, 1, segment, range(5, 9), kill=True)
            epoch = cluster.record(1).epoch
            keys = list((tmp_path / "tier2" / "container-1" / DIRECTORY).glob(f"*/{epoch:016x}-*"))
            assert keys
            for path in keys:
                path.unlink()
                if left is not None:
                    path.write_bytes(left)
            lose(cluster)
            report = await rebuild(cluster)
            assert not report.applied
            assert [one.state for one in report.containers] == ["new", "cut"]
            assert report.containers[1].unreachable_bytes > 0
            assert (await rebuild(cluster, accept_loss=True)).applied
            assert await serve(a, 1, segment, [70, 71], kill=True) == [*range(5), 70, 71]
            lose(cluster)
            (_, again) = (await rebuild(cluster)).containers
            assert (again.state, again.unreachable_bytes) == ("complete", 0)

    asyncio.run(main())


def test_a_ledger_that_was_wiped_and_not_deleted_is_no_loss() -> None:
    def extent(ledger: int, first: int, last: int, *, is_readable: bool = True) -> LedgerExtent:
        count = last - first + 1
        return LedgerExtent(
            ledger=ledger,
            epoch=1,
            begun=first,
            first=first,
            last=last,
            last_entry=count,
            size_bytes=count,
            sealed=True,
            is_readable=is_readable,
        )

    wiped = extent(1, 1, 10, is_readable=False)
    for later in (extent(2, 11, 10), extent(2, 11, 15)):
        found = chain(10, [wiped, later], epoch=1)
        assert (found.reached, found.unusable_bytes, found.is_complete) == (later.last, 0, True)
        assert all(one.ledger == 2 for one in found.ledgers)
    for following in ([], [extent(2, 11, 10)], [extent(2, 11, 15)]):
        lost = chain(9, [wiped, *following], epoch=1)
        assert (lost.reached, lost.is_complete) == (9, False), "tier 2 lacks a frame"


def test_an_earlier_owner_acknowledges_nothing_more(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    segment = cluster.segment_of(1)

    async def main() -> None:
        async with cluster.shared("a") as a, cluster.shared("b") as b:
            found: list[list[int]] = []

            async def outlive() -> None:
                async with open_unit(1, a) as store:
                    await store.create_segment(segment)
                    await write(store, segment, range(5))
                    lose(cluster)
                    await rebuild(cluster)
                    found.append(await serve(b, 1, segment, range(5, 7)))
                    async with asyncio.timeout(5):
                        await write(store, segment, range(90, 95))

            with pytest.raises((PenstockError, TimeoutError)):
                await outlive()
            assert found == [list(range(7))]
            assert await serve(b, 1, segment, range(7, 9)) == list(range(9))

    asyncio.run(main())


def test_the_nodes_are_those_of_a_new_cluster_with_a_higher_term(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    coordinator = MemoryCoordinator()

    async def main() -> None:
        session = coordinator.open()
        async with cluster.shared("a") as a:
            await serve(a, 1, cluster.segment_of(1), range(5), kill=True)
        lose(cluster, ledgers=True)
        await rebuild(cluster, accept_loss=True, coordinator=coordinator)
        config = decode_node(ClusterConfig, (await session.read(CONFIG)).data)
        assert list(await session.members(INCARNATIONS)) == [config.incarnation]
        assert decode_node(Term, (await session.read(TERM)).data).term > 1_000_000
        assert decode_node(Restored, (await session.read(RESTORED)).data).reason == REASON
        # A repetition changes nothing, and a damaged node is made again without touching the records.
        assert not (await rebuild(cluster, coordinator=coordinator)).applied
        records = [(await session.read(f"{CONTAINERS}/{number}")).data for number in range(2)]
        await put(coordinator, REQUESTS, b"{")
        assert (await rebuild(cluster, coordinator=coordinator)).applied
        assert [(await session.read(f"{CONTAINERS}/{number}")).data for number in range(2)] == records
        assert list(await session.members(INCARNATIONS)) != [config.incarnation], "who knew the earlier ones ends"

    asyncio.run(main())


def test_one_damaged_record_is_made_again_and_the_others_stay(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    coordinator = MemoryCoordinator()

    async def main() -> None:
        session = coordinator.open()
        async with cluster.shared("a") as a:
            for number in range(2):
                await serve(a, number, cluster.segment_of(number), range(5), kill=True)
            lose(cluster)
            await rebuild(cluster, coordinator=coordinator)
            other = (await session.read(f"{CONTAINERS}/0")).data
            await put(coordinator, f"{CONTAINERS}/1", b"{")
            report = await rebuild(cluster, coordinator=coordinator)
            assert [(one.container, one.state) for one in report.containers] == [(1, "complete")]
            assert (await session.read(f"{CONTAINERS}/0")).data == other
            assert await serve(a, 1, cluster.segment_of(1), range(5, 9)) == list(range(9))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("node", "data"),
    [
        (f"{CONTAINERS}/0", b'{"format": 99}'),
        (CONFIG, b'{"format": 99}'),
        (REQUESTS, b'{"format": 99}'),
        (TERM, b'{"format": 99}'),
        (FEATURES, b'{"format": 99}'),
        (FEATURES, encode_node(Features(level=LEVEL + 1))),
    ],
    ids=["record", "config", "requests", "term", "features", "level"],
)
def test_nodes_of_a_newer_version_are_neither_lost_nor_damaged(tmp_path: Path, node: str, data: bytes) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    coordinator = MemoryCoordinator()

    async def main() -> None:
        session = coordinator.open()
        async with cluster.shared("a") as a:
            for number in range(2):
                await serve(a, number, cluster.segment_of(number), range(5), kill=True)
            lose(cluster)
            await rebuild(cluster, coordinator=coordinator)
            await put(coordinator, node, data)
            await put(coordinator, f"{CONTAINERS}/1", b"{")
            with pytest.raises(VersionTooNewError, match="newer version") as refused:
                await rebuild(cluster, coordinator=coordinator)
            assert refused.value.fields["nodes"] == node
            assert (await session.read(node)).data == data
            assert (await session.read(f"{CONTAINERS}/1")).data == b"{"
            await put(coordinator, node, None)
            assert (await rebuild(cluster, coordinator=coordinator)).applied

    asyncio.run(main())


def test_a_rebuild_is_refused_while_a_process_runs_and_for_other_settings(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)
    coordinator = MemoryCoordinator()

    async def main() -> None:
        lose(cluster)
        await rebuild(cluster, coordinator=coordinator)
        with pytest.raises(InvalidArgumentError, match="other settings"):
            await rebuild(
                cluster,
                coordinator=coordinator,
                config=ClusterConfig(cluster="c2", containers=2, ledgers=ROOT, tier2=cluster.config.tier2),
            )
        await coordinator.open().register(f"{STORES}/a", b"")
        with pytest.raises(ConflictError, match="stop all stores and controllers"):
            await rebuild(cluster, coordinator=coordinator)

    asyncio.run(main())


def test_a_refused_rebuild_has_written_nothing_to_tier_2(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)

    def stored() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.glob("tier2/**/*") if path.is_file()}

    async def main() -> None:
        async with cluster.shared("a") as a:
            for number in range(2):
                await serve(a, number, cluster.segment_of(number), range(9), kill=True, flush=True)
            nodes = cluster.bookkeeper.nodes.nodes
            ledgers = {path: node for path, node in nodes.items() if path.startswith(f"{ROOT}/")}
            sound = stored()
            lose(cluster, ledgers=True)
            for path in (tmp_path / "tier2" / "container-1" / "catalogue").rglob("s-*"):
                path.write_bytes(b"damaged")
            before = stored()
            with pytest.raises(CorruptDataError):
                await rebuild(cluster, accept_loss=True)
            assert stored() == before
            nodes |= ledgers  # from a backup
            for name, data in sound.items():
                Path(name).write_bytes(data)
            assert (await rebuild(cluster)).is_complete
            for number in range(2):
                assert await serve(a, number, cluster.segment_of(number), []) == [*range(9)]

    asyncio.run(main())


def test_a_damaged_catalogue_is_never_replaced_by_an_empty_container(tmp_path: Path) -> None:
    cluster = MemoryCluster(tmp_path, containers=2)

    async def main() -> None:
        async with cluster.shared("a") as a:
            await serve(a, 1, cluster.segment_of(1), range(5))
        for file in (tmp_path / "tier2" / "container-1" / "catalogue").rglob("s-*"):
            file.write_bytes(b"damaged")
        lose(cluster, ledgers=True)
        with pytest.raises(CorruptDataError, match="no snapshot is complete"):
            await rebuild(cluster, accept_loss=True)

    asyncio.run(main())


# --- the rules


def catalogue(draw: st.DrawFn) -> tuple[list[ObjectName], CataloguePosition]:
    """Objects of a catalogue that owners have written, some after they were deposed, and the published position."""
    names: list[ObjectName] = []
    at = CataloguePosition()
    record = ContainerRecord(uid="u")
    runs = 0
    for epoch in range(1, draw(st.integers(1, 4)) + 1):
        record = frozen(record, owner=str(epoch))
        at = record.catalogue(1) or CataloguePosition(begins=((epoch, 0),))
        batch = at.batch
        if at.run == 0 or draw(st.booleans()):
            runs += 1
            run = epoch << 32 | runs
            names.append(ObjectName(kind=Kind.SNAPSHOT, container=1, run=run, first=batch, last=batch, end=True))
            at = CataloguePosition(run=run, included=batch, batch=batch, begins=at.begins)
        for _ in range(draw(st.integers(0, 3))):
            runs += 1
            size = draw(st.integers(1, 3))
            names.append(
                ObjectName(kind=Kind.JOURNAL, container=1, run=epoch << 32 | runs, first=batch + 1, last=batch + size)
            )
            batch += size
        published = draw(st.integers(at.batch, batch))
        at = CataloguePosition(run=at.run, included=at.included, batch=published, begins=at.begins)
        record = ContainerRecord(uid="u", epoch=epoch, owner=str(epoch), catalogues=((1, at),))
    return names, at


@settings(max_examples=300)
@given(st.data())
def test_a_position_found_again_has_all_that_was_published_and_nothing_void(data: st.DataObject) -> None:
    names, published = catalogue(data.draw)
    found = next(positions(data.draw(st.permutations(names))))
    last_epoch = published.begins[-1][0] if published.begins else 0
    assert found.batch >= published.batch
    assert found.run >= published.run
    wanted = {
        (name.epoch, batch) for name in counted_objects(names, published) for batch in range(name.first, name.last + 1)
    }
    counted = {
        (name.epoch, batch) for name in counted_objects(names, found) for batch in range(name.first, name.last + 1)
    }
    for epoch, batch in counted:
        # Beyond what was published, only what no later owner has replaced.
        later = [one for one in names if one.kind is Kind.JOURNAL and one.epoch > epoch and one.first <= batch]
        assert not later
    if found.included == published.included and found.run == published.run:
        by_batch = {batch: epoch for epoch, batch in counted}
        assert all(by_batch[batch] == epoch for epoch, batch in wanted if epoch == last_epoch)
    batches = [batch for _, batch in counted if batch > found.included]
    assert sorted(batches) == list(range(found.included + 1, found.batch + 1)), "each batch once, and none is missing"
    step = earlier(found)
    assert step is None or step.batch == found.batch - 1


def journal(epoch: int, first: int, last: int) -> ObjectName:
    return ObjectName(kind=Kind.JOURNAL, container=1, run=epoch << 32 | first, first=first, last=last)


def snapshot(epoch: int, first: int, last: int) -> ObjectName:
    return ObjectName(kind=Kind.SNAPSHOT, container=1, run=epoch << 32, first=first, last=last, end=True)


def test_what_a_deposed_owner_has_written_is_void_once_a_later_one_has_written() -> None:
    start, *written = [snapshot(1, 0, 0), journal(1, 1, 2), journal(1, 3, 6)]
    (alone,) = positions([start, *written])
    assert (alone.batch, alone.begins) == (6, ((1, 0),))
    later = journal(2, 3, 4)
    (found,) = positions([start, *written, later])
    assert (found.batch, found.begins) == (4, ((1, 0), (2, 2)))
    # So is a snapshot of the deposed owner, and one that needs batches that are gone.
    assert list(positions([start, *written, later, snapshot(1, 5, 5), snapshot(2, 4, 9)])) == [found]
    assert next(positions([start, *written, later, snapshot(2, 4, 4)])).run == 2 << 32
    # Without the batches between, the position is before the gap.
    (cut,) = positions([start, written[0], journal(3, 9, 9)])
    assert cut.batch == 2


@given(st.data())
def test_a_chain_has_no_gap_and_is_complete_only_with_the_newest_ledger(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    extents, following = [], 1
    for number, size in enumerate(sizes):
        last = following + size - 1
        extents.append(
            LedgerExtent(
                ledger=number,
                epoch=number + 1,
                begun=following,
                first=following,
                last=last,
                last_entry=size,
                size_bytes=size,
            )
        )
        following += size
    end = following - 1
    upto = data.draw(st.integers(0, end))
    kept = data.draw(st.lists(st.sampled_from(extents), unique=True)) if data.draw(st.booleans()) else extents
    found = chain(upto, kept, epoch=len(sizes))
    lost = [one for one in extents if one not in kept]
    assert upto <= found.reached <= end
    firsts = [one.first for one in found.ledgers]
    assert firsts == sorted(firsts)
    by_ledger = {one.ledger: one for one in extents}
    addresses = [
        at for one in found.ledgers for at in range(by_ledger[one.ledger].first, by_ledger[one.ledger].last + 1)
    ]
    assert addresses == list(range(found.first, found.reached + 1)) or not addresses
    if not lost:
        assert found.is_complete
        assert found.reached == end
    if any(one.last > upto and one.last >= one.first for one in lost) or extents[-1] in lost:
        assert not found.is_complete
    assert not (found.is_complete and found.reached < end)


def test_ledgers_behind_a_gap_that_a_later_owner_has_not_seen_are_void() -> None:
    def extent(ledger: int, epoch: int, first: int, last: int) -> LedgerExtent:
        return LedgerExtent(
            ledger=ledger, epoch=epoch, begun=first, first=first, last=last, last_entry=last - first + 1, size_bytes=1
        )

    old = [extent(1, 1, 1, 10), extent(3, 3, 21, 30)]
    cut = chain(5, old, epoch=3)
    assert (cut.reached, cut.unusable_bytes, cut.is_complete) == (10, 1, False)
    after = chain(5, [*old, extent(9, 9, 11, 12)], epoch=9)
    assert [one.ledger for one in after.ledgers] == [1, 9]
    assert (after.reached, after.is_complete) == (12, True)
