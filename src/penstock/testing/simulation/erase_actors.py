"""Actors that erase events: of the stream, with receipts and holds, as users do; of segments, as the controller
does."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

from penstock.client.erasure import AsyncErasures, by_segment, pages_of
from penstock.codec.events import event_bounds
from penstock.core.segments.erasure_receipt import positions_digest
from penstock.model.answers import erasure as answers
from penstock.model.errors import (
    AlreadyExistsError,
    ErasureDeferredError,
    ErasureWithdrawnError,
    InvalidArgumentError,
    NotFoundError,
    TruncatedError,
)
from penstock.model.names import parse_segment_name
from penstock.model.segments import SegmentId
from penstock.ports.data.service import LocalSegmentService
from penstock.testing.simulation.actors import READ_BYTES, SCOPE, STREAM, Env
from penstock.testing.simulation.history import Erasure

T = TypeVar("T")
Events = Mapping[tuple[str, int], bytes]

_LATEST = 60  # reads of the audit stream that are checked
_PAUSE_S = 0.2
_HOLD = "eraser"


def needles(erasure: Erasure) -> list[bytes]:
    """The part of each event that identifies it, and that no file may contain after the erasure."""
    return [
        b"|".join(data.split(b"|", 4)[:4]) + b"|"
        for place, data in erasure.events.items()
        if place not in erasure.unsure
    ]


# --- events of the stream ---------------------------------------------------------------------------------------------


async def erase_in_stream(env: Env, name: str) -> None:
    """Erases events that the subscriber has read. Some erasures are deferred at first, some withdrawn, some repeated."""
    rng, history = env.rng(name), env.history
    erasures = env.store(name).stream(STREAM).erasures
    gone: dict[tuple[str, int], None] = {}
    count = 0
    while not env.stopping.is_set():
        await env.pause(rng, factor=8)
        events = await _chosen(env, rng, gone)
        if not events:
            continue
        count += 1
        id_ = f"{name}.{count}"
        is_held = rng.random() < 0.3 and await _is_deferred_while_held(env, erasures, id_, events)
        if is_held and rng.random() < 0.3:
            await _is_withdrawn(env, erasures, id_, events)
            continue
        erasure = history.erasure(id_, events)
        gone.update(dict.fromkeys(events))
        if is_held:
            await _release(env, id_)
        receipt = await _erase(env, erasures, erasure)
        if receipt is None:
            continue
        await _look_for(env, erasure)
        if rng.random() < 0.3:
            again = await env.insist(partial(_ask, erasures, id_, events))
            if again != receipt:
                history.violation("another receipt", f"{id_}: {again['sha256']} after {receipt['sha256']}")
        if rng.random() < 0.3:
            await verify(env, erasures, id_)
        if rng.random() < 0.5:
            # No reader can find a truncated event.
            await _hold(env, f"{id_}.kept")
            await env.pause(rng, factor=10)
            await _release(env, f"{id_}.kept")


async def _chosen(env: Env, rng: random.Random, gone: Mapping[tuple[str, int], object], *, count: int = 5) -> Events:
    """Some of the events that the subscriber has read last. Most of them are not truncated."""
    read = () if env.audit is None else env.audit.reads[-_LATEST:]
    known = {(item.segment, item.offset): item.data for item in read if (item.segment, item.offset) not in gone}
    truncated = await _truncated(env, known)
    there = [place for place in known if place not in truncated]
    chosen = rng.sample(there, min(len(there), rng.randrange(1, count + 1)))
    return {place: known[place] for place in chosen}


async def _ask(erasures: AsyncErasures, id_: str, events: Events) -> Mapping[str, Any]:
    positions = [(parse_segment_name(segment)[1], offset) for segment, offset in events]
    return await erasures.run(positions, who="simulation", why="a test", erasure=id_)


async def _erase(env: Env, erasures: AsyncErasures, erasure: Erasure) -> Mapping[str, Any] | None:
    """The receipt. None if the events were truncated before the erasure was decided."""
    try:
        receipt = await env.insist(partial(_ask, erasures, erasure.name, erasure.events))
    except (TruncatedError, InvalidArgumentError) as error:
        env.history.not_erased(erasure, str(error))
        unsure = await _truncated(env, erasure.events)
        if not unsure:
            env.history.violation("erasure refused", f"{erasure.name}, nothing of it is truncated: {error}")
        return None
    env.history.erased(erasure)
    erasure.unsure = await _truncated(env, erasure.events)
    return receipt


async def _truncated(env: Env, events: Events) -> frozenset[tuple[str, int]]:
    """The events that are before the head now."""
    head = (await env.insist(lambda: env.controller.cuts.head(STREAM))).positions
    places = {place: (parse_segment_name(place[0])[1], place[1]) for place in events}
    return frozenset(
        place
        for place, (segment, offset) in places.items()
        if (offset < head[segment] if segment in head else not head or segment < max(head))
    )


async def _is_deferred_while_held(env: Env, erasures: AsyncErasures, id_: str, events: Events) -> bool:
    """Request an erasure of a held stream. True: it is deferred, and the hold is there. False: it could not be requested.

    Until the caller ends the hold, every reader that finds one of the events blank reports a violation.
    """
    await _hold(env, id_)
    try:
        await env.insist(partial(_ask, erasures, id_, events))
        env.history.violation("erased what is held", id_)
    except ErasureDeferredError as error:
        env.history.note(f"deferred {id_}: {error}")
        await env.pause(env.rng(f"{id_}.deferred"), factor=4)
        state = await env.insist(lambda: erasures.show(id_))
        if state.state != "deferred":
            env.history.violation("not deferred", f"{id_} is {state.state} while it is held")
        return True
    except (TruncatedError, InvalidArgumentError) as error:
        env.history.note(f"truncated before it was held {id_}: {error}")
    await _release(env, id_)
    return False


async def _is_withdrawn(env: Env, erasures: AsyncErasures, id_: str, events: Events) -> None:
    """Withdraw a deferred erasure and end its hold. The events stay, and the id cannot be used again."""
    await env.insist(partial(erasures.withdraw, id_, who="simulation", why="a test"))
    await _release(env, id_)
    try:
        await env.insist(partial(_ask, erasures, id_, events))
        env.history.violation("erased what was withdrawn", id_)
    except ErasureWithdrawnError as error:
        env.history.note(f"withdrawn {id_}: {error}")


async def _hold(env: Env, id_: str) -> None:
    await env.insist(partial(env.controller.holds.add, STREAM, owner=_HOLD, reason="a test", hold_id=id_))


async def _release(env: Env, id_: str) -> None:
    try:
        await env.insist(lambda: env.controller.holds.release(id_, owner=_HOLD))
    except NotFoundError:
        env.history.note(f"hold is released {id_}")


async def verify(env: Env, erasures: AsyncErasures, id_: str) -> None:
    """Receipts can be verified at any time."""
    found = await env.insist(lambda: erasures.verify(id_))
    if not found.holds:
        env.history.violation("receipt is not true", f"{id_}: {found.problems[:3]}")


async def verify_all(env: Env) -> None:
    """At the end: verify every receipt, and check that each requested erasure has one."""
    erasures = env.store("verifier").stream(STREAM).erasures
    for item in env.history.erasures:
        if item.done_s is not None and item.name.startswith(("eraser.", "runs.")):
            await verify(env, erasures, item.name)


async def _look_for(env: Env, erasure: Erasure) -> None:
    left = await env.left_behind(needles(erasure))
    if left:
        env.history.violation("erased bytes are left", f"{erasure.name}: {left[:4]}")


async def look_for_all(env: Env) -> None:
    """At the end: no file contains any erased event."""
    for erasure in env.history.erasures:
        if erasure.done_s is not None:
            await _look_for(env, erasure)


# --- two runs of one id -----------------------------------------------------------------------------------------------


async def erase_in_two_runs(env: Env, name: str) -> None:
    """Sends two concurrent requests under one id, page by page, for the same events or for different ones.

    All events that a run with a receipt has requested are erased.
    """
    rng, history = env.rng(name), env.history
    erasures = env.store(name).stream(STREAM).erasures
    count = 0
    while not env.stopping.is_set():
        await env.pause(rng, factor=8)
        events = await _chosen(env, rng, {}, count=8)
        if len(events) < 2:
            continue
        count += 1
        id_ = f"{name}.{count}"
        some = [dict(rng.sample(list(events.items()), rng.randrange(1, len(events) + 1))) for _ in range(2)]
        runs = [_Run(env, history.erasure(id_, item), rng) for item in some]
        await asyncio.gather(*(run.ask() for run in runs))
        for run in runs:
            if run.is_covered:
                await _wait(env, erasures, id_)
                history.erased(run.erasure)
                run.erasure.unsure = await _truncated(env, run.erasure.events)
                await _look_for(env, run.erasure)
        if any(run.is_covered for run in runs) and rng.random() < 0.3:
            await verify(env, erasures, id_)


class _Run:
    """One run of an erasure: pages of one event each, sent as a separate client sends them."""

    def __init__(self, env: Env, erasure: Erasure, rng: random.Random) -> None:
        self._env = env
        self.erasure = erasure
        self.is_covered = False
        """Whether an erasure that includes all events of this run was decided."""
        self._rng = rng
        self._places = [(parse_segment_name(segment)[1], offset) for segment, offset in erasure.events]
        self._positions = by_segment(self._places)
        events, digest = positions_digest(self._positions)
        self._run = {"attempt": f"{rng.getrandbits(64):x}", "events": events, "positions_sha256": digest}

    async def ask(self) -> None:
        """Send all pages until their outcome is known."""
        try:
            while True:
                if await self._send_all():
                    break
                await asyncio.sleep(_PAUSE_S)
        except AlreadyExistsError as error:
            self._env.history.not_erased(self.erasure, str(error))
        except (TruncatedError, InvalidArgumentError) as error:
            self._env.history.not_erased(self.erasure, str(error))
            if not await _truncated(self._env, self.erasure.events):
                self._env.history.violation("erasure refused", f"{self.erasure.name}, nothing is truncated: {error}")
        else:
            self.is_covered = True

    async def _send_all(self) -> bool:
        """Whether every page was sent to a decided erasure, or the last one decided it."""
        pages = pages_of(self._positions, 1)
        decided = 0
        for number in range(len(pages)):
            await asyncio.sleep(self._rng.random() * 10 * self._env.config.latency_s)
            state = await self._env.insist(partial(self._send, pages[number], number, last=number == len(pages) - 1))
            decided += state.state != "gathering"
            if (
                decided
                and state.request is not None
                and state.request.positions_sha256 == self._run["positions_sha256"]
            ):
                return True
        return decided == len(pages)

    async def _send(self, page: Mapping[SegmentId, Sequence[int]], number: int, *, last: bool) -> answers.Erasure:
        asked = {"erasure": self.erasure.name, "who": "simulation", "why": "a test", "looked_for": {"by": "positions"}}
        controller = self._env.controller
        return await controller.erasures.erase(STREAM, asked | {"run": self._run}, page, page=number, last=last)


async def _wait(env: Env, erasures: AsyncErasures, id_: str) -> Mapping[str, Any]:
    return await env.insist(lambda: erasures.wait(id_))


# --- events of segments
# ------------------------------------------------------------------------------------------------


async def erase_in_segments(env: Env, name: str, *names: str) -> None:
    """Erases events of segments while other actors append to them, merge into them, and read them as bytes."""
    rng, history = env.rng(name), env.history
    segments: LocalSegmentService = env.local
    gone: dict[tuple[str, int], None] = {}
    count = 0
    while not env.stopping.is_set():
        await env.pause(rng, factor=8)
        segment = rng.choice(names)
        there = [item for item in await _events_of(env, segments, segment) if (segment, item[0]) not in gone]
        if not there:
            continue
        count += 1
        chosen = sorted(rng.sample(there, min(len(there), rng.randrange(1, 6))))
        events = {(segment, offset): data for offset, data in chosen}
        gone.update(dict.fromkeys(events))
        expected = [(offset + 8, offset + 8 + len(data)) for offset, data in chosen]
        ranges = await env.insist(partial(segments.event_ranges, segment, [offset for offset, _ in chosen]))
        if list(ranges) != expected:
            history.violation("wrong ranges", f"{segment} {expected} {ranges}")
        erasure = history.erasure(f"{name}.{count}", events)
        id_ = UUID(int=rng.getrandbits(128), version=4).hex
        done = await persist(env, partial(segments.erase, segment, ranges, erasure=id_))
        if rng.random() < 0.3:
            again = await persist(env, partial(segments.erase, segment, ranges, erasure=id_))
            if again != done:
                history.violation("another answer", f"{erasure.name}: {again} after {done}")
        total = sum(item.blanked_bytes for item in done)
        if total != sum(len(data) for data in events.values()):
            history.violation("blanked bytes", f"{erasure.name}: {total} of {expected}")
        await persist(env, segments.wipe_log)
        history.erased(erasure)
        await _look_for(env, erasure)


async def persist(env: Env, call: Callable[[], Awaitable[T]]) -> T:
    """Persist as the controller does: repeat after every disk error."""
    while True:
        try:
            return await env.insist(call)
        except OSError as error:
            env.history.note(f"erasure waits: {error}")
            await asyncio.sleep(_PAUSE_S)


async def _events_of(env: Env, segments: LocalSegmentService, segment: str) -> Sequence[tuple[int, bytes]]:
    """Offset and payload of each present event that is not blank."""
    length = (await env.insist(partial(segments.info, segment))).length
    data = b""
    while len(data) < length:
        found = await env.insist(partial(segments.read, segment, len(data), READ_BYTES, wait=False))
        data += b"".join(found.parts)
    bounds = event_bounds(data, segment=segment, offset=0)
    return [(start, data[start + 8 : end]) for start, end in pairwise(bounds) if any(data[start + 8 : end])]


def names_of_segments() -> Sequence[str]:
    return [f"{SCOPE}/{name}" for name in ("shared", "merged")]
