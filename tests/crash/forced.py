"""Histories that force what random ones meet by luck: they hold the disk of a real server, and its old connections, still.

A writer that sends again on a line which was set up before its first line had stored anything; questions about what is
queued behind a sync that hangs, and ``kill -9`` before it ends; chunks that are leased beside others that go. What was
answered goes into the history, as with all actors, and is looked at after the restart: nothing here knows the store.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, cast
from uuid import UUID

from penstock.codec.events import frame_events
from penstock.model.errors import NotConnectedError, PenstockError
from penstock.model.names import transaction_segment_name
from penstock.net.dial.segments import RemoteSegments
from penstock.ports.data.direct_appends import DirectLine
from penstock.ports.data.segments import Append
from penstock.ports.data.service import SegmentService
from penstock.testing.simulation.actors import SCOPE, Env, RawWriter, event
from penstock.testing.simulation.history import Group, Outcome
from penstock.testing.simulation.segment_actors import create, look
from tests.crash.nursery import Nursery

_LEASE_MS = 6 * 3_600_000
_ASKED_S = 0.4
_ASKED_TIMES = 4
_WITHIN_S = 60.0
_EVENTS = 5


class Restart(Protocol):
    """Kill the server, and start it again."""

    async def __call__(self, *, restless: bool = False, holdable: bool = False) -> None: ...


async def force_all(env: Env, nursery: Nursery, restart: Restart) -> None:
    """All of them, one after the other; the server is restarted between them, and left running.

    Raises UnavailableError where it does not start again.
    """
    await append_on_two_lines(env)
    leased = await lease_and_truncate(env)
    await restart(restless=True)
    await look_at_leased(env, leased)
    for number, dies in enumerate((True, False)):
        await restart(holdable=True)
        asked = await prepare_questions(env, f"asked-{number}")
        await ask_while_the_disk_hangs(env, nursery, asked, restart if dies else None)
        await look_behind(env, asked)
    await restart(restless=True)


# --- two lines ------------------------------------------------------------------------------------------------------


async def append_on_two_lines(env: Env) -> None:
    """A writer takes its line for lost, though what it sent is still on its way there, and sends it again on another."""
    rng = env.rng("lines")
    segments = cast("RemoteSegments", env.segments("lines"))
    for at_once in (False, True):
        segment = f"{SCOPE}/lines-{int(at_once)}"
        env.raw[segment] = None
        await create(env, segments, segment)
        writer = UUID(int=rng.getrandbits(128), version=4)
        lines = [await segments.open_direct(segment, writer) for _ in range(2)]
        data = event(env.config, segment, "twice", 1, "k", rng)
        write = env.history.write(segment, "twice", 1, "k", data)
        framed = frame_events([data])
        taken = 0
        for line in lines:
            line.send(framed, 1, 1)
            if not at_once:
                taken += await _was_taken(line)
        if at_once:
            taken = sum([await _was_taken(line) for line in lines])
        if taken:
            env.history.acknowledged(write)
        else:
            env.history.violation("stuck", f"{write.name} was sent on two lines and taken from neither")
        for line in lines:
            line.close()


async def _was_taken(line: DirectLine) -> bool:
    """False: it was refused, or not answered in time."""
    with suppress(NotConnectedError, TimeoutError):
        async with asyncio.timeout(_WITHIN_S):
            while True:
                if line.acknowledged(0.0):
                    return True
                await asyncio.sleep(0.01)
    return False


# --- leases ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Leased:
    """Files of chunks with what they held when they were leased."""

    lease: UUID
    files: dict[Path, bytes] = field(default_factory=dict)


async def lease_and_truncate(env: Env) -> Leased:
    """Lease chunks of one segment, truncate it and another one, and wait until the other's chunks are gone."""
    rng, history = env.rng("lease"), env.history
    segments = env.segments("lease")
    leased = Leased(UUID(int=rng.getrandbits(128), version=4))
    names = [f"{SCOPE}/leased", f"{SCOPE}/unleased"]
    for name in names:
        await create(env, segments, name)
        writer = RawWriter(env, segments, name, name, rng)
        for _ in range(_EVENTS):
            await writer.append(give_up=False)
    until_ms = env.cluster.clock.now_ms() + _LEASE_MS
    files = {name: await _chunk_files(env, segments, name) for name in names}
    await env.insist(partial(segments.lease_chunks, [names[0]], leased.lease, until_ms=until_ms))
    # Those that are there once the lease is: what was there before may have been merged with others.
    leased.files = {path: path.read_bytes() for path in await _chunk_files(env, segments, names[0])}
    for name in names:
        length = (await env.insist(partial(segments.info, name))).length
        await env.insist(partial(segments.truncate, name, length))
        history.fact(name, "truncated", length)
    await _until(env, lambda: not any(path.exists() for path in files[names[1]]), "chunks of what was truncated stay")
    await look_at_leased(env, leased)
    return leased


async def _chunk_files(env: Env, segments: SegmentService, name: str) -> Sequence[Path]:
    """Once all of the segment is in tier 2."""
    info = await env.insist(partial(segments.info, name))
    async with asyncio.timeout(_WITHIN_S):
        while True:
            ranges = await env.insist(partial(segments.chunk_ranges, name, 0, info.length))
            if ranges and ranges[-1].end_offset == info.length:
                return [Path(item.location) for item in ranges if item.location is not None]
            await asyncio.sleep(0.05)


async def look_at_leased(env: Env, leased: Leased) -> None:
    """A reader with a lease finds its chunks, and in them what it was promised."""
    for path, data in leased.files.items():
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            env.history.violation("leased chunk deleted", path.name)
            continue
        if found != data:
            env.history.violation("leased chunk changed", path.name)


