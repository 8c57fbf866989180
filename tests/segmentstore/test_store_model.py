"""The store against a map of strings: appends, reads, seals, truncations, merges, deletions, restarts anywhere."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_world import World, content, world, writer

from penstock.codec.events import frame_events
from penstock.model.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidArgumentError,
    QuotaHeldError,
    SegmentNotFoundError,
    SegmentSealedError,
    WriterFencedError,
)
from penstock.ports.data.limits import AppendLimit
from penstock.ports.data.segments import NO_EVENT, Append

PARENTS = ["s/a/0.#epoch.0", "s/b/0.#epoch.0"]
TXNS = [f"#transaction.{UUID(int=number).hex}" for number in (1, 2)]
NAMES = PARENTS + [parent + txn for parent in PARENTS for txn in TXNS]
SIZES = st.sampled_from([0, 8, 9, 100, 600, 5_000, 20_000])
"""Of appends: one event each, with its header, or nothing."""

NAME = st.sampled_from(NAMES + PARENTS)
WORLD = st.sampled_from(["flush", "tier", "checkpoint", "crash", "blackout", "restart", "evict"])
STEP = st.one_of(
    st.tuples(st.just("create"), NAME),
    st.tuples(st.just("append"), NAME, st.integers(1, 3), SIZES),
    st.tuples(st.just("append"), NAME, st.integers(1, 3), SIZES),
    st.tuples(st.just("burst"), NAME, st.integers(1, 3), st.lists(SIZES, max_size=6)),
    st.tuples(st.just("conditional"), NAME, st.booleans()),
    st.tuples(st.just("stale"), NAME),
    st.tuples(st.just("seal"), NAME),
    st.tuples(st.just("truncate"), NAME, st.floats(0, 1.1), st.booleans()),
    st.tuples(st.just("truncate"), NAME, st.floats(0, 1.1), st.just(True)),
    st.tuples(st.just("release"), NAME, st.floats(0, 1.1)),
    st.tuples(st.just("restore"), NAME, st.floats(0, 1.1)),
    st.tuples(st.just("limit"), st.sampled_from(PARENTS), st.none() | st.sampled_from([0, 50, 3_000, 50_000])),
    st.tuples(st.just("delete"), NAME),
    st.tuples(st.just("merge"), st.sampled_from(PARENTS), st.sampled_from(TXNS)),
    st.tuples(st.just("transact"), st.sampled_from(PARENTS), st.sampled_from(TXNS), st.lists(SIZES, max_size=4), WORLD),
    st.tuples(st.just("transact"), st.sampled_from(PARENTS), st.sampled_from(TXNS), st.lists(SIZES, max_size=4), WORLD),
    st.tuples(st.just("attribute"), NAME, st.integers(-2, 2), st.booleans()),
    st.tuples(st.just("world"), WORLD),
    st.tuples(st.just("world"), WORLD),
)


@dataclass
class Model:
    data: bytes = b""
    start: int = 0
    kept: int = 0
    events: list[int] = field(default_factory=list)
    sealed: bool = False
    last: dict[int, int] = field(default_factory=dict)
    attribute: int = NO_EVENT


class Run:
    """Plays steps on a store and on the model, and compares."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.models: dict[str, Model] = {}
        self.merged: dict[str, Model] = {}
        self.used: dict[str, int] = dict.fromkeys(PARENTS, 0)
        self.limits: dict[str, int] = {}
        self.fill = 0

    def bytes(self, size: int) -> bytes:
        self.fill += 1
        return frame_events([(b"%06d|" % self.fill * (size // 7 + 1))[: size - 8]]) if size else b""

    def request(self, name: str, number: int, data: bytes, **how) -> Append:
        last = self.models[name].last.get(number, NO_EVENT) if name in self.models else NO_EVENT
        fields = {"previous": last, "event_number": max(last, -1) + 1} | how
        return Append(segment=name, writer=writer(number), data=data, **fields)

    async def step(self, kind: str, *arguments) -> None:
        await getattr(self, kind)(*arguments)

    async def create(self, name: str) -> None:
        if name in self.models:
            with pytest.raises(AlreadyExistsError):
                await self.world.store.create_segment(name)
        else:
            await self.world.store.create_segment(name)
            self.models[name] = Model()
            self.merged.pop(name, None)
            if name in PARENTS:
                self.used[name] = 0

    async def append(self, name: str, number: int, size: int) -> None:
        request = self.request(name, number, self.bytes(size))
        model = self.models.get(name)
        if model is None or model.sealed:
            with pytest.raises(SegmentNotFoundError if model is None else SegmentSealedError):
                await self.world.store.append(request)
            return
        if self.is_held(request):
            with pytest.raises(QuotaHeldError):
                await self.world.store.append(request)
            return
        answer = await self.world.store.append(request)
        self.applied(model, number, request)
        assert answer.end_offset == len(model.data)

    def is_held(self, request: Append) -> bool:
        parent = request.segment.partition("#")[0] + "#epoch.0"
        limit = self.limits.get(parent)
        if limit is None:
            return False
        used = self.used[parent]
        return used + len(request.data) > limit if request.segment == parent else used >= limit

    def applied(self, model: Model, number: int, request: Append) -> None:
        model.data += bytes(request.data)
        model.last[number] = request.event_number
        if request.data:
            model.events.append(len(model.data))
        if request.segment in PARENTS:
            self.used[request.segment] += len(request.data)

    async def limit(self, parent: str, more: int | None) -> None:
        if self.limits.pop(parent, None) is None and parent not in self.models:
            self.used[parent] = 0  # It was gone before anything was counted.
        if more is not None:
            self.limits[parent] = self.used[parent] + more
        stream = parent.rpartition("/")[0]
        limit = AppendLimit(stream=stream, segments=[parent], total_bytes=self.limits.get(parent))
        await self.world.store.limit_appends([limit])

    async def burst(self, name: str, number: int, sizes: list[int]) -> None:
        """Appends without waiting for each."""
        model = self.models.get(name)
        if model is None or model.sealed:
            return
        await self.world.store.setup_append(name, writer(number))
        answers: list = []
        ends = []
        for size in sizes:
            request = self.request(name, number, self.bytes(size))
            self.world.store.submit_append(request, answers.append)
            if self.is_held(request):
                ends.append(QuotaHeldError)
            else:
                self.applied(model, number, request)
                ends.append(len(model.data))
        while len(answers) < len(sizes):
            await asyncio.sleep(0)
        assert [getattr(answer, "end_offset", type(answer)) for answer in answers] == ends

    async def conditional(self, name: str, right: bool) -> None:
        model = self.models.get(name)
        if model is None or model.sealed:
            return
        request = self.request(name, 1, self.bytes(9), expected_offset=len(model.data) + (0 if right else 1))
        if right and self.is_held(request):
            with pytest.raises(QuotaHeldError):
                await self.world.store.append(request)
        elif right:
            await self.world.store.append(request)
            self.applied(model, 1, request)
        else:
            with pytest.raises(ConditionFailedError):
                await self.world.store.append(request)

    async def stale(self, name: str) -> None:
        model = self.models.get(name)
        if model is None or model.sealed:
            return
        last = model.last.get(1, NO_EVENT)
        with pytest.raises(WriterFencedError):
            await self.world.store.append(self.request(name, 1, b"stale", previous=max(last, 0) + 7, event_number=99))

    async def seal(self, name: str) -> None:
        model = self.models.get(name)
        if model is None:
            with pytest.raises(SegmentNotFoundError):
                await self.world.store.seal(name)
            return
        assert await self.world.store.seal(name) == len(model.data)
        model.sealed = True

    async def truncate(self, name: str, part: float, keep: bool) -> None:
        model = self.models.get(name)
        if model is None:
            return
        offset = int(part * len(model.data))
        if offset > len(model.data):
            with pytest.raises(InvalidArgumentError):
                await self.world.store.truncate(name, offset, keep=keep)
            return
        await self.world.store.truncate(name, offset, keep=keep)
        if offset > model.start:
            model.start = offset
            model.kept = model.kept if keep else offset

    async def release(self, name: str, part: float) -> None:
        model = self.models.get(name)
        if model is None:
            return
        offset = int(part * model.start)
        if offset > model.start:
            with pytest.raises(InvalidArgumentError):
                await self.world.store.release(name, offset)
            return
        await self.world.store.release(name, offset)
        model.kept = max(model.kept, offset)

    async def restore(self, name: str, part: float) -> None:
        model = self.models.get(name)
        if model is None:
            with pytest.raises(SegmentNotFoundError):
                await self.world.store.restore(name, 0)
            return
        offset = int(part * len(model.data))
        model.start = min(model.start, max(offset, model.kept))
        assert await self.world.store.restore(name, offset) == model.start

    async def delete(self, name: str) -> None:
        if self.models.pop(name, None) is None:
            with pytest.raises(SegmentNotFoundError):
                await self.world.store.delete(name)
        else:
            await self.world.store.delete(name)

    async def merge(self, parent: str, txn: str) -> None:
        target, source = self.models.get(parent), self.models.get(parent + txn)
        call = self.world.store.merge(parent, parent + txn)
        if target is None:
            with pytest.raises(SegmentNotFoundError):
                await call
        elif source is None:
            if self.merged.get(parent + txn) is target:
                assert await call == len(target.data)
            else:
                with pytest.raises(SegmentNotFoundError):
                    await call
        elif target.sealed or source.start:
            with pytest.raises(SegmentSealedError if target.sealed else InvalidArgumentError):
                await call
        else:
            target.events += [len(target.data) + end for end in source.events]
            target.data += source.data
            self.used[parent] += len(source.data)
            assert await call == len(target.data)
            del self.models[parent + txn]
            self.merged[parent + txn] = target

    async def transact(self, parent: str, txn: str, sizes: list[int], between: str) -> None:
        """A transaction with a look at the world before its merge, and the merge called twice."""
        name = parent + txn
        if name not in self.models:
            await self.create(name)
        await self.burst(name, 1, sizes)
        await self.world_(between)
        await self.burst(name, 1, sizes[:1])
        await self.merge(parent, txn)
        await self.merge(parent, txn)

    async def attribute(self, name: str, value: int, conditional: bool) -> None:
        model = self.models.get(name)
        if model is None:
            return
        id_ = writer(77)
        expected = value - 1 if conditional else None
        done = await self.world.store.update_attribute(name, id_, value, expected=expected)
        assert done == (expected is None or expected == model.attribute)
        if done:
            model.attribute = value

    async def world_(self, what: str) -> None:
        store = self.world.store
        if what == "flush":
            await store.flush()
        elif what == "tier":
            for container in store.containers:
                await container.tiering.tier_all()
        elif what == "checkpoint":
            for container in store.containers:
                await container.checkpointer.checkpoint()
        else:
            await getattr(self.world, what)()
            if what != "evict":
                self.limits.clear()

    async def check(self) -> None:
        store = self.world.store
        for name in NAMES:
            model = self.models.get(name)
            if model is None:
                with pytest.raises(SegmentNotFoundError):
                    await store.info(name)
                continue
            info = await store.info(name)
            assert (info.start_offset, info.length, info.sealed) == (model.start, len(model.data), model.sealed)
            assert (info.kept_offset, info.event_count) == (
                model.kept if model.kept < model.start else None,
                len(model.events),
            )
            assert await content(store, name) == model.data[model.start :], name
            for number in (1, 2, 3):
                assert await store.setup_append(name, writer(number)) == model.last.get(number, NO_EVENT)
            assert await store.get_attribute(name, writer(77)) == model.attribute
            await self.check_chunks(name, model)
            await self.check_counts(name, model)
        spaces = await store.spaces(NAMES)
        assert [name for name, space in spaces.items() if space.live_bytes or name in self.models] == [
            name for name in NAMES if name in self.models
        ]

    async def check_counts(self, name: str, model: Model) -> None:
        """All ranges would be too many: those that a few places make, and the whole."""
        places = [end for end in [0, *model.events] if end >= model.kept]
        step = max(1, len(places) // 5)
        chosen = sorted({*places[::step], *places[-1:]})
        for low, start in enumerate(chosen):
            for end in chosen[low:]:
                expected = sum(start < event <= end for event in model.events)
                assert await self.world.store.count_events(name, start, end) == expected, (start, end)

    async def check_chunks(self, name: str, model: Model) -> None:
        position = model.start
        for item in await self.world.store.chunk_ranges(name, model.start, len(model.data)):
            assert item.start_offset <= position < item.end_offset
            position = item.end_offset
            blocks = [item.start_offset, *(block.end_offset for block in item.blocks)]
            assert blocks[-1] == item.end_offset
            assert [block.start_offset for block in item.blocks] == blocks[:-1]
        assert position <= max(len(model.data), model.start)
        space = (await self.world.store.spaces([name]))[name]
        assert space.live_bytes == len(model.data) - model.start
        assert 0 <= space.tiered_bytes <= space.live_bytes
        assert 0 <= space.kept_bytes <= model.start - model.kept
        assert 0 <= space.kept_bytes + space.partial_bytes + space.leased_bytes <= space.pending_free_bytes

    async def end(self) -> None:
        """All that is left on disk is what segments name; nothing is left in the log or in memory's accounts."""
        await self.world.settle()
        await self.check()
        named = set()
        for name, model in self.models.items():
            ranges = await self.world.store.chunk_ranges(name, model.start, len(model.data))
            assert sum(item.end_offset - max(item.start_offset, model.start) for item in ranges) == (
                len(model.data) - model.start
            )
            segment = await self.world.store._container(name).segments.find_visible(name)
            named |= {chunk.name + end for chunk in segment.chunks.items for end in ("", ".idx")}
            assert named >= {item.name for item in ranges}
            space = (await self.world.store.spaces([name]))[name]
            assert space.kept_bytes == model.start - model.kept
            assert space.pending_free_bytes == space.kept_bytes + space.partial_bytes, "all that may go is gone"
        assert set(await self.world.chunks.list()) == named
        assert not await self.world.store.spaces([name for name in NAMES if name not in self.models])
        assert not self.world.log_state.frames
        memory = self.world.store._memory
        assert (memory.unflushed_bytes, memory.queued_bytes) == (0, 0)
        assert memory.cached_bytes <= memory.limit_bytes


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEP, min_size=5, max_size=40))
def test_the_store_is_a_map_of_strings_whatever_restarts(steps) -> None:
    async def main() -> None:
        async with world(
            containers=2,
            flush_bytes=8_000,
            chunk_bytes=25_000,
            free_head_bytes=1_000,
            cache_bytes=30_000,
            read_cache_bytes=10_000,
        ) as made:
            played = Run(made)
            for name in PARENTS:
                await played.create(name)
            for kind, *arguments in steps:
                await played.step("world_" if kind == "world" else kind, *arguments)
            await played.check()
            await played.world_("crash")
            await played.check()
            await played.end()

    asyncio.run(main())
