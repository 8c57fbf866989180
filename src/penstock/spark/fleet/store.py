"""Facts from a running store instead of files: the driver pages through the names, tasks request the planner's facts.

Names are listed in order, so a share is a range of that list. The driver keeps only its ends.
Source: docs/how-to/fleet.md, "Facts".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import msgspec

from penstock.client.retry import RETRYABLE
from penstock.model.errors import NotFoundError, PenstockError, ScopeNotFoundError
from penstock.model.names import StreamName
from penstock.model.values.dataclass import dataclass
from penstock.ports.control.subscribers import SubscriberInfo
from penstock.spark.connect import Connector, Services, dial, link
from penstock.spark.option_values import TOKEN_S
from penstock.spark.worker.plan_access import access_for

SHARE_STREAMS = 500  # streams of one task
PAGE_STREAMS = 50
"""Streams of one request, which is repeated as a whole if the store becomes unavailable."""

AT_ONCE = 4
"""Concurrent requests of one task. More would slow down writers, because the store reads metadata and blocks for facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The facts of all streams of the store at ``controller``, except its internal ones."""

    controller: str
    connector: Connector = dial


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShare:
    """The streams of a scope after ``after``, up to and including ``last``. ``first``: the number of the first one in the
    list of all, counted from 1. ``rows``: their number when they were listed."""

    facts: StoreFacts
    scope: str
    after: str
    last: str
    first: int
    rows: int

    @property
    def source(self) -> str:
        return self.facts.controller


@dataclass(frozen=True, slots=True)
class StoreLine:
    """The line of facts of a stream, or why it is unavailable, and the subscribers of the stream."""

    line: bytes | Fault
    subscribers: Sequence[SubscriberInfo] = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """A stream whose facts are unavailable, and why."""

    stream: StreamName
    error: PenstockError


def store_shares(facts: StoreFacts) -> list[StoreShare]:
    """Shares of all user streams of the store. Raises NotConnectedError, UnavailableError."""
    return link(facts.connector, facts.controller).ask(partial(_shares, facts))


def store_lines(share: StoreShare) -> Iterator[list[tuple[int, StoreLine]]]:
    """Lines of facts with their numbers and subscribers, in pages. Streams deleted since they were listed are left out.

    Raises NotConnectedError, UnavailableError where the store stays away.
    """
    server = link(share.facts.connector, share.facts.controller)
    names = server.ask(partial(_names, share))
    for start in range(0, len(names), PAGE_STREAMS):
        found = server.ask(partial(_asked, share.scope, names[start : start + PAGE_STREAMS]))
        yield [(share.first + start + place, line) for place, line in enumerate(found) if line is not None]


async def _shares(facts: StoreFacts, services: Services) -> list[StoreShare]:
    access = await access_for(facts.connector, services, [None], "read", valid_s=TOKEN_S)
    return await _listed(replace(facts, connector=access), services)


async def _listed(facts: StoreFacts, services: Services) -> list[StoreShare]:
    shares: list[StoreShare] = []
    first = 1
    async for scope in _scopes(services):
        after, begin, count = "", "", 0
        # A scope may be deleted after it was listed, with what it had.
        with suppress(ScopeNotFoundError):
            while page := await services.controller.streams.list(scope, after=after):
                for name in page:
                    count += not StreamName(scope, name).is_internal
                    if count == SHARE_STREAMS:
                        shares.append(
                            StoreShare(facts=facts, scope=scope, after=begin, last=name, first=first, rows=count)
                        )
                        begin, first, count = name, first + count, 0
                after = page[-1]
        if count:
            shares.append(StoreShare(facts=facts, scope=scope, after=begin, last=after, first=first, rows=count))
            first += count
    return shares


async def _scopes(services: Services) -> AsyncIterator[str]:
    after = ""
    while page := await services.controller.scopes.list(after=after):
        for scope in page:
            if not scope.startswith("_"):
                yield scope
        after = page[-1]


async def _names(share: StoreShare, services: Services) -> list[str]:
    """The users' streams of the share, as they are now."""
    found: list[str] = []
    after = share.after
    try:
        while after < share.last and (page := await services.controller.streams.list(share.scope, after=after)):
            inside = [name for name in page if name <= share.last]
            found += [name for name in inside if not StreamName(share.scope, name).is_internal]
            after = page[-1]
    except ScopeNotFoundError:
        return []  # Deleted since it was listed, with what it had.
    return found


async def _asked(scope: str, names: list[str], services: Services) -> list[StoreLine | None]:
    """A line for each stream; None for a deleted one."""
    places = asyncio.Semaphore(AT_ONCE)

    async def line(name: str) -> StoreLine | None:
        stream = StreamName(scope, name)
        async with places:
            try:
                facts = await services.controller.retention.facts(stream)
                # To find what a subscriber holds, the store must decide again. Most streams of a fleet have no subscriber.
                subscribed = bool(facts.subscribers)
                subscribers = await services.controller.subscribers.describe(stream) if subscribed else ()
                return StoreLine(msgspec.json.encode(facts), subscribers)
            except NotFoundError:
                return None
            except RETRYABLE:
                raise
            except PenstockError as error:
                # Report a damaged stream and continue with the others.
                return StoreLine(Fault(stream, error))

    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(line(name)) for name in names]
    return [task.result() for task in asked]
