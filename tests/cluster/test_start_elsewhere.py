"""A machine's disk vanishes at any moment: another directory continues the store with everything acknowledged."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.app.embedded import open_runtime
from penstock.app.replicated import takeover
from penstock.app.replicated.log_place import read_mark
from penstock.app.settings import ACKS, EmbeddedSettings
from penstock.client.store import AsyncStore
from penstock.model.errors import CorruptDataError, InvalidArgumentError, PenstockError
from penstock.segmentstore.repair import load
from penstock.storage.chunks.shared_chunks import SharedChunks
from penstock.storage.ledgers.publications import HeldPublications
from tests.cluster.machines_kit import KEYS, PATH, STREAM, Image, Machines, check, write
from tests.cluster.replicated_kit import URL


async def serve_and_record(machines: Machines) -> None:
    machines.tier.mkdir(exist_ok=True)
    async with machines.opened("first") as (runtime, store):
        await store.create_stream(STREAM, segments=2, create_scope=True)
        await store.create_table("shop/prices", primary_key_bytes=2)
        machines.records = True
        acknowledged = machines.acknowledged
        for number in range(4):
            await write(store, acknowledged, number)
            if number % 2:
                await runtime.segments.flush()
            if number == 1:
                cut = await store.stream(STREAM).tail()
            if number == 2:
                acknowledged.truncated = 20
                await store.stream(STREAM).truncate(cut)
        machines.records = False


async def start_elsewhere(image: Image, path: Path, monkeypatch: pytest.MonkeyPatch, ack: str = "disk") -> None:
    """Another machine, and after it a third one: what the second wrote to tier 2 is complete too."""
    path.mkdir()
    left = Machines(path, image.bookkeeper, image.acknowledged.copy(), ack=ack)
    image.tier.rename(left.tier)
    left.install(monkeypatch)
    for name in ("second", "third"):
        async with left.opened(name, take_over=True) as (runtime, store):
            length = await check(store, left.acknowledged, f"{image.label}, {name}")
            if length > 0 and length % 10 == 0:
                left.acknowledged.events = {key: [b""] * length for key in KEYS}
                await write(store, left.acknowledged, length // 10)
            await runtime.segments.flush()


def run_images(tmp_path: Path, wanted: Callable[[int], bool], ack: str = "disk") -> int:
    """Start elsewhere from each wanted moment. Returns how many moments there were."""
    tmp_path.mkdir(exist_ok=True)
    machines = Machines(tmp_path, wanted=wanted, ack=ack)
    with pytest.MonkeyPatch.context() as monkeypatch:
        machines.install(monkeypatch)
        asyncio.run(serve_and_record(machines))
    assert machines.images
    for number, image in enumerate(machines.images):
        with pytest.MonkeyPatch.context() as monkeypatch:
            asyncio.run(start_elsewhere(image, tmp_path / f"elsewhere-{number}", monkeypatch, ack))
    return machines.moments


def sampled(seed: int, count: int) -> Callable[[int], bool]:
    return frozenset(random.Random(seed).sample(range(1, MOMENTS), count)).__contains__


MOMENTS = 300
"""At most; how many there are depends on how the store's tasks alternate."""


@pytest.mark.parametrize("ack", ACKS)
def test_a_store_whose_disk_vanishes_starts_elsewhere_with_everything_acknowledged(tmp_path: Path, ack: str) -> None:
    moments = run_images(tmp_path, sampled(1, 16), ack)
    assert moments > 100


@pytest.mark.slow
@pytest.mark.parametrize("ack", ACKS)
@pytest.mark.parametrize("share", range(6))
def test_a_store_starts_elsewhere_from_every_moment(tmp_path: Path, share: int, ack: str) -> None:
    run_images(tmp_path, lambda number: number % 6 == share, ack)


# --- planted bugs


def forgets_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def skip(*_: object) -> None:
        return None

    monkeypatch.setattr(load, "_load_batches", skip)


def replays_from_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = HeldPublications.positions
    monkeypatch.setattr(
        HeldPublications,
        "positions",
        lambda self: {index: replace(at, upto=at.upto + 2) for index, at in positions(self).items()},
    )


