"""A writer of ours that was silent until the store forgot its number: it continues under a new id, or says that it cannot.

The times are short here. ``tests/segmentstore/test_writer_memory.py`` has the real ones.
"""

from __future__ import annotations

import asyncio

import pytest
from client_world import World, read_all, simulate

from penstock.client.writing import segment_sender
from penstock.core.segments import writer_memory
from penstock.model.errors import WriterForgottenError
from penstock.ports.data.segments import Append, Appended
from penstock.segmentstore import writer_memory as store_memory

KEPT_S = 60
LONG_S = 200.0


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_memory, "BORN_KEPT_MS", KEPT_S * 1000)
    monkeypatch.setattr(store_memory, "LOOK_EVERY_S", 10)


@pytest.fixture
def _never_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a process that was suspended, of which its own clock knows nothing."""
    monkeypatch.setattr(segment_sender, "RENEW_AFTER_S", float("inf"))


async def forgotten(world: World) -> int:
    """Be silent for long. Returns how many containers have forgotten a writer by then."""
    await world.real_segments.flush()
    await asyncio.sleep(LONG_S)
    return sum(container.writers.floor_ms > 0 for container in world.real_segments.containers)


@pytest.mark.parametrize("loss", [0.0, 1e-9])
@pytest.mark.usefixtures("_never_renewed")
def test_a_writer_whose_number_was_forgotten_goes_on(loss: float) -> None:
    async def test(world: World) -> None:
        stream = await world.store.create_stream("a/s", segments=2, create_scope=True)
        async with stream.writer() as writer:
            for number in range(4):
                await writer.write(b"%d" % number, "a")
                await writer.write(b"%d" % number, "b")
                await writer.flush()
                assert await forgotten(world)
        assert sorted(await read_all(stream)) == sorted(2 * [b"%d" % number for number in range(4)])

    simulate(test, loss=loss)


def test_a_writer_takes_a_new_id_before_its_number_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_sender, "RENEW_AFTER_S", KEPT_S / 2)
    refused: list[object] = []
    is_refused = store_memory.WriterMemory.is_refused

    def counted(self, state, writer):
        answer = is_refused(self, state, writer)
        refused.extend([writer] * answer)
        return answer

    monkeypatch.setattr(store_memory.WriterMemory, "is_refused", counted)

    async def test(world: World) -> None:
        stream = await world.store.create_stream("a/s", segments=1, create_scope=True)
        async with stream.writer() as writer:
            ids = set()
            for number in range(6):
                await writer.write(b"%d" % number)
                await writer.flush()
                (sender,) = writer._core._senders.values()
                ids.add(sender.writer)
                await world.real_segments.flush()
                await asyncio.sleep(LONG_S if number % 2 else 1.0)
        assert await read_all(stream) == [b"%d" % number for number in range(6)]
        assert len(ids) == 3
        assert not refused

    simulate(test)


def test_a_client_whose_clock_is_far_behind_takes_the_floor_as_its_birth() -> None:
    async def test(world: World) -> None:
        stream = await world.store.create_stream("a/s", segments=1, create_scope=True)
        async with stream.writer() as writer:
            await writer.write(b"1")
        assert await forgotten(world)
        world.clock.jump_ms = -365 * 86_400_000
        async with stream.writer() as writer:
            await writer.write(b"2")
        assert await read_all(stream) == [b"1", b"2"]

    simulate(test)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("set_up_anew", [False, True])
@pytest.mark.usefixtures("_never_renewed")
def test_a_writer_goes_on_where_its_first_append_since_then_is_refused(sealed: bool, set_up_anew: bool) -> None:
    async def test(world: World) -> None:
        stream = await world.store.create_stream("a/s", segments=1, create_scope=True)
        async with stream.writer(deadline_s=1e6) as writer:
            await writer.write(b"1")
            await writer.flush()
            if sealed:
                await stream.scale(2)
            assert await forgotten(world)
            if set_up_anew:

                async def append(request: Append) -> Appended:
                    # As a remote line does whose connection has ended: it fails its appends as its setup fails.
                    await world.real_segments.setup_append(request.segment, request.writer)
                    return await world.real_segments.append(request)

                world.segments.append = append
            await writer.write(b"2")
            await writer.write(b"3")
            await writer.flush()
        assert sorted(await read_all(world.safe.stream("a/s"))) == [b"1", b"2", b"3"]

    simulate(test, loss=1e-9)


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.usefixtures("_never_renewed")
def test_a_writer_that_cannot_know_what_is_stored_fails_and_stores_nothing_twice(is_stored: bool) -> None:
    async def test(world: World) -> None:
        stream = await world.store.create_stream("a/s", segments=1, create_scope=True)
        writer = stream.writer(deadline_s=1e6)
        await writer.open()
        await writer.write(b"1")
        await writer.flush()
        lossy = world.segments
        lossy.rate = 1.0 if is_stored else 2.0  # Answers are lost, or requests.
        lossy._rng.random = lambda: 0.6  # type: ignore[method-assign]
        await writer.write(b"2")
        await asyncio.sleep(2)
        lossy.rate = 2.0
        assert await forgotten(world)
        lossy.rate = 0.0
        with pytest.raises(WriterForgottenError) as caught:
            await writer.flush()
        assert caught.value.fields["unacked_events"] == 1
        with pytest.raises(WriterForgottenError):
            await writer.close()
        assert await read_all(stream) == ([b"1", b"2"] if is_stored else [b"1"])

    simulate(test, loss=1e-9)
