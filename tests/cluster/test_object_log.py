"""The log in tier 2: the laws of its ports, two owners at once, late writes, and planted bugs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest

from penstock.model.errors import AlreadyExistsError, CorruptDataError, PenstockError, UnavailableError
from penstock.storage.ledgers.ledger_log import open_ledger_log
from penstock.storage.machine.offload import ThreadOffload
from penstock.storage.object_log.directory import DirectoryObjects, DirectoryRecord
from penstock.storage.object_log.ledgers import ObjectLedgers, open_object_ledgers
from penstock.storage.object_log.writer import ObjectWriter
from penstock.testing import FakeClock, SeededRng
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.durable_log import DurableLogLaws, replayed
from penstock.testing.conformance.ledgers import LedgerLaws
from tests.cluster.object_log_kit import LIMITS, OBJECTS, RECORD, WildBucket, open_log
from tests.cluster.virtual_time import run_virtually


class BucketLedgerLaws(LedgerLaws):
    def __init__(self) -> None:
        self.bucket = WildBucket(delay_s=0.001)
        self.clients = 0

    def open(self):
        self.clients += 1
        return open_object_ledgers(
            self.bucket.client(), clock=self.bucket.clock, rng=SeededRng(self.clients), limits=OBJECTS
        )


class BucketLogLaws(DurableLogLaws):
    frame_max = 20_000

    def __init__(self) -> None:
        self.bucket = WildBucket(delay_s=0.001)
        self.openings = 0

    def open(self):
        self.openings += 1
        return open_log(self.bucket, seed=self.openings)


@pytest.fixture
def directory_laws(tmp_path: Path) -> type[DurableLogLaws]:
    class DirectoryLogLaws(DurableLogLaws):
        frame_max = 20_000

        def __init__(self) -> None:
            self.bucket = WildBucket()
            self.openings = 0

        @asynccontextmanager
        async def open(self):
            self.openings += 1
            rng = SeededRng(self.openings)
            async with (
                ThreadOffload() as offload,
                open_object_ledgers(
                    DirectoryObjects(tmp_path, offload, rng=rng, check=mounted),
                    clock=FakeClock(),
                    rng=rng,
                    limits=OBJECTS,
                ) as ledgers,
                open_ledger_log(
                    ledgers,
                    DirectoryRecord(tmp_path, offload, rng=rng, check=mounted),
                    path=RECORD,
                    rng=rng,
                    limits=LIMITS,
                    sealing=self.bucket.sealing(),
                ) as log,
            ):
                yield log

    return DirectoryLogLaws


async def mounted() -> None:
    """The directory is there."""


@pytest.mark.parametrize("law", laws(LedgerLaws))
def test_laws_of_ledgers_hold_on_objects(law: str) -> None:
    run_conformance(BucketLedgerLaws, law=law)


@pytest.mark.parametrize("law", laws(DurableLogLaws))
def test_laws_of_the_log_hold_on_objects(law: str) -> None:
    run_conformance(BucketLogLaws, law=law)


@pytest.mark.parametrize("law", laws(DurableLogLaws))
def test_laws_of_the_log_hold_in_a_directory(law: str, directory_laws: type[DurableLogLaws]) -> None:
    run_conformance(directory_laws, law=law)


# --- several owners, late writes, lost answers


async def own(bucket: WildBucket, seed: int, life_s: float, acknowledged: dict[int, bytes]) -> None:
    """An owner that appends until it is deposed, or for ``life_s`` seconds. Then it is gone, whatever is under way."""
    random = Random(seed)

    async def serve() -> None:
        before = dict(acknowledged)
        async with open_log(bucket, seed=seed) as log:
            known = dict(await replayed(log))
            for address, frame in before.items():
                assert known.get(address) == frame, f"acknowledged frame {address} is lost or changed"

            async def append(number: int) -> None:
                frame = b"%d.%d." % (seed, number) * random.randrange(1, 400)
                address = await log.append([frame])
                assert acknowledged.get(address, frame) == frame, f"address {address} has two frames"
                acknowledged[address] = frame

            for number in range(200):
                await asyncio.gather(*(append(10 * number + part) for part in range(random.randrange(1, 6))))
                await asyncio.sleep(random.random() * 0.02)

    task = asyncio.ensure_future(serve())
    await asyncio.wait({task}, timeout=life_s)
    task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    if isinstance(result, Exception) and not isinstance(result, PenstockError):
        raise result


async def rivalry(seed: int) -> None:
    """Owners that overlap, one after another; a quiet one at the end reads what was acknowledged."""
    random = Random(seed)
    bucket = WildBucket(seed, chaos=random.choice((0.0, 0.02, 0.1)), delay_s=random.choice((0.005, 0.02)))
    acknowledged: dict[int, bytes] = {}
    owners = []
    for number in range(4):
        life_s = random.random() * 1.5
        owners.append(asyncio.ensure_future(own(bucket, 10 * seed + number, life_s, acknowledged)))
        await asyncio.sleep(random.random() * 0.6)
    await asyncio.gather(*owners)
    bucket.chaos = 0.0
    async with open_log(bucket, seed=10 * seed + 9) as log:
        found = dict(await replayed(log))
    for address, frame in acknowledged.items():
        assert found.get(address) == frame, f"acknowledged frame {address} is lost or changed"
    assert list(found) == list(range(1, len(found) + 1))
    async with open_log(bucket, seed=10 * seed + 8) as log:
        assert dict(await replayed(log)) == found, "two openings read different logs"


@pytest.mark.parametrize("seed", range(12))
def test_nothing_acknowledged_is_lost_between_rivals(seed: int) -> None:
    run_virtually(rivalry(seed))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_nothing_acknowledged_is_lost_between_many_rivals(block: int) -> None:
    for seed in range(100 + 40 * block, 140 + 40 * block):
        run_virtually(rivalry(seed))


# --- planted bugs


def acknowledges_with_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that is stored counts, whatever is before it."""

    def acknowledge(self: ObjectWriter) -> None:
        for write in [one for one in self._writes if one.is_stored]:
            self._writes.remove(write)
            for entry in write.entries:
                if not entry.done.done():
                    entry.done.set_result(entry.number)

    monkeypatch.setattr(ObjectWriter, "_acknowledge", acknowledge)


