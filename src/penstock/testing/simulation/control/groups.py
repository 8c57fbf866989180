"""Readers of a group that are replaced while they still run, and groups that are deleted and recreated."""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.client.reading.group_reader import AsyncGroupReader
from penstock.client.reading.reader_group import AsyncReaderGroup
from penstock.client.retry import RETRYABLE
from penstock.model.errors import (
    GenerationMismatchError,
    NotFoundError,
    ReaderFencedError,
    ReaderGroupNotFoundError,
    SubscriberNotFoundError,
)
from penstock.model.names import StreamName
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.testing.simulation.actors import Env, cancel, until_served
from penstock.testing.simulation.control.actors import PATIENCE_S, Appender, Seen, make_scope, write_some

GROUPED = StreamName("grouped", "stream")
_GROUP = "readers"
_GONE = (GenerationMismatchError, ReaderGroupNotFoundError, SubscriberNotFoundError)


class _Pod:
    """A program with one reader, and the events that it got. It continues until its reader fails."""

    def __init__(self, env: Env, group: AsyncReaderGroup, reader: str) -> None:
        self._env = env
        self._group = group
        self._name = reader
        self._reader: AsyncGroupReader | None = None
        self.got: dict[bytes, None] = {}
        self.error: Exception | None = None
        self.is_replaced = False
        """The reader does not rejoin, because then it would be the newer one."""
        self.joined = asyncio.Event()
        self.task = env.loop.create_task(self._run(), name=f"reader {reader}")

    async def _run(self) -> None:
        while True:
            reader = self._group.reader(self._name)
            try:
                await self._read(reader)
            except RETRYABLE as error:
                self._env.history.note(f"reader {self._name} failed: {error}")
                if self.is_replaced:
                    self.error = error
                    return
            except (ReaderFencedError, *_GONE) as error:
                self.error = error
                return
            finally:
                await reader.abandon()

    async def _read(self, reader: AsyncGroupReader) -> None:
        await reader.open()
        self.joined.set()
        async for event in reader:
            self.got[bytes(event.data)] = None


async def share_groups(env: Env, seen: Seen, name: str) -> None:
    """One reader replaces another, in the same group or in a new one of its name. The older one is refused, and the newer
    one gets every event that the older one did not get."""
    rng = env.rng(name)
    await make_scope(env, GROUPED.scope)
    await env.insist(partial(_make_stream, env))
    writer = Appender(env, rng)
    store = env.store(name)
    while not env.stopping.is_set():
        open_group = partial(store.reader_group, _GROUP, [GROUPED], start="tail", retention="manual")
        group = await env.insist(open_group)
        older = _Pod(env, group, "one")
        pods = [older]
        try:
            await _joined(env, older)
            written = await write_some(env, GROUPED, writer, rng)
            await env.pause(rng, factor=rng.choice((0.1, 2)))
            older.is_replaced = True
            if rng.random() < 0.5:
                newer = _Pod(env, group, "one")
                pods.append(newer)
                await _joined(env, newer)
                written |= await write_some(env, GROUPED, writer, rng)
                await _check(env, older, newer, written, shared=older.got)
                seen.count("readers replaced")
            else:
                await _delete(env, group)
                newer = _Pod(env, await env.insist(open_group), "two")
                pods.append(newer)
                await _is_refused(env, group)
                await _joined(env, newer)
                await _check(env, older, newer, await write_some(env, GROUPED, writer, rng), shared={})
                seen.count("groups made again")
        finally:
            await cancel([pod.task for pod in pods])
        await _delete(env, await env.insist(open_group))


async def _make_stream(env: Env) -> None:
    if not await env.controller.streams.exists(GROUPED):
        await env.controller.streams.create(GROUPED, StreamConfig(scaling=ScalingPolicy(min_segments=3)))


async def _delete(env: Env, group: AsyncReaderGroup) -> None:
    try:
        await env.insist(group.delete)
    except NotFoundError as error:
        env.history.note(f"group is deleted: {error}")


async def _is_refused(env: Env, group: AsyncReaderGroup) -> None:
    """Publications and deletions by a program of a deleted group must not affect the new group."""
    config, tail = group.config, await env.insist(partial(env.controller.cuts.tail, GROUPED))
    calls = {
        "publication": partial(
            env.controller.subscribers.publish,
            config.full_name,
            group_id=config.id,
            generation=config.generation,
            cut=tail,
        ),
        "deletion": partial(env.controller.groups.delete, config.scope, config.name, group_id=config.id),
    }
    for what, call in calls.items():
        try:
            await env.insist(call)
        except _GONE:
            continue
        env.history.violation("group taken for another", f"{what} of {config.id} was accepted")


async def _joined(env: Env, pod: _Pod) -> None:
    if not await until_served(env, pod.joined.is_set, PATIENCE_S):
        env.history.violation("stuck", f"a reader has not joined within {PATIENCE_S:.0f} s of service, {pod.error}")


async def _check(env: Env, older: _Pod, newer: _Pod, written: dict[bytes, None], *, shared: dict[bytes, None]) -> None:
    """The older reader ends with an error; the newer one gets all events except those in ``shared``."""

    def missing() -> list[bytes]:
        return [data for data in written if data not in newer.got and data not in shared]

    def settled() -> bool:
        return newer.error is not None or (older.error is not None and not missing())

    await until_served(env, settled, PATIENCE_S)
    if newer.error is not None:
        env.history.violation("newer reader refused", str(newer.error))
    elif older.error is None:
        env.history.violation("older reader goes on", f"it was given {len(older.got)} events")
    elif missing():
        env.history.violation("events not delivered", f"{len(missing())} of {len(written)}")
