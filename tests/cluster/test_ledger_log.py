"""The log on ledgers: the laws of the port, and what bookies, coordinator and rivals can do to it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store.container_record import (
    CataloguePosition,
    ContainerRecord,
    ListedLedger,
    decode_record,
    encode_record,
)
from penstock.codec.store.ledger_entries import HEADER, PART, FrameJoiner, decode_header, parts_of
from penstock.model.errors import (
    ContainerOfflineError,
    CorruptDataError,
    NotEnoughBookiesError,
    UnsupportedError,
    VersionTooNewError,
)
from penstock.storage.ledgers.bookkeeper import open_ledgers
from penstock.storage.ledgers.log_record import HeldRecord
from penstock.testing import FakeClock, SeededRng
from penstock.testing.bookkeeper.bookies import ROOT, SimBookKeeper
from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.durable_log import DurableLogLaws, replayed
from tests.cluster.ledger_log_kit import FRAMES, LIMITS, append_all, content, open_log, record_of, run
from tests.cluster.planted_kit import finds

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "ledger-log.md"


class SimulatedLogLaws(DurableLogLaws):
    frame_max = 20_000
    encrypts = True

    def __init__(self) -> None:
        self.world = SimBookKeeper()
        self.openings = 0

    def open(self):
        self.openings += 1
        return open_log(self.world, seed=self.openings, encrypts=self.encrypts)


class PlainLogLaws(SimulatedLogLaws):
    encrypts = False


WIPE = "law_a_wipe_ends_once_what_came_before_is_truncated"


@pytest.mark.parametrize("law", laws(DurableLogLaws))
def test_laws_of_the_log_hold_on_ledgers(law: str) -> None:
    run_conformance(SimulatedLogLaws, law=law)


@pytest.mark.parametrize("law", [law for law in laws(DurableLogLaws) if law != WIPE])
def test_laws_of_the_log_hold_on_ledgers_that_are_not_encrypted(law: str) -> None:
    run_conformance(PlainLogLaws, law=law)


def test_a_wipe_of_a_log_that_is_not_encrypted_is_refused_with_the_reason() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world, encrypts=False) as log:
            await replayed(log)
            for call in (log.wipes_from_ms, log.begin_wipe, log.end_wipe):
                with pytest.raises(UnsupportedError, match="until they compact"):
                    await call()

    run(scenario)


def test_no_frame_is_lost_if_a_bookie_dies_under_load() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            first = asyncio.ensure_future(append_all(log, FRAMES[:30]))
            await asyncio.sleep(0.001)
            world.bookies["bookie-1"].stop()
            assert await first == list(range(1, 31))
            assert await append_all(log, FRAMES[30:]) == list(range(31, 61))
        assert await content(world, seed=2) == FRAMES

    run(scenario)


def test_without_a_quorum_appends_wait_until_bookies_return() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            await log.append([b"before"])
            for name in ("bookie-0", "bookie-1"):
                world.bookies[name].stop()
            waiting = [asyncio.ensure_future(log.append([b"%d" % number])) for number in range(5)]
            await asyncio.sleep(0.2)
            assert not any(one.done() for one in waiting)
            for name in ("bookie-0", "bookie-1"):
                world.bookies[name].start()
            assert await asyncio.gather(*waiting) == [2, 3, 4, 5, 6]
        assert await content(world, seed=2) == [b"before", b"0", b"1", b"2", b"3", b"4"]

    run(scenario)


def test_a_fence_of_autorecovery_does_not_stop_the_owner() -> None:
    """BookKeeper's autorecovery takes the open ledger over: the owner goes on, and nothing is there twice."""

    async def scenario(world: SimBookKeeper) -> None:
        async with (
            open_ledgers(world.nodes, root=ROOT, clock=FakeClock(), rng=SeededRng(9), connect=world.connect) as robot,
            open_log(world) as log,
        ):
            await replayed(log)
            await append_all(log, FRAMES[:3])
            under_way = asyncio.ensure_future(append_all(log, FRAMES[3:40]))
            await asyncio.sleep(0)
            await robot.take_over(record_of(world).ledgers[-1].ledger)
            assert await under_way == list(range(4, 41))
            assert await append_all(log, FRAMES[40:]) == list(range(41, 61))
        assert await content(world, seed=2) == FRAMES

    run(scenario)


@pytest.mark.parametrize("seed", range(6))
def test_every_lost_answer_of_the_coordinator_is_resolved(seed: int) -> None:
    async def scenario(world: SimBookKeeper) -> None:
        rng = SeededRng(seed)
        async with open_log(world) as log:
            await replayed(log)
            world.nodes.loses = lambda _: rng.random() < 0.3
            assert await append_all(log, FRAMES) == list(range(1, 61))
            world.nodes.loses = None
        assert await content(world, seed=2) == FRAMES

    run(scenario)


def test_a_rival_ends_an_owner_that_is_rolling() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as old:
            await replayed(old)
            await old.append([b"kept"])
            world.nodes.is_down = True
            for bookie in world.bookies.values():
                bookie.stop()
                bookie.start()
            waiting = asyncio.ensure_future(old.append([b"zombie"]))
            await asyncio.sleep(0.05)
            world.nodes.is_down = False
            async with open_log(world, seed=2) as new:
                seen = [frame for _, frame in await replayed(new)]
                outcome = (await asyncio.gather(waiting, return_exceptions=True))[0]
                if isinstance(outcome, ContainerOfflineError):
                    assert seen == [b"kept"]
                else:
                    assert (outcome, seen) == (2, [b"kept", b"zombie"])
                await new.append([b"new"])
                with pytest.raises(ContainerOfflineError):
                    await old.append([b"late"])
        assert await content(world, seed=3) == [*seen, b"new"]

    run(scenario)


