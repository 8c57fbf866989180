"""A stream that is deleted, then restored or replaced. Within its grace it loses no event, and streams never mix."""

from __future__ import annotations

import random
from functools import partial

from penstock.model.cuts import StreamCut
from penstock.model.errors import AlreadyExistsError, ConflictError, NotFoundError
from penstock.model.names import StreamName, segment_name
from penstock.model.segments import number_of
from penstock.testing.simulation.actors import Env
from penstock.testing.simulation.control.actors import Appender, Seen, make_scope, make_stream, must_end
from penstock.testing.simulation.control.world import DELETION_GRACE_S

BACK = StreamName("restored", "stream")
_READ_BYTES = 1 << 16


class _Stream:
    """The stream as its only user knows it: the events of each incarnation that it may still see."""

    def __init__(self, env: Env, seen: Seen, rng: random.Random) -> None:
        self.env = env
        self.seen = seen
        self.rng = rng
        self.writer = Appender(env, rng)
        self.events: list[bytes] = []
        self.incarnation = 0

    async def write(self) -> None:
        for item in await self.env.insist(partial(self.env.controller.layout.current, BACK)):
            for _ in range(self.rng.randrange(1, 4)):
                data = self.rng.randbytes(16)
                if await self.writer.append(segment_name(BACK, item.segment), data) is not None:
                    self.events.append(data)

    async def check(self) -> None:
        """Check that it has all its events and none of another incarnation."""
        found = await self._read()
        count = len(found) // 24
        missing = [item for item in self.events if item not in found]
        if missing or count != len(self.events):
            self.env.history.violation(
                "restored stream differs", f"{len(missing)} of {len(self.events)} events are missing, {count} are there"
            )

    async def _read(self) -> bytes:
        local, unbounded = self.env.cluster.local, StreamCut(BACK, {})
        names = await self.env.insist(partial(self.env.controller.cuts.segments_between, BACK, unbounded, unbounded))
        found = bytearray()
        for segment in names:
            name = segment_name(BACK, segment)
            length = (await self.env.insist(partial(local.info, name))).length
            offset = 0
            while offset < length:
                part = await self.env.insist(partial(local.read, name, offset, _READ_BYTES, wait=False))
                data = b"".join(part.parts)
                found += data
                offset += len(data)
        return bytes(found)

    async def delete(self) -> float:
        """Delete the stream; return the earliest end of its grace."""
        first = await self.env.insist(partial(self.env.controller.layout.of_epoch, BACK, 0))
        self.incarnation = number_of(first[0].segment)
        until_s = self.env.loop.time() + DELETION_GRACE_S
        await must_end(self.env, "deletion", self._delete)
        return until_s

    async def _delete(self) -> None:
        try:
            await self.env.controller.streams.delete(BACK, seal=True)
        except NotFoundError:
            self.env.history.note("deleted by a lost attempt")

    async def restore(self, until_s: float, incarnation: int | None = None) -> bool:
        """Restore the stream (None: the one deleted last) and return whether it is restored. Only refused after the
        grace."""
        try:
            await self.env.insist(partial(self.env.controller.streams.restore, BACK, incarnation=incarnation))
        except AlreadyExistsError:
            self.env.history.note("restored by a lost attempt")
        except (NotFoundError, ConflictError) as error:
            if self.env.loop.time() < until_s:
                self.env.history.violation("restoration refused within the grace", str(error))
            return False
        return True

    async def replace(self, until_s: float) -> None:
        """Create another stream of the name, check its data, and delete it; the first one can still be restored."""
        env, mine, number = self.env, self.events, self.incarnation
        await self.renew()
        await self.write()
        try:
            await env.insist(partial(env.controller.streams.restore, BACK, incarnation=number))
            env.history.violation("restored over another stream", str(BACK))
        except (ConflictError, NotFoundError):
            await self.check()
        listed = await env.insist(partial(env.controller.streams.list_deleted, BACK.scope))
        if env.loop.time() < until_s and number not in [item.incarnation for item in listed]:
            env.history.violation("deleted stream is not listed", str(BACK))
        await self.delete()
        if await self.restore(until_s, number):
            self.events = mine
            self.seen.count("deleted streams replaced")
        else:
            await self.renew()

    async def renew(self) -> None:
        """Create a stream of the name."""
        await must_end(self.env, "creation", partial(make_stream, self.env, BACK))
        self.events = []


async def delete_and_restore(env: Env, seen: Seen, name: str) -> None:
    """Delete a stream, then restore it, replace it, or let its grace end, and check the data each time."""
    stream = _Stream(env, seen, env.rng(name))
    await make_scope(env, BACK.scope)
    await make_stream(env, BACK)
    while not env.stopping.is_set():
        await stream.write()
        await env.pause(stream.rng, factor=0.2)
        until_s = await stream.delete()
        fate = stream.rng.random()
        if fate < 0.3:
            await stream.replace(until_s)
        elif fate < 0.8 and await stream.restore(until_s):
            seen.count("streams restored")
        else:
            await stream.renew()
        await stream.check()


async def check_freed(env: Env) -> None:
    """Called long after the last fault: no deleted stream is left, and no segment of one."""
    left = await env.insist(env.controller.streams.list_deleted)
    if left:
        env.history.violation("data of a deleted stream is kept forever", str(left[:3]))
