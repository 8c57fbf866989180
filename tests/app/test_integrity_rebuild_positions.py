"""A position beyond what a rebuild gives back never means other events; what is given back stays exactly once."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from integrity_world import running

from penstock.app.embedded import Runtime
from penstock.app.integrity.rebuild import rebuild
from penstock.client.store import AsyncStore
from penstock.model.errors import InvalidArgumentError, InvalidCutError, NotConnectedError
from penstock.model.names import StreamName
from penstock.ports.control.transactions import TransactionStatus
from tests.flat_control import SUBJECTS, Around

STREAM = StreamName("s", "t")


def client_of(runtime: Runtime) -> AsyncStore:
    return AsyncStore(runtime.segments, runtime.controller, runtime.clock, runtime.rng)


async def read_all(store: AsyncStore, stream: str, start: Any = None) -> list[str]:
    named = {} if start is None else {"start": start}
    async with store.stream(stream).reader(until_tail=True, **named) as reader:
        return sorted([event.data.decode() async for event in reader])


async def checkpoint(runtime: Runtime) -> None:
    """Bring metadata to the catalogue; what is appended stays in the log alone."""
    for container in runtime.segments.containers:
        await container.checkpointer.checkpoint()


def lose(tmp_path: Path) -> None:
    """Keep what is there after the local disk of the running store was lost."""
    shutil.copytree(tmp_path / "old", tmp_path / "left", ignore=shutil.ignore_patterns("wal", "metadata", "LOCK"))


async def rebuilt(tmp_path: Path) -> Path:
    await rebuild(str(tmp_path / "left"), tmp_path / "new")
    return tmp_path / "new"


async def write(store: AsyncStore, stream: str, events: list[str]) -> None:
    async with store.stream(stream).writer() as writer:
        await writer.write_many(events, [str(number) for number in range(len(events))])


def test_a_position_beyond_the_rebuilt_tail_is_refused_and_one_within_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        kept = [f"kept {number:02}" for number in range(50)]
        async with running(tmp_path / "old") as runtime:
            store = client_of(runtime)
            await store.create_stream("s/t", segments=2, create_scope=True)
            await store.create_stream("s/scaled", segments=1)
            for name in ("s/t", "s/scaled"):
                await write(store, name, kept)
            within = await store.stream("s/t").tail()
            await runtime.segments.flush()
            lose(tmp_path)
            await write(store, "s/t", ["lost"] * 50)
            ahead = await store.stream("s/t").tail()
            (old,) = (await store.stream("s/scaled").describe()).segments
            await runtime.controller.layout.scale(
                StreamName("s", "scaled"), sealed=[old.segment], new_ranges=[old.keys]
            )
            await store.create_stream("s/later", segments=1)
            for name in ("s/scaled", "s/later"):
                await write(store, name, ["lost"])
            cuts = {"s/t": ahead} | {name: await store.stream(name).tail() for name in ("s/scaled", "s/later")}
        async with running(await rebuilt(tmp_path)) as runtime:
            store = client_of(runtime)
            await store.create_stream("s/later", segments=1)
            assert await read_all(store, "s/t") == kept
            for name in cuts:
                await write(store, name, ["new" * 50] * 200)  # Far past every lost position.
            for name, cut in cuts.items():
                with pytest.raises(InvalidCutError):
                    await read_all(store, name, start=cut)
            assert await read_all(store, "s/t", start=within) == ["new" * 50] * 200
            for segment, offset in ahead.positions.items():
                with pytest.raises(InvalidArgumentError, match="behind the end of a sealed segment"):
                    await runtime.segments.read(f"s/t/{segment}.#epoch.0", offset, 100, wait=False)

    asyncio.run(main())


class Line:
    """A writer's way to the store, which loses answers, and leads to the rebuilt store later."""

    submit_append = withdraw_appends = open_direct = None

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.state = "up"
        self.heard: list[int] = []

    def __getattr__(self, name: str) -> Any:
        if name in SUBJECTS:
            return getattr(Around(self.inner, self._line), name)
        return self._line(name, getattr(self.inner, name))

    def _line(self, name: str, made: Any) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            if self.state == "down":
                raise NotConnectedError("store is away")
            answer = await made(*arguments, **named)
            if self.state == "mute" and name == "append":
                self.heard.append(arguments[0].event_number)
                raise NotConnectedError("answer lost")
            return answer

        return call