# --- a disk that hangs ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Questions:
    """What is asked for while the disk hangs, and what was answered."""

    busy: RawWriter
    calls: dict[str, Callable[[SegmentService], Awaitable[None]]]
    """Each is asked for, and asked for again."""
    places: Sequence[SegmentService]
    """One connection for each call and each time that it is asked: none waits behind another."""
    subjects: Sequence[str]
    target: str
    source: str
    group: Group
    merged_length: int = 0


async def prepare_questions(env: Env, name: str) -> Questions:
    """Segments with something in them, and connections that have been used."""
    rng, history = env.rng(name), env.history
    segments = env.segments(name)
    subjects = [f"{SCOPE}/{name}-{what}" for what in ("sealed", "truncated", "written", "target", "busy")]
    source = transaction_segment_name(subjects[3], UUID(int=rng.getrandbits(128), version=4))
    lengths: dict[str, int] = {}
    writers: dict[str, RawWriter] = {}
    group = history.group(name)
    for subject in (*subjects, source):
        await create(env, segments, subject)
        writers[subject] = writer = RawWriter(env, segments, subject, group.name if subject == source else subject, rng)
        for _ in range(2):
            if subject == source:
                await writer.append(stream=subjects[3], group=group, give_up=False)
            else:
                await writer.append(give_up=False)
        lengths[subject] = (await env.insist(partial(segments.info, subject))).length
    sealed, truncated, written, target, busy = subjects
    for subject in (written, target, busy):
        env.raw[subject] = None
    asked = Questions(writers[busy], {}, [], subjects, target, source, group)

    async def seal(place: SegmentService) -> None:
        history.fact(sealed, "sealed", await place.seal(sealed))

    async def truncate(place: SegmentService) -> None:
        await place.truncate(truncated, lengths[truncated])
        history.fact(truncated, "truncated", lengths[truncated])

    async def merge(place: SegmentService) -> None:
        asked.merged_length = max(asked.merged_length, await place.merge(target, source))

    asked.calls = {
        "seal": seal,
        "truncate": truncate,
        "merge": merge,
        "append": await _appending(env, written, rng),
    }
    asked.places = [env.segments(f"{name}/{number}") for number in range((1 + _ASKED_TIMES) * len(asked.calls))]
    for place in asked.places:
        await env.insist(partial(place.info, busy))
    return asked


async def _appending(env: Env, segment: str, rng: random.Random) -> Callable[[SegmentService], Awaitable[None]]:
    """Append an event, on a connection that is set up; who asks again asks what is stored of its writer."""
    history, line = env.history, env.segments(f"{segment}/line")
    data = event(env.config, segment, f"{segment}.asked", 1, "k", rng)
    write = history.write(segment, f"{segment}.asked", 1, "k", data)
    writer, framed = UUID(int=rng.getrandbits(128), version=4), frame_events([data])
    last = await env.insist(partial(line.setup_append, segment, writer))
    request = Append(segment=segment, writer=writer, data=framed, event_number=1, previous=last)
    sent = False

    async def append(place: SegmentService) -> None:
        nonlocal sent
        if not sent:
            sent = True
            done = await line.append(request)
            history.acknowledged(write, segment=segment, offset=done.end_offset - len(framed))
        elif await place.setup_append(segment, writer) >= 1 and write.outcome is not Outcome.OK:
            history.acknowledged(write, asked=True)

    return append


async def ask_while_the_disk_hangs(env: Env, nursery: Nursery, asked: Questions, restart: Restart | None) -> None:
    """Ask for things behind a sync that hangs, and for the same things again; then the server dies, or (``restart`` None) the
    disk goes on, and all must end."""
    env.history.deciding(asked.group, moment="merge")
    env.history.fact(asked.source, "deleting")
    nursery.hold()
    tasks = [env.loop.create_task(_append(asked.busy), name="first in the queue")]
    await _until(env, nursery.hangs, "no sync met the disk that hangs")
    places = iter(asked.places)
    for _ in range(1 + _ASKED_TIMES):
        for what, call in asked.calls.items():
            tasks.append(env.loop.create_task(_ask(call, next(places)), name=what))
        await asyncio.sleep(_ASKED_S)
    if restart is None:
        nursery.let_go()
        _, late = await asyncio.wait(tasks, timeout=_WITHIN_S)
        for task in late:
            env.history.violation("stuck", f"{task.get_name()} was not answered when the disk went on")
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    if restart is not None:
        await restart(holdable=True)


async def _append(writer: RawWriter) -> None:
    await writer.append(give_up=False)


async def _ask(call: Callable[[SegmentService], Awaitable[None]], place: SegmentService) -> None:
    # Refused, it may be asked for again; nothing is promised.
    with suppress(PenstockError):
        await call(place)


async def look_behind(env: Env, asked: Questions) -> None:
    """What was answered shows; what was not can be asked for again, and happens once."""
    segments = env.segments(f"{asked.group.name}/behind")
    for subject in asked.subjects:
        await look(env, segments, subject)
    length = (await env.insist(partial(segments.info, asked.target))).length
    if length < asked.merged_length:
        env.history.violation("forgotten merge", f"{asked.target} was {asked.merged_length} and is {length}")
    await env.insist(partial(segments.merge, asked.target, asked.source))
    env.history.fact(asked.source, "deleted")
    env.history.decided(asked.group, Outcome.OK)


async def _until(env: Env, condition: Callable[[], bool], otherwise: str) -> None:
    deadline = env.loop.time() + _WITHIN_S
    while not condition():
        if env.loop.time() > deadline:
            env.history.violation("stuck", otherwise)
            return
        await asyncio.sleep(0.01)