def publishes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written is deleted without a word to the record."""

    async def publish(self: HeldPublications, container: int, at: object) -> None:
        return None

    monkeypatch.setattr(HeldPublications, "publish", publish)


@pytest.mark.parametrize(
    "bug", [forgets_batches, replays_from_another_address, publishes_nothing], ids=lambda bug: bug.__name__
)
def test_a_planted_bug_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Callable[..., None]) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, PenstockError)):
        run_images(tmp_path, sampled(1, 16))


# --- who may take over


@pytest.mark.parametrize(
    ("path", "beside"), [("store2", "/penstock/store1"), ("elsewhere/store1", "/penstock"), ("a/b/c", "/penstock")]
)
def test_a_mistyped_path_is_refused_and_names_what_is_there(machines: Machines, path: str, beside: str) -> None:
    """With an unused tier 2, it would be an empty store that looks recovered."""
    mistyped = URL.replace("store1", path) if path == "store2" else URL.replace("penstock/store1", path)
    before = dict(machines.bookkeeper.nodes.nodes)
    (machines.path / "unused").mkdir()

    async def start(log_at: str, tier: Path) -> None:
        settings = EmbeddedSettings(data=machines.path / "second", log_at=log_at, tier2=str(tier), take_over=True)
        async with open_runtime(settings) as runtime:
            await check(
                AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng),
                machines.acknowledged,
                "now",
            )

    with pytest.raises(InvalidArgumentError, match="nothing to take over") as caught:
        asyncio.run(start(mistyped, machines.path / "unused"))
    assert beside in str(caught.value)
    assert machines.bookkeeper.nodes.nodes == before
    asyncio.run(start(URL, machines.tier))  # the same directory, with the right path


def test_an_interrupted_takeover_creates_no_log_at_a_mistyped_path(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start(log_at: str) -> None:
        settings = EmbeddedSettings(
            data=machines.path / "second", log_at=log_at, tier2=str(machines.tier), take_over=True
        )
        async with open_runtime(settings):
            pass

    async def ends(*_: object, **__: object) -> None:
        raise OSError("the machine lost its power")

    with monkeypatch.context() as once:
        once.setattr(takeover, "load_published", ends)
        with pytest.raises(OSError, match="lost its power"):
            asyncio.run(start(URL))
    with pytest.raises(CorruptDataError, match="missing in ZooKeeper"):
        asyncio.run(start(URL + "2"))
    assert PATH + "2" not in machines.bookkeeper.nodes.nodes
    asyncio.run(start(URL))


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """A store on a first machine, closed."""
    made = Machines(tmp_path, wanted=lambda number: False)
    made.install(monkeypatch)
    asyncio.run(serve_and_record(made))
    return made


def test_a_new_directory_asks_for_the_take_over(machines: Machines) -> None:
    async def start() -> None:
        async with machines.opened("second"):
            pass

    before = machines.record()
    with pytest.raises(InvalidArgumentError, match=r"belongs to another store|--take-over"):
        asyncio.run(start())
    assert machines.record() == before


def test_the_first_directory_is_refused_afterwards_and_may_take_over_again(machines: Machines) -> None:
    async def there_and_back() -> None:
        async with machines.opened("second", take_over=True) as (_, store):
            await write(store, machines.acknowledged, 4)
        with pytest.raises(InvalidArgumentError, match=r"another copy|another directory"):
            async with machines.opened("first"):
                pass
        async with machines.opened("first", take_over=True) as (_, store):
            assert await check(store, machines.acknowledged, "back") == 50
        async with machines.opened("first", take_over=True) as (_, store):
            assert await check(store, machines.acknowledged, "again") == 50
        with pytest.raises(InvalidArgumentError, match=r"another copy|another directory"):
            async with machines.opened("second"):
                pass

    asyncio.run(there_and_back())
    mark = read_mark(machines.path / "first")
    assert mark is not None
    assert mark.home == machines.record().home
    assert not mark.loading


def test_a_living_owner_that_is_deposed_deletes_nothing(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """It checkpoints after another directory has taken over: the other one finds all that it loaded."""
    deleted: list[SharedChunks] = []
    real = SharedChunks.delete

    async def delete(self: SharedChunks, name: str) -> None:
        deleted.append(self)
        await real(self, name)

    monkeypatch.setattr(SharedChunks, "delete", delete)

    async def rivals() -> None:
        async with machines.opened("first") as (runtime, store):
            await write(store, machines.acknowledged, 4)
            await store.stream(STREAM).truncate(await store.stream(STREAM).tail())
            machines.acknowledged.truncated = 50
            async with machines.opened("second", take_over=True) as (_, second):
                deleted.clear()
                with pytest.raises(PenstockError):
                    await runtime.segments.flush()
                assert isinstance(runtime.segments._parts.chunks, SharedChunks)
                assert runtime.segments._parts.chunks not in deleted
                await check(second, machines.acknowledged, "second")
        async with machines.opened("third", take_over=True) as (_, third):
            await check(third, machines.acknowledged, "third")

    asyncio.run(rivals())


def test_an_old_copy_of_the_metadata_is_refused(machines: Machines) -> None:
    """Its rows lack what was published: frames behind them are gone from the log."""
    shutil.copytree(machines.path / "first" / "metadata", machines.path / "old")

    async def write_more() -> None:
        async with machines.opened("first") as (runtime, store):
            await write(store, machines.acknowledged, 4)
            await runtime.segments.flush()

    async def start() -> None:
        async with machines.opened("first"):
            pass

    asyncio.run(write_more())
    shutil.rmtree(machines.path / "first" / "metadata")
    (machines.path / "old").rename(machines.path / "first" / "metadata")
    before = machines.record().catalogues
    with pytest.raises(CorruptDataError, match="old copy of the directory"):
        asyncio.run(start())
    assert [at.batch for _, at in machines.record().catalogues] == [at.batch for _, at in before]


def test_a_take_over_is_refused_where_it_cannot_give_everything(machines: Machines, tmp_path: Path) -> None:
    async def start(name: str, tier2: Path | None, log_at: str = URL) -> None:
        settings = EmbeddedSettings(
            data=tmp_path / name, log_at=log_at, tier2=None if tier2 is None else str(tier2), take_over=True
        )
        async with open_runtime(settings):
            pass

    before = machines.record()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidArgumentError, match="give the --tier2"):
        asyncio.run(start("second", None))
    with pytest.raises(InvalidArgumentError, match="not the tier 2 of the store"):
        asyncio.run(start("third", tmp_path / "empty"))
    with penstock.open(tmp_path / "other", log_at=f"{URL}-other"):
        pass
    with pytest.raises(InvalidArgumentError, match="belongs to another store"):
        asyncio.run(start("other", machines.tier))
    assert machines.record() == before
    with pytest.raises(InvalidArgumentError, match="only a store whose log is on BookKeeper"):
        EmbeddedSettings(data=tmp_path, take_over=True)
