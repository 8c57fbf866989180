"""Where segments are: asked of the controller as seldom as may be, and never wrong for long."""

from __future__ import annotations

import asyncio

from wire_peers import remote, run, stage

from penstock.app.telemetry import Counters
from penstock.model.errors import ContainerOfflineError
from penstock.net.dial.segments import DialLimits, RemoteSegments
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.ports.control.layout import Endpoint
from penstock.ports.data.segments import NO_EVENT, Append
from penstock.storage.machine.rng import RealRng
from tests.flat_control import FlatControl

HERE, THERE = Endpoint(host="127.0.0.1", port=1), Endpoint(host="127.0.0.1", port=2)


class Places(FlatControl):
    """A controller that says where a segment is, after a while."""

    def __init__(self, where) -> None:
        self.where = where
        self.asked: list[str] = []

    async def layout_endpoint(self, segment):
        self.asked.append(segment)
        await asyncio.sleep(0.001)
        return self.where(segment)


def names(count, stream="s/t"):
    return [f"{stream}/{number}.#epoch.0" for number in range(count)]


def number_of(segment):
    return int(segment.rpartition("/")[2].partition(".")[0])


def pool_of(places):
    return ConnectionPool(places.layout_endpoint, rng=RealRng(), telemetry=Counters(), limits=DialLimits())


def test_of_a_stream_on_one_store_the_controller_is_asked_about_a_few_segments():
    async def main():
        places = Places(lambda _: HERE)
        pool = pool_of(places)
        for stream in ("s/a", "s/b"):
            found = await asyncio.gather(*(pool.endpoint(name) for name in names(1000, stream)))
            assert set(found) == {HERE}
        asked = len(places.asked)
        assert asked <= 2 * 16, "eight of each stream, and those that ask while the answers come"
        assert await pool.endpoint(names(1000, "s/a")[999]) == HERE
        assert len(places.asked) == asked

    run(main())


def test_of_a_stream_on_several_stores_every_segment_is_asked_about():
    async def main():
        places = Places(lambda segment: (HERE, THERE)[number_of(segment) % 2])
        pool = pool_of(places)
        found = await asyncio.gather(*(pool.endpoint(name) for name in names(500)))
        assert found == [(HERE, THERE)[number % 2] for number in range(500)]
        assert sorted(places.asked) == sorted(names(500))

    run(main())


def test_a_segment_that_was_not_where_it_was_taken_to_be_is_asked_about():
    async def main():
        places = Places(lambda segment: THERE if number_of(segment) >= 50 else HERE)
        pool = pool_of(places)
        found = await asyncio.gather(*(pool.endpoint(name) for name in names(100)))
        assert set(found) == {HERE}
        for name in names(100)[50:]:
            pool.forget(name)
        found = await asyncio.gather(*(pool.endpoint(name) for name in names(100)))
        assert found == [HERE] * 50 + [THERE] * 50

    run(main())


def test_a_wrong_guess_does_nothing_and_is_put_right():
    """Two stores: the first says of the others' segments that it has not got them."""

    async def main():
        async with stage() as one, stage() as two:
            mine = {name: (one if number_of(name) < 20 else two) for name in names(40)}
            for name, scene in mine.items():
                await scene.store.create_segment(name)
            setup = one.store.setup_append

            async def partly(name, writer):
                if mine[name] is not one:
                    raise ContainerOfflineError("segment belongs to another store", segment=name)
                return await setup(name, writer)

            one.store.setup_append = partly
            places = Places(lambda name: Endpoint(host="127.0.0.1", port=mine[name].server.port))
            async with RemoteSegments(
                places,
                native=one.store,
                rng=RealRng(),
                telemetry=Counters(),
                limits=DialLimits(backoff_s=0.001, backoff_max_s=0.01),
            ) as segments:
                writer = RealRng().uuid()
                found = await asyncio.gather(*(segments.setup_append(name, writer) for name in mine))
                assert found == [NO_EVENT] * 40
                for name, scene in mine.items():
                    request = Append(
                        segment=name, writer=writer, data=b"x", event_number=0, event_count=1, previous=NO_EVENT
                    )
                    assert (await segments.append(request)).end_offset == 1
                    assert bytes(scene.store.segments[name].data) == b"x"
                assert all(
                    not bytes(one.store.segments[name].data)
                    for name in mine
                    if name in one.store.segments and mine[name] is two
                )

    run(main())


def test_one_store_is_found_by_whoever_asks_for_many_of_its_segments():
    async def main():
        async with stage() as scene, remote(scene.server, scene.store) as segments:
            for name in names(100):
                await scene.store.create_segment(name)
            writer = RealRng().uuid()
            await asyncio.gather(*(segments.setup_append(name, writer) for name in names(100)))
            assert segments._pool._locate.__self__.asked == 8

    run(main())
