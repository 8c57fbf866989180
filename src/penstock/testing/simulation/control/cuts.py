"""A subscriber that publishes what it has read, and sometimes a cut that no reader can have reached."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from uuid import UUID

from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidCutError
from penstock.model.names import StreamName, segment_name
from penstock.model.policies import ReaderGroupRetention
from penstock.model.retention import Idle, PolicyDocument, Retain, Unsubscribed
from penstock.model.segments import SegmentId, make_segment_id
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.testing.simulation.actors import Env
from penstock.testing.simulation.control.actors import Appender, Seen, make_scope, make_stream

READ = StreamName("read", "stream")
_GROUP = "subscriber"


async def publish_cuts(env: Env, seen: Seen, name: str) -> None:
    """Nothing that the subscriber has not read may be deleted, even if it publishes positions that do not exist yet."""
    rng = env.rng(name)
    await make_scope(env, READ.scope)
    await make_stream(env, READ)
    # Data that the subscriber has read may be deleted. The server's rules, which another actor sets, do not apply.
    least = PolicyDocument(
        retain=Retain(min_bytes=0, max_bytes=None), unsubscribed=Unsubscribed.KEEP, idle=Idle(stream_s=None)
    )
    await env.insist(partial(env.controller.policies.set, READ.scope, least))
    done = await _tail(env)
    await _join(env, rng, done)
    writer = Appender(env, rng)
    while not env.stopping.is_set():
        for _ in range(rng.randrange(1, 6)):
            segment = rng.choice(sorted(done))
            await writer.append(segment_name(READ, segment), rng.randbytes(rng.randrange(10, 60)))
        if rng.random() < 0.5:
            await _publish_wrongly(env, seen, rng, done)
        else:
            done = await _tail(env)
            await _publish(env, StreamCut(READ, done))
            seen.count("cuts published")
        await env.pause(rng)
        await _check_unread(env, done)


async def _tail(env: Env) -> Mapping[SegmentId, int]:
    return (await env.insist(partial(env.controller.cuts.tail, READ))).positions


async def _join(env: Env, rng: random.Random, start: Mapping[SegmentId, int]) -> None:
    config = ReaderGroupConfig(
        scope=READ.scope,
        name=_GROUP,
        id=UUID(int=rng.getrandbits(128), version=4),
        retention=ReaderGroupRetention.MANUAL,
        start_cuts={READ: StreamCut(READ, start)},
    )
    await env.insist(partial(env.controller.groups.create, config))


async def _publish(env: Env, cut: StreamCut) -> None:
    subscriber = f"{READ.scope}/{_GROUP}"
    await env.insist(partial(env.controller.subscribers.publish, subscriber, group_id=None, generation=None, cut=cut))


async def _publish_wrongly(env: Env, seen: Seen, rng: random.Random, done: Mapping[SegmentId, int]) -> None:
    """A cut beyond the tail, of a segment that is not there, or behind what was published."""
    tail = dict(await _tail(env))
    kind = rng.randrange(4)
    if kind < 2:
        tail[rng.choice(sorted(tail))] += rng.choice((1, 100, 100_000))
    elif kind == 2:
        tail = {make_segment_id(7, 70 + number): 100 for number in range(len(tail))}
    else:
        segment = rng.choice(sorted(tail))
        tail = {**done, segment: max(0, done[segment] - 1)}
    try:
        await _publish(env, StreamCut(READ, tail))
    except InvalidCutError:
        seen.count("cuts refused")
    else:
        env.history.note(f"cut was accepted {tail}, of {dict(done)}")


async def _check_unread(env: Env, done: Mapping[SegmentId, int]) -> None:
    head = (await env.insist(partial(env.controller.cuts.head, READ))).positions
    for segment, offset in head.items():
        if offset > done.get(segment, 0):
            env.history.violation("deleted unread", f"{READ} from {offset} on in {segment}, read until {done}")