def test_truncation_deletes_ledgers_and_openings_leave_none_behind() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world) as log:
            await replayed(log)
            for frame in FRAMES:
                last = await log.append([frame])
            before = len(record_of(world).ledgers)
            assert before > 2, "the log has rolled"
            await log.truncate(last)
            assert len(record_of(world).ledgers) == 1
        for seed in range(2, 8):
            assert await content(world, seed=seed) == []
        listed = {one.ledger for one in record_of(world).ledgers}
        assert len(listed) <= 3, "empty ledgers do not pile up"
        kept = [path for path in world.nodes.nodes if "/L0" in path]
        assert len(kept) == len(listed), "no orphans"

    run(scenario)


def test_two_bookies_are_enough_for_two_copies_and_one_is_refused() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        world.bookies["bookie-2"].stop()
        async with open_log(world) as log:
            await replayed(log)
            assert await log.append([b"x"]) == 1
        world.bookies["bookie-1"].stop()
        with pytest.raises(NotEnoughBookiesError, match="start another bookie"):
            async with open_log(SimBookKeeper(1)) as log:
                await replayed(log)

    run(scenario)


def test_memory_in_flight_is_bounded_and_callers_keep_their_order() -> None:
    async def scenario(world: SimBookKeeper) -> None:
        async with open_log(world, limits=replace(LIMITS, in_flight_bytes=10_000)) as log:
            await replayed(log)
            assert await append_all(log, [bytes(3000)] * 30) == list(range(1, 31))

    run(scenario)


@given(frame=st.binary(max_size=300), size=st.integers(17, 80), address=st.integers(1, 1 << 60))
def test_a_frame_is_its_parts_joined_and_a_cut_one_is_dropped(frame: bytes, size: int, address: int) -> None:
    entries = [b"".join(parts) for parts in parts_of(address, frame, entry_max_bytes=size)]
    assert all(len(entry) <= size for entry in entries)
    joiner = FrameJoiner(1, address)
    found = [joiner.add(entry) for entry in entries]
    assert found == [None] * (len(entries) - 1) + [(address, frame)]
    if len(entries) > 1:
        with pytest.raises(CorruptDataError):
            FrameJoiner(1, address).add(entries[1])
    with pytest.raises(CorruptDataError):
        FrameJoiner(1, address + 1).add(entries[0])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_an_error_of_ours(data: bytes) -> None:
    for decode in (decode_record, lambda one: decode_header(one, ledger=1), FrameJoiner(1, 1).add):
        try:
            decode(data)
        except (CorruptDataError, VersionTooNewError):
            continue


def test_a_record_is_read_as_it_was_written() -> None:
    ledgers = (ListedLedger(ledger=7, first=1, last=9), ListedLedger(ledger=8, first=10))
    record = ContainerRecord(uid="u", owner="o", epoch=3, truncated=4, ledgers=ledgers)
    assert decode_record(encode_record(record)) == record
    assert b'"format":1' in encode_record(record), "programs that know no catalogue can read it"
    at = CataloguePosition(run=5 << 32, included=3, batch=9, upto=4, begins=((2, 0), (3, 7)))
    published = replace(record, catalogues=((0, CataloguePosition()), (3, at)), home="h", tier="t")
    assert decode_record(encode_record(published)) == published
    assert published.catalogue(3) == at
    assert published.catalogue(1) is None
    with pytest.raises(VersionTooNewError):
        decode_record(encode_record(published).replace(b'"format":2', b'"format":4'))
    for sealed in (replace(published, plain_ms=0), replace(record, ledgers=(replace(ledgers[1], sealed=True),))):
        assert b'"format":3' in encode_record(sealed), "programs that know no encrypted ledgers change nothing"
        assert decode_record(encode_record(sealed)) == sealed
    with pytest.raises(CorruptDataError, match="not in order"):
        decode_record(encode_record(replace(record, ledgers=ledgers[::-1])))


def test_byte_tables_of_the_document_are_the_layouts_of_the_codec() -> None:
    text = DOCUMENT.read_text()
    letters = {"magic": "4s", "padding": None}
    codes = {1: "B", 2: "H", 8: "Q"}
    for section, layout in (("Header", HEADER), ("Part", PART)):
        rows = re.findall(
            r"^\| (\d+) \| (\d+) \| (.+?) \|$", text.split(f"\n## {section}\n")[1].split("\n## ")[0], re.M
        )
        form, end = ">", 0
        for offset, size, field in rows:
            assert int(offset) == end
            padding = "x" if size == "1" else "xx" if size == "2" else f"{size}x"
            form += letters.get(field, codes.get(int(size))) or padding
            end += int(size)
        assert (form, end) == (layout.format, layout.size)


def test_a_planted_deposition_by_each_fence_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(held: HeldRecord) -> None:
        raise ContainerOfflineError("log was fenced")

    monkeypatch.setattr(HeldRecord, "check", check)
    finds(test_a_fence_of_autorecovery_does_not_stop_the_owner, "log was fenced")
