"""Segments with one damaged metadata row: calls for them may be refused, but nothing else may be affected."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from penstock.codec.store import rows as records
from penstock.model.errors import CorruptDataError, TruncatedError
from penstock.testing.simulation.actors import Env, cancel
from penstock.testing.simulation.control.actors import Seen, make_scope
from penstock.testing.simulation.head_actors import Content
from penstock.testing.simulation.segment_actors import create

_SCOPE = "flipped"
_TAGS = (records.TAG_SEGMENT, records.TAG_CHUNK, records.TAG_ATTRIBUTE, records.TAG_BLOCK)
_REST_S = 4.0
_CALL_S = 10.0


async def flip_bits(env: Env, seen: Seen, name: str) -> None:
    """Damage one row of a segment that the log names, and kill the node. The node must start again. Before and after
    the row is repaired, reads must return what was written."""
    rng = env.rng(name)
    await make_scope(env, _SCOPE)
    count = 0
    while not env.stopping.is_set():
        count += 1
        segment = f"{_SCOPE}/{name}-{count}"
        await create(env, env.local, segment)
        content = Content(env, segment, rng)
        for _ in range(3):
            await content.fill(200)
            await content.tiered()
        row = _choose_row(env, content, rng)
        if row is None or env.stopping.is_set():
            continue
        # The segment is intact in memory, and this append makes the log name it again.
        await content.append()
        env.cluster.rows.damaged[row] = None
        env.history.note(f"damaged {row!r} of {segment}")
        env.cluster.crash(power=False)
        await asyncio.sleep(_REST_S * rng.random())
        await _use(env, content, rng)
        await asyncio.sleep(_REST_S * rng.random())
        env.cluster.rows.damaged.pop(row, None)
        env.cluster.crash(power=False)
        await _may_be_refused(env, content.check_data)
        seen.count("rows damaged")


def _choose_row(env: Env, content: Content, rng: random.Random) -> bytes | None:
    """The key of a committed row of the segment; None where none is committed."""
    rows = env.cluster.rows.entries
    uids = [
        (key[1:3], value[: len(key[3:11])])
        for key, value in rows.items()
        if key[:1] == records.TAG_NAME and key[3:] == content.segment.encode()
    ]
    if not uids:
        return None
    container, uid = uids[0]
    own = [key for key in rows if key[:1] in _TAGS[:3] and key[1:3] == container and key[3:11] == uid]
    chunks = [records.decode_chunk(rows[key]).name for key in own if key[:1] == records.TAG_CHUNK]
    own += [
        key
        for name in chunks
        for key in rows
        if key.startswith(records.block_prefix(int.from_bytes(container, "big"), name))
    ]
    wanted = rng.choice(_TAGS)
    return rng.choice(sorted([key for key in own if key[:1] == wanted] or own)) if own else None


async def _use(env: Env, content: Content, rng: random.Random) -> None:
    """Read the segment, and truncate it so that its head may be given back."""
    places = content.places()
    await _may_be_refused(env, content.check_data)
    if await _may_be_refused(env, partial(env.local.truncate, content.segment, places[len(places) // 2])):
        content.head = places[len(places) // 2]
    await asyncio.sleep(_REST_S * rng.random())
    await _may_be_refused(env, content.check_data)


async def _may_be_refused(env: Env, call: Callable[[], Awaitable[Any]]) -> bool:
    """Whether the call was answered. The only error allowed is one of damage."""
    task = env.loop.create_task(_repeat(env, call), name="call")
    try:
        async with asyncio.timeout(_CALL_S):
            await task
    except (CorruptDataError, TruncatedError) as error:
        env.history.note(f"refused: {error}")
        return False
    except TimeoutError:
        return False
    finally:
        await cancel([task])
    return True


async def _repeat(env: Env, call: Callable[[], Awaitable[Any]]) -> None:
    await env.insist(call)