@pytest.mark.parametrize("survives", [True, False], ids=["flushed", "in the log alone"])
def test_a_writer_that_goes_on_writes_what_survived_and_what_did_not_exactly_once(
    tmp_path: Path, survives: bool
) -> None:
    """``survives``: what was stored and whose acknowledgement was lost is in tier 2."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            old = await stack.enter_async_context(running(tmp_path / "old"))
            own = client_of(old)
            await own.create_stream("s/t", segments=2, create_scope=True)
            segments, controller = Line(old.segments), Line(old.controller)
            store = AsyncStore(segments, controller, old.clock, old.rng)  # type: ignore[arg-type]
            keys = [str(number) for number in range(20)]
            writer = store.stream("s/t").writer(deadline_s=60)
            await writer.write_many([f"acknowledged {key}" for key in keys], keys)
            await writer.flush()
            await old.segments.flush()
            segments.state = "mute"
            await writer.write_many([f"stored {key}" for key in keys], keys)
            flushing = asyncio.ensure_future(writer.flush())
            while len(segments.heard) < 2:
                await asyncio.sleep(0.001)
            segments.state = controller.state = "down"
            if survives:
                await old.segments.flush()
            await checkpoint(old)
            lose(tmp_path)
            await writer.write_many([f"waiting {key}" for key in keys], keys)
            new = await stack.enter_async_context(running(await rebuilt(tmp_path)))
            segments.inner, controller.inner = new.segments, new.controller
            segments.state = controller.state = "up"
            await flushing
            await writer.close()
            kinds = ("acknowledged", "stored", "waiting")
            async with client_of(new).stream("s/t").reader(until_tail=True) as reader:
                found = [event.data.decode() async for event in reader]
            assert sorted(found) == sorted(f"{kind} {key}" for kind in kinds for key in keys)
            for key in keys:
                assert [event for event in found if event.split()[1] == key] == [f"{kind} {key}" for kind in kinds]

    asyncio.run(main())


def test_what_a_group_has_acknowledged_beyond_the_rebuilt_tail_is_reported_until_it_is_reset(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path / "old") as runtime:
            store = client_of(runtime)
            await store.create_stream("s/t", segments=1, create_scope=True)
            group = await store.reader_group("s/g", ["s/t"], retention="manual")
            await write(store, "s/t", ["kept"] * 10)
            await runtime.segments.flush()
            await write(store, "s/t", ["lost"] * 10)
            async with group.reader("r") as reader:
                for _ in range(20):
                    await reader.read(timeout_s=20)
            await group.publish(await group.positions())
            await checkpoint(runtime)
            lose(tmp_path)
        async with running(await rebuilt(tmp_path)) as runtime:
            store = client_of(runtime)
            await write(store, "s/t", ["new" * 50] * 20)
            (info,) = await store.stream("s/t").subscribers()
            assert info.name == "s/g"
            await runtime.controller.retention.run(STREAM)
            group = await store.open_reader_group("s/g")
            async with group.reader("r") as reader:
                with pytest.raises(InvalidArgumentError, match="behind the end of a sealed segment"):
                    await reader.read(timeout_s=20)
            await store.reset_reader_group("s/g", "head")
            async with group.reader("r") as reader:
                found = [await reader.read(timeout_s=20) for _ in range(30)]
            assert [event.data.decode() for event in found if event is not None] == ["kept"] * 10 + ["new" * 50] * 20

    asyncio.run(main())


def test_open_transactions_are_aborted_and_decided_ones_are_committed(tmp_path: Path) -> None:
    """An open one may have lost events that were acknowledged: committed later, it would be a part of itself."""

    async def main() -> None:
        async with running(tmp_path / "old") as runtime:
            store = client_of(runtime)
            stream = await store.create_stream("s/t", segments=1, create_scope=True)
            txn = stream.transaction(lease_s=600)
            await txn.open()
            await txn.write("flushed", "k")
            await txn.flush()
            await runtime.segments.flush()
            await txn.write("lost", "k")
            await txn.flush()
            async with stream.transaction() as other:
                await other.write("committed", "k")
            await runtime.segments.flush()
            await checkpoint(runtime)
            lose(tmp_path)
            await txn.abort()
        async with running(await rebuilt(tmp_path)) as runtime:
            status = await runtime.controller.transactions.status(STREAM, txn.id)
            assert status in (TransactionStatus.ABORTING, TransactionStatus.ABORTED)
            assert await read_all(client_of(runtime), "s/t") == ["committed"]

    asyncio.run(main())
