"""What waits to be loaded keeps its place: nothing that asks about it afterwards may overtake it."""

import asyncio

from store_world import append, run, writer

from penstock.model.errors import ThrottledError
from penstock.ports.data.segments import NO_EVENT, Append, Appended
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue


class SlowAtFirst(MemoryKeyValue):
    """Its next read takes long, the ones after it none."""

    def __init__(self):
        super().__init__()
        self.slow = False

    async def get_many(self, keys):
        pauses, self.slow = (100 if self.slow else 0), False
        for _ in range(pauses):
            await asyncio.sleep(0)
        return await super().get_many(keys)


def test_setup_append_waits_for_appends_whose_segment_is_being_loaded():
    async def scenario(world):
        await world.store.close()
        world.keyvalue = SlowAtFirst()
        store = await world.open()
        await store.create_segment("s")
        await append(store, "s", b"first", number=9)
        store = await world.restart()
        world.keyvalue.slow = True
        request = Append(segment="s", writer=writer(1), data=b"x", event_number=7, previous=NO_EVENT)
        # Nothing of the segment is in memory: the append is parked, and its caller gives up at once.
        given_up = asyncio.ensure_future(store.append(request))
        while world.keyvalue.slow:
            await asyncio.sleep(0)
        given_up.cancel()
        assert await store.setup_append("s", writer(1)) == 7

    run(scenario)


def test_setup_append_of_a_segment_that_is_not_there_answers_with_parked_appends():
    async def scenario(world):
        request = Append(segment="none", writer=writer(1), data=b"x", event_number=7, previous=NO_EVENT)
        results = await asyncio.gather(
            world.store.append(request), world.store.setup_append("none", writer(1)), return_exceptions=True
        )
        assert [type(item).__name__ for item in results] == ["SegmentNotFoundError", "SegmentNotFoundError"]

    run(scenario)


def test_an_append_for_which_there_is_no_place_is_refused_after_those_before_it():
    """Refused before them, a writer would wait for their refusal, and never repeat it."""

    async def scenario(world):
        store = world.store
        await store.create_segment("s")
        await store.setup_append("s", writer(1))
        await world.evict()
        answered = []
        for number in range(3):
            request = Append(
                segment="s", writer=writer(1), data=b"x", event_number=number + 1, previous=number or NO_EVENT
            )
            store.submit_append(request, lambda outcome, number=number: answered.append((number, type(outcome))))
        while len(answered) < 3:
            await asyncio.sleep(0)
        assert answered == [(0, Appended), (1, ThrottledError), (2, ThrottledError)]
        request = Append(segment="s", writer=writer(1), data=b"x", event_number=2, previous=1)
        assert (await store.append(request)).end_offset == 2

    run(scenario, max_parked_appends=1)
