"""Readers that commit their positions with the events that they write, while the controller crashes and answers late."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

from penstock.client.retry import RETRYABLE
from penstock.client.store import AsyncStore
from penstock.model.errors import (
    AlreadyExistsError,
    NotCommittedError,
    ReaderFencedError,
    TransactionNotFoundError,
    TransactionStateError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.testing.simulation.actors import Env, cancel, until_served
from penstock.testing.simulation.control.actors import PATIENCE_S, Appender, Seen, make_scope, write_some

SOURCE, COPY = StreamName("processed", "source"), StreamName("processed", "copy")
_GROUP = "copiers"
_SOURCE_SEGMENTS, _COPY_SEGMENTS = 3, 2
_UNDONE = (NotCommittedError, ReaderFencedError, TransactionNotFoundError, TransactionStateError)
"""The events come again, to this reader or another."""


async def copy_events(env: Env, seen: Seen, name: str) -> None:
    """Two readers of a group copy a stream with transactions. Each event is in the copy once, whatever fails."""
    rng = env.rng(name)
    await make_scope(env, SOURCE.scope)
    await _make_stream(env, SOURCE, _SOURCE_SEGMENTS)
    await _make_stream(env, COPY, _COPY_SEGMENTS)
    writer, store = Appender(env, rng), env.store(name)
    written: dict[bytes, None] = {}
    await env.insist(partial(store.reader_group, _GROUP, [SOURCE], start="tail"))
    copiers = [
        env.loop.create_task(_copy(env, seen, env.store(f"{name}-{one}"), one), name=f"copier {one}")
        for one in ("one", "two")
    ]
    try:
        while not env.stopping.is_set():
            written |= await write_some(env, SOURCE, writer, rng)
            await env.pause(rng, factor=2)
        copied = await _copied(env, store, written)
    finally:
        await cancel(copiers)
    twice = [data for data, count in Counter(copied).items() if count > 1]
    if twice:
        env.history.violation("events copied twice", f"{len(twice)} of {len(written)}")
    if missing := [data for data in written if data not in set(copied)]:
        env.history.violation("events not copied", f"{len(missing)} of {len(written)}")


async def _copied(env: Env, store: AsyncStore, written: dict[bytes, None]) -> list[bytes]:
    """What is in the copy once it has everything, or has not grown in time."""
    found: list[bytes] = []

    async def look() -> None:
        while not written.keys() <= set(found):
            found[:] = await env.insist(partial(_read_copy, store))
            await asyncio.sleep(1)

    looking = env.loop.create_task(look(), name="copy reader")
    await until_served(env, looking.done, PATIENCE_S)
    await cancel([looking])
    return found


async def _read_copy(store: AsyncStore) -> list[bytes]:
    async with store.stream(COPY).reader(until_tail=True) as reader:
        return [bytes(event.data) async for event in reader]


async def _make_stream(env: Env, name: StreamName, segments: int) -> None:
    try:
        await env.insist(
            partial(env.controller.streams.create, name, StreamConfig(scaling=ScalingPolicy(min_segments=segments)))
        )
    except AlreadyExistsError:
        env.history.note(f"{name} is there")


async def _copy(env: Env, seen: Seen, store: AsyncStore, name: str) -> None:
    """Programs of one name, one after another. Each copies until something fails, or it stops as in a crash."""
    rng = env.rng(f"copier {name}")
    while True:
        group = await env.insist(partial(store.open_reader_group, f"{SOURCE.scope}/{_GROUP}", lease_s=6, refresh_s=1))
        reader = group.reader(name, auto_commit=False)
        try:
            await reader.open()
            while rng.random() > 0.05:
                transaction = reader.transaction(COPY)
                await transaction.open()
                for _ in range(rng.randrange(1, 6)):
                    event = await reader.read(1)
                    if event is not None:
                        await transaction.write(event.data, str(event.segment))
                # Often the program dies during the commit, and the next one finds positions that are not settled.
                async with asyncio.timeout(rng.random() / 5 if rng.random() < 0.4 else None):
                    await transaction.commit()
                seen.count("copies committed")
        except (*RETRYABLE, *_UNDONE, TimeoutError) as error:
            env.history.note(f"copier {name} begins again: {error}")
        finally:
            await reader.abandon()
        await env.pause(rng, factor=0.5)
