"""A limit over segments of several containers that share no memory: each container gets a share.

The shares add up to the limit at most, so it is never exceeded. A container that reaches its share reports that. The next
time that the limit is set, it gets all that is left, and the others nothing beyond what they have. So a writer may be held
for a moment while there is room elsewhere. Source: docs/design/0065-cluster.md, "Limits of writers".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from penstock.model.errors import ContainerOfflineError, NotConnectedError
from penstock.model.values.dataclass import dataclass
from penstock.net.tasks import together
from penstock.net.workers.line import WorkerLine
from penstock.ports.data.limits import AppendLimit, LimitAction
from penstock.ports.data.segments import SegmentInfo

Pair = tuple[int, int]
"""Bytes and events."""
_NOTHING: Pair = (0, 0)


def wanted_shares(total: int, used: Mapping[int, int], *, favoured: int | None) -> dict[int, int]:
    """Divide what is left of a limit.

    Args:
        total: The limit. used: What each container of the stream has now. favoured: The container that gets all that is
        left; None: each gets an equal part.
    """
    left = max(0, total - sum(used.values()))
    if favoured in used:
        return {number: size + (left if number == favoured else 0) for number, size in used.items()}
    each = left // max(1, len(used))
    return {number: size + each for number, size in used.items()}


def raised_shares(total: int, wanted: Mapping[int, int], given: Mapping[int, int]) -> dict[int, int]:
    """Shares of the containers that get more, once those that get less have lowered theirs.

    Args:
        total: The limit. wanted: Shares of those that get more. given: Shares in force, of all containers.
    """
    extra = {number: share - given[number] for number, share in wanted.items()}
    slack, most = max(0, total - sum(given.values())), sum(extra.values())
    if most <= slack:
        return dict(wanted)
    return {number: given[number] + extra[number] * slack // most for number in wanted}


class LimitShares:
    """Sets limits in containers. ``lines`` are borrowed. ``owner``: the line of a segment."""

    def __init__(self, lines: Sequence[WorkerLine], owner: Callable[[str], int]) -> None:
        self._lines = lines
        self._owner = owner
        self._given: dict[str, dict[int, Pair]] = {}
        self._sent: dict[str, dict[int, AppendLimit]] = {}
        self._waiting: dict[str, dict[int, None]] = {}
        self._idle: dict[str, list[int]] = {}  # containers without segments of the stream, which know that
        self._turns: dict[str, _Turn] = {}

    def met(self, stream: str, container: int) -> None:
        """A container has reached its share."""
        if stream in self._given:
            self._waiting.setdefault(stream, {})[container] = None

    async def put(self, limit: AppendLimit, generation: int) -> None:
        """Divide the limit, and send each container its share; or lift it, if it has no totals. Those that are away get it by
        ``restore``. Calls for one stream take effect in the order in which they began."""
        turn = self._turns.setdefault(limit.stream, _Turn())
        turn.callers += 1
        try:
            async with turn.lock:
                if limit.total_bytes is None and limit.total_events is None:
                    await self._lift(limit, generation)
                else:
                    await self._put(limit, generation)
        finally:
            turn.callers -= 1
            if not turn.callers:
                del self._turns[limit.stream]

    async def _lift(self, limit: AppendLimit, generation: int) -> None:
        for known in (self._given, self._sent, self._waiting, self._idle):
            known.pop(limit.stream, None)
        own = replace(limit, segments=())
        await together([self._call(own, number, generation) for number in range(len(self._lines))])

    async def _put(self, limit: AppendLimit, generation: int) -> None:
        """A share in force counts until its container has confirmed a lower one. A container whose share is not known, as
        after the death of another controller, is first held at what it has. While one of these is away, no share grows."""
        members = sorted({self._owner(name) for name in limit.segments})
        given = self._given.setdefault(limit.stream, {})
        for number in [one for one in given if one not in members]:
            del given[number]
        used = await self._used(limit, members)
        held = _Division(limit=limit, generation=generation, favoured=None, is_shared=True)
        # Segments that are created in other containers have no share until the limit is set again.
        idle = [number for number in self._idle.get(limit.stream, ()) if number not in members]
        others = [number for number in range(len(self._lines)) if number not in members and number not in idle]
        idle += await self._send(held, dict.fromkeys(others, _NOTHING), {})
        self._idle[limit.stream] = idle
        unknown = [number for number in members if number not in given]
        fresh: dict[int, Pair] = {}
        answered = await self._send(held, {one: used.get(one, _NOTHING) for one in unknown}, fresh)
        given |= {number: fresh[number] for number in answered}
        if len(given) < len(members):
            return
        # One that is away may use its whole share. One that has confirmed may have more than what is durable.
        now = {one: _largest(used.get(one, given[one]), given[one] if one in unknown else _NOTHING) for one in members}
        favoured = self._next(limit.stream, members)
        bytes_ = wanted_shares(limit.total_bytes or 0, _part(now, 0), favoured=favoured)
        events = wanted_shares(limit.total_events or 0, _part(now, 1), favoured=favoured)
        wanted = {one: (bytes_[one], events[one]) for one in members}
        division = _Division(
            limit=limit, generation=generation, favoured=favoured, is_shared=len(members) > 1 and _has_room(limit, now)
        )
        less = {one: _smallest(share, given[one]) for one, share in wanted.items()}
        await self._send(division, {one: share for one, share in less.items() if share != given[one]}, given)
        bytes_ = raised_shares(limit.total_bytes or 0, _more(wanted, given, 0), _part(given, 0))
        events = raised_shares(limit.total_events or 0, _more(wanted, given, 1), _part(given, 1))
        final = {one: (bytes_.get(one, given[one][0]), events.get(one, given[one][1])) for one in members}
        await self._send(division, final, given)

    async def restore(self, limit: AppendLimit, container: int, generation: int) -> None:
        """Send a container that is back the share that it had, for the segments that the limit names by now."""
        sent = self._sent.get(limit.stream, {}).get(container)
        if sent is not None:
            await self._call(replace(sent, segments=self._names(limit, container)), container, generation)

    def _next(self, stream: str, members: Sequence[int]) -> int | None:
        """The first container that waits for more; None: none does."""
        waiting = self._waiting.get(stream, {})
        found = next((number for number in waiting if number in members), None)
        if found is not None:
            del waiting[found]
        return found

    def _names(self, limit: AppendLimit, container: int) -> Sequence[str]:
        return [name for name in limit.segments if self._owner(name) == container]

    async def _used(self, limit: AppendLimit, members: Sequence[int]) -> dict[int, Pair]:
        """What is durable in each container; those that are away are left out."""

        async def one(number: int) -> tuple[int, Pair | None]:
            link = self._lines[number].link
            if link is None:
                return number, None
            names = [name for name in limit.segments if self._owner(name) == number]
            try:
                found: Mapping[str, SegmentInfo] = await link.call("infos", names)
            except (NotConnectedError, ContainerOfflineError):
                return number, None
            return number, (sum(one.length for one in found.values()), sum(one.event_count for one in found.values()))

        answers = await together([one(number) for number in members])
        return {number: pair for number, pair in answers if pair is not None}

    async def _send(self, division: _Division, shares: Mapping[int, Pair], given: dict[int, Pair]) -> Sequence[int]:
        """Send shares, and note in ``given`` what each container may have from now on. Returns those that have confirmed."""
        limit = division.limit

        async def one(number: int, share: Pair) -> bool:
            own = division.part(number, share, self._names(limit, number))
            self._sent.setdefault(limit.stream, {})[number] = own
            given[number] = _largest(given.get(number, _NOTHING), share)
            answer = await self._call(own, number, division.generation)
            if answer is not None:
                given[number] = _largest(share, answer)
            return answer is not None

        confirmed = await together([one(number, share) for number, share in shares.items()])
        return [number for number, done in zip(shares, confirmed, strict=True) if done]

    async def _call(self, own: AppendLimit, number: int, generation: int) -> Pair | None:
        """What the container has, queued appends included; None: it is away, or does not report it."""
        link = self._lines[number].link
        if link is None:
            return None
        try:
            answers: Any = await link.call("limit_appends", [own], [None], generation)
        except (NotConnectedError, ContainerOfflineError):
            return None
        return (int(answers[0][0]), int(answers[0][1])) if answers else None


@dataclass(slots=True)
class _Turn:
    """Lets one change of a stream's limit happen at a time. ``callers``: those that change it or wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    callers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """A limit that is divided. ``favoured``: the container that gets all that is left. ``is_shared``: others may have
    room."""

    limit: AppendLimit
    generation: int
    favoured: int | None
    is_shared: bool

    def part(self, number: int, share: Pair, names: Sequence[str]) -> AppendLimit:
        """The limit of one container."""
        limit, bytes_, events = self.limit, *share
        is_whole = number == self.favoured or not self.is_shared
        return replace(
            limit,
            segments=names,
            total_bytes=None if limit.total_bytes is None else bytes_,
            total_events=None if limit.total_events is None else events,
            # What is unread is known only where everything that is left is.
            quota_bytes=limit.quota_bytes if is_whole else None,
            quota_events=limit.quota_events if is_whole else None,
            action=limit.action if is_whole else _softer(limit.action),
            events_action=limit.events_action
            if is_whole or limit.events_action is None
            else _softer(limit.events_action),
        )


def _softer(action: LimitAction) -> LimitAction:
    """Hold, and do not reject, while there may be room elsewhere."""
    return LimitAction.HOLD if action is LimitAction.REJECT else action


def _has_room(limit: AppendLimit, used: Mapping[int, Pair]) -> bool:
    return (limit.total_bytes is None or sum(_part(used, 0).values()) < limit.total_bytes) and (
        limit.total_events is None or sum(_part(used, 1).values()) < limit.total_events
    )


def _more(wanted: Mapping[int, Pair], given: Mapping[int, Pair], index: int) -> dict[int, int]:
    return {number: share[index] for number, share in wanted.items() if share[index] > given[number][index]}


def _largest(one: Pair, other: Pair) -> Pair:
    return max(one[0], other[0]), max(one[1], other[1])


def _smallest(one: Pair, other: Pair) -> Pair:
    return min(one[0], other[0]), min(one[1], other[1])


def _part(pairs: Mapping[int, Pair], index: int) -> dict[int, int]:
    return {number: pair[index] for number, pair in pairs.items()}
