"""Writers' names that were silent for long: their records leave, and what comes under them later is refused, never repeated."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from controller_world import STREAM, config, opened, stream_bytes, with_stream, write_transaction
from memory_segments import MemorySegments

from penstock.codec.control.streams import BatchRecord, ForgottenRecord
from penstock.controller import keys
from penstock.controller.controller import Controller
from penstock.controller.metadata import overwrite
from penstock.controller.transactions import batches
from penstock.core.streams.batch_memory import NAME_KEPT_MS, NAMES_KEPT, name_digest, names_to_forget
from penstock.model.errors import WriterForgottenError
from penstock.model.queries import QuerySource
from penstock.testing.fakes import FakeClock

DAY_MS = 86_400_000


def kinds(segments: MemorySegments) -> Counter[str]:
    return Counter(key.split(b"/")[0].decode() for key in segments.tables[keys.TABLE].entries)


async def commit(controller: Controller, segments: MemorySegments, writer: str, batch: int, data: bytes) -> bool:
    txn = await write_transaction(controller, segments, data)
    source = QuerySource(query=f"q-{writer}", run="r")
    return await controller.batches.commit(STREAM, writer=writer, batch=batch, transactions=[txn], source=source)


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "NAMES_KEPT", 3)
    monkeypatch.setattr(batches, "FORGET_EVERY", 1)


def test_only_names_that_are_old_and_silent_are_chosen() -> None:
    used = BatchRecord(batch=1, transactions=(), at_ms=0)
    records = [(f"w{number}", number, used) for number in range(NAMES_KEPT + 5)]
    records[1] = ("w1", 1, replace(used, at_ms=1))
    records[2] = ("w2", 2, replace(used, at_ms=None))
    records[3] = ("w3", 3, replace(used, one_job=True))
    random.Random(1).shuffle(records)
    assert names_to_forget(records, now_ms=NAME_KEPT_MS - 1) == []
    assert names_to_forget(records, now_ms=NAME_KEPT_MS) == ["w0", "w4"]
    assert names_to_forget(records, now_ms=NAME_KEPT_MS + 1) == ["w0", "w1", "w4"]
    assert len(names_to_forget(records, now_ms=NAME_KEPT_MS + 1, kept=0)) == NAMES_KEPT + 3


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("restarted", [False, True])
def test_an_old_checkpoint_is_refused_and_no_row_of_it_is_written(restarted: bool) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            for number in range(6):
                assert await commit(controller, segments, f"old-{number}", 0, b"x")
            clock.ms += NAME_KEPT_MS + DAY_MS
            for number in range(6):
                assert await commit(controller, segments, f"new-{number}", 0, b"x")
            assert kinds(segments)["batch"] == 6
            if not restarted:
                await check(controller, segments)
        if restarted:
            async with opened(segments, clock) as controller:
                await check(controller, segments)

    async def check(controller: Controller, segments: MemorySegments) -> None:
        for batch in (0, 1, 7):
            with pytest.raises(WriterForgottenError, match="another writer_id"):
                await commit(controller, segments, "old-0", batch, b"twice")
        with pytest.raises(WriterForgottenError):
            await controller.batches.last(STREAM, writer="old-0")
        source = QuerySource(query="q-old-0", run="r2")
        with pytest.raises(WriterForgottenError):
            await controller.batches.commit(STREAM, writer="old-0", batch=1, transactions=[], source=source)
        assert await controller.batches.last(STREAM, writer="never") is None
        assert await commit(controller, segments, "old-0-again", 0, b"x")
        await controller.sweep()
        data = b"".join((await stream_bytes(controller, segments)).values())
        assert (data.count(b"x"), data.count(b"twice")) == (13, 0)
        await controller.streams.seal(STREAM)
        await controller.streams.delete(STREAM)
        assert kinds(segments)["forgotten"] == kinds(segments)["batch"] == 0
        await controller.streams.create(STREAM, config(1))
        assert await commit(controller, segments, "old-1", 0, b"x"), "another stream of that name knows nobody"

    asyncio.run(work())


@pytest.mark.usefixtures("_few")
def test_a_query_that_lives_is_not_forgotten_even_without_rows() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            assert await commit(controller, segments, "alive", 0, b"x")
            assert await commit(controller, segments, "rows", 0, b"x")
            source = QuerySource(query="q-alive", run="r")
            for number in range(12):
                clock.ms += 20 * DAY_MS
                await controller.batches.commit(
                    STREAM, writer="alive", batch=number + 1, transactions=[], source=source
                )
                assert await commit(controller, segments, "rows", number + 1, b"x")
                assert await commit(controller, segments, f"other-{number}", 0, b"x")
            assert await controller.batches.last(STREAM, writer="alive", source=source) == 0
            assert await commit(controller, segments, "alive", 20, b"x")
            assert await commit(controller, segments, "rows", 20, b"x")
            assert kinds(segments)["batch"] < 12

    asyncio.run(work())


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("jump_ms", [-365 * DAY_MS, 365 * DAY_MS])
def test_a_wall_clock_that_jumps_forgets_no_name(jump_ms: int) -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            for number in range(6):
                assert await commit(controller, segments, f"old-{number}", 0, b"x")
            clock.jump(jump_ms)
            for number in range(6):
                assert await commit(controller, segments, f"new-{number}", 0, b"x")
            for number in range(6):
                source = QuerySource(query=f"q-old-{number}", run="r")
                assert await controller.batches.last(STREAM, writer=f"old-{number}", source=source) == 0

    asyncio.run(work())


@pytest.mark.usefixtures("_few")
@pytest.mark.parametrize("seed", range(4))
def test_random_names_commit_each_batch_once_or_are_refused(seed: int) -> None:
    async def work() -> None:
        segments, clock, rng = MemorySegments(), FakeClock(), random.Random(seed)
        written, refused = 0, 0
        last: dict[str, int] = {}
        async with with_stream(segments, 1, clock) as controller:
            for _ in range(120):
                writer = f"w-{rng.randrange(40)}"
                batch = last.get(writer, -1) + (1 if writer not in last or rng.random() < 0.6 else 0)
                try:
                    done = await commit(controller, segments, writer, batch, b"<%s-%d>" % (writer.encode(), batch))
                except WriterForgottenError:
                    refused += 1
                    continue
                assert done == (batch > last.get(writer, -1))
                written += done
                last[writer] = batch
                clock.ms += rng.randrange(20) * DAY_MS
            await controller.sweep()
            rows = b"".join((await stream_bytes(controller, segments)).values()).split(b"<")[1:]
        assert len(rows) == len(set(rows)) == written
        assert refused > 0

    asyncio.run(work())


def test_digests_survive_their_record_and_collide_with_nothing_near() -> None:
    digests = tuple(sorted(name_digest(f"{UUID(int=number)}/s/t") for number in range(1000)))
    assert len(set(digests)) == 1000
    assert ForgottenRecord.decode(ForgottenRecord(digests=digests).encode()) == ForgottenRecord(digests=digests)


@pytest.mark.usefixtures("_few")
def test_an_unreadable_record_of_digests_refuses_new_names_and_nothing_else() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            assert await commit(controller, segments, "known", 0, b"x")
            key = keys.forgotten_names(STREAM, name_digest("new"))
            put = overwrite(key, ForgottenRecord(digests=()))
            await segments.table_update(keys.TABLE, [replace(put, value=b"{}")])
            with pytest.raises(Exception, match="forgotten names"):
                await commit(controller, segments, "new", 0, b"x")
            assert await commit(controller, segments, "known", 1, b"x")

    asyncio.run(work())


def name_with(byte: int, prefix: str) -> str:
    return next(f"{prefix}-{number}" for number in range(10**5) if name_digest(f"{prefix}-{number}")[0] == byte)


@pytest.mark.usefixtures("_few")
def test_digests_that_cannot_be_read_stop_no_other_name() -> None:
    async def work() -> None:
        segments, clock = MemorySegments(), FakeClock()
        async with with_stream(segments, 1, clock) as controller:
            old = [name_with(7, "a"), "o1", "o2", "o3"]
            for writer in old:
                assert await commit(controller, segments, writer, 0, b"x")
            clock.ms += NAME_KEPT_MS + DAY_MS
            kept = name_with(7, "b")
            assert await commit(controller, segments, kept, 0, b"x")
            entries = segments.tables[keys.TABLE].entries
            key = keys.forgotten_names(STREAM, b"\7")
            entries[key] = (b"rot", entries[key][1])
            for writer in (old[0], name_with(7, "c")):
                with pytest.raises(WriterForgottenError, match="cannot be read"):
                    await commit(controller, segments, writer, 0, b"twice")
            clock.ms += NAME_KEPT_MS + DAY_MS
            others = [name for name in (f"n{number}" for number in range(30)) if name_digest(name)[0] != 7]
            for writer in others:
                assert await commit(controller, segments, writer, 0, b"x")
            # All that are old are forgotten, but the one whose digest has no place.
            assert (
                await controller.batches.last(STREAM, writer=kept, source=QuerySource(query=f"q-{kept}", run="r")) == 0
            )
            assert kinds(segments)["batch"] == len(others) + 1
            assert entries[key][0] == b"rot"
            found = await controller.repair_stream(STREAM)
            assert [item["key"] for item in found["unreadable"]] == [key.decode()]

    asyncio.run(work())
