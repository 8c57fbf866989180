"""What containers have queued in one pass of the loop: one write for all, answers in order, nothing forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from store_world import writer

from penstock.ports.data.segments import NO_EVENT, Append
from penstock.segmentstore.mutations import Mutation
from penstock.segmentstore.store import SegmentStore
from penstock.storage.log.local_log import open_local_log
from penstock.storage.machine.files import RealFiles
from penstock.storage.memory.memory_keyvalue import MemoryKeyValue
from penstock.testing.fakes import InlineOffload
from penstock.testing.world import World


@asynccontextmanager
async def store_on(path: Path, keyvalue: MemoryKeyValue) -> AsyncIterator[tuple[SegmentStore, list[int]]]:
    """A store on a real log, with the number of frames of each write in place."""
    files = RealFiles(path, InlineOffload(), placement="inline")
    groups: list[int] = []
    async with open_local_log(files) as log:
        inner = log.append_in_place

        def counted(frames):
            found = inner(frames)
            if found is not None:
                groups.append(len(frames))
            return found

        log.append_in_place = counted  # type: ignore[method-assign]
        world = World(containers=4)
        world.keyvalue, world.make_log = keyvalue, lambda: log
        async with world.opened() as store:
            yield store, groups


def in_different_containers(store: SegmentStore, count: int) -> list[str]:
    found: dict[int, str] = {}
    for number in range(1000):
        found.setdefault(store._container(f"s/t/{number}").index, f"s/t/{number}")
    return list(found.values())[:count]


def test_appends_of_one_pass_to_several_containers_share_one_write(tmp_path: Path) -> None:
    async def run() -> None:
        keyvalue = MemoryKeyValue()
        async with store_on(tmp_path, keyvalue) as (store, groups):
            names = in_different_containers(store, 3)
            for name in names:
                await store.create_segment(name)
                await store.setup_append(name, writer(1))
            for _ in range(10):
                await asyncio.sleep(0)
            groups.clear()
            answers: list[tuple[str, int]] = []
            done = asyncio.Event()

            def answered(name: str, number: int) -> None:
                answers.append((name, number))
                if len(answers) == 9:
                    done.set()

            for number in range(1, 4):
                for name in names:
                    request = Append(
                        segment=name,
                        writer=writer(1),
                        data=b"%d" % number,
                        event_number=number,
                        previous=number - 1 if number > 1 else NO_EVENT,
                    )
                    store.submit_append(request, lambda _, name=name, number=number: answered(name, number))
            async with asyncio.timeout(10):
                await done.wait()
            assert groups == [3]
            assert all([number for at, number in answers if at == name] == [1, 2, 3] for name in names)
        async with store_on(tmp_path, keyvalue) as (store, _):
            assert [(await store.info(name)).length for name in names] == [3, 3, 3]

    asyncio.run(run())


def test_what_an_answer_queues_in_a_container_whose_turn_comes_later_is_not_forgotten(tmp_path: Path) -> None:
    async def run() -> None:
        async with store_on(tmp_path, MemoryKeyValue()) as (store, _):
            first, second = store.containers[0], store.containers[1]
            for _ in range(10):
                await asyncio.sleep(0)
            ended = asyncio.Event()
            first.submit(Mutation(None, lambda _: second.submit(Mutation(None, lambda _: ended.set()))))
            second.submit(Mutation(None, lambda _: None))
            async with asyncio.timeout(10):
                await ended.wait()

    asyncio.run(run())