def takes_over_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objects that are there are the ledger, and the writer is not fenced."""

    async def end(self: ObjectLedgers, ledger: int, number: int, last: int) -> int:
        return last

    monkeypatch.setattr(ObjectLedgers, "_end", end)


def takes_silence_for_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown outcome counts as stored."""

    async def until_stored(self: ObjectWriter, name: str, data: bytes) -> None:
        with suppress(AlreadyExistsError, UnavailableError):
            await self._objects.create_new(name, data)

    monkeypatch.setattr(ObjectWriter, "_until_stored", until_stored)


def takes_every_object_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is taken counts as stored, whatever its bytes are."""

    async def has(self: ObjectWriter, name: str, data: bytes) -> bool:
        return True

    monkeypatch.setattr(ObjectWriter, "_has", has)


@pytest.mark.parametrize(
    "bug",
    [acknowledges_with_a_gap, takes_over_without_an_end, takes_silence_for_success, takes_every_object_for_its_own],
)
def test_planted_bugs_are_found_within_twenty_seeds(bug: Callable[[pytest.MonkeyPatch], None]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        bug(monkeypatch)
        for seed in range(20):
            try:
                run_virtually(rivalry(seed))
            except (AssertionError, CorruptDataError) as error:
                found = str(error)
                break
        else:
            pytest.fail("no seed finds the bug")
    signs = ("acknowledged frame", "two frames", "different logs", "leave a gap", "does not follow")
    assert any(sign in found for sign in signs), found
