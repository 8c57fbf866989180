"""The blocking API of retention: the same names as ``penstock.client.retention``, no ``await``."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.client.blocking.derived import Blocking, blocking
from penstock.client.retention import AsyncHolds, AsyncLevelPolicy, AsyncRetention
from penstock.model.retention import HoldInfo


class LevelPolicy(Blocking[AsyncLevelPolicy]):
    """The policy document of a scope or of the server: streams inherit the fields that they do not set themselves."""

    get = blocking(AsyncLevelPolicy.get)
    set = blocking(AsyncLevelPolicy.set)


class Holds(Blocking[AsyncHolds]):
    """Holds on a stream, in a scope, or in the whole store. No rule or call deletes held data. Iterating lists them."""

    list = blocking(AsyncHolds.list)

    def __iter__(self) -> Iterator[HoldInfo]:
        return iter(self.list())

    add = blocking(AsyncHolds.add)
    extend = blocking(AsyncHolds.extend)
    release = blocking(AsyncHolds.release)


class Retention(Blocking[AsyncRetention]):
    """The retention of one stream: its policy, and the planner's decisions about it. Calls raise StreamNotFoundError,
    UnavailableError."""

    get = blocking(AsyncRetention.get)
    set = blocking(AsyncRetention.set)
    effective = blocking(AsyncRetention.effective)
    plan = blocking(AsyncRetention.plan)
    explain = blocking(AsyncRetention.explain)
    run = blocking(AsyncRetention.run)
    facts = blocking(AsyncRetention.facts)
    reclaim = blocking(AsyncRetention.reclaim)
    forecast = blocking(AsyncRetention.forecast)
    undo = blocking(AsyncRetention.undo)
    undo_since = blocking(AsyncRetention.undo_since)
    evictions = blocking(AsyncRetention.evictions)

    @property
    def holds(self) -> Holds:
        """Holds on the stream."""
        return Holds(self._thread, self._inner.holds)
