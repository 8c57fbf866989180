"""Forwards requests about tables to the store that has their container, and returns its answers.

Pravega's Python client asks once where a table is. Without this, its readers would stop whenever the container of their
group's table moves. Source: docs/design/0065-cluster.md, "Tables that have moved".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from penstock.codec.wire import commands as c
from penstock.codec.wire import table_commands as t
from penstock.codec.wire.frames import Command
from penstock.model.errors import ContainerOfflineError, NotConnectedError, SessionEndedError, UnavailableError
from penstock.net.dial.addresses import host_of, parse_address
from penstock.net.dial.security import DialSecurity
from penstock.net.dial.wire_dial import DialLimits, NeverSentError
from penstock.net.dial.wire_pool import ConnectionPool
from penstock.net.wire.requests import LARGE, subject_of
from penstock.net.wire.wire_errors import ILLEGAL_ARGUMENT, error_of, own_token, plain_token
from penstock.ports.control.layout import Endpoint
from penstock.ports.rng import Rng
from penstock.ports.telemetry import Telemetry

_LIMITS = DialLimits(connect_s=3.0, retry_for_s=10.0, backoff_max_s=0.5)
"""A takeover takes a few seconds, and the client waits for its answer."""
_WAIT_S = 20.0
"""A store that hangs keeps its session and its connections for a while. The client's connection is closed then."""
_AT_A_TIME, _LARGE_AT_A_TIME = 256, 8
"""Requests in flight at other stores; fewer of those whose replies may be as large as a frame. Further requests wait,
and their connections take no more requests meanwhile."""

_READS = (t.GetTableSegmentInfo, t.ReadTable, t.ReadTableKeys, t.ReadTableEntries, t.ReadTableEntriesDelta)
_ANSWERS = (
    c.SegmentCreated,
    c.SegmentDeleted,
    t.TableSegmentInfo,
    t.TableEntriesUpdated,
    t.TableKeysRemoved,
    t.TableRead,
    t.TableKeysRead,
    t.TableEntriesRead,
    t.TableEntriesDeltaRead,
    c.SegmentIsTruncated,
)
"""Replies that are passed on as they are. ``SegmentIsTruncated``: the table has another length than the request says."""


class TablePassing:
    """Implements ``net.wire.requests.PassOn``. Opened by ``open_passing``."""

    def __init__(self, is_here: Callable[[str], bool], pool: ConnectionPool) -> None:
        self._is_here = is_here
        self._pool = pool
        self._slots, self._large_slots = asyncio.Semaphore(_AT_A_TIME), asyncio.Semaphore(_LARGE_AT_A_TIME)

    async def __call__(self, command: Command) -> Command | None:
        """As the type says. The request keeps its token, which the other store verifies. Marked as one of ours, it is never
        passed on a second time."""
        segment = subject_of(command)
        if self._is_here(segment):
            return None
        token = own_token(plain_token(command.token))  # type: ignore[attr-defined]
        marked = command._replace(token=token)  # type: ignore[attr-defined]
        try:
            async with asyncio.timeout(_WAIT_S), self._large_slots if isinstance(command, LARGE) else self._slots:
                reply = await self._pool.call(
                    segment, lambda rid: marked._replace(rid=rid), repeat=isinstance(command, _READS)
                )
        except NeverSentError as error:
            raise ContainerOfflineError(
                "the store of the segment was not reached", segment=segment, reason=str(error)
            ) from error
        except TimeoutError as error:
            raise NotConnectedError("the store of the segment does not answer", segment=segment) from error
        is_plain = isinstance(reply, c.ErrorMessage) and reply.code == ILLEGAL_ARGUMENT
        if not is_plain and not isinstance(reply, _ANSWERS):
            raise error_of(reply, segment)
        answer: Command = reply._replace(rid=command.rid)  # type: ignore[attr-defined]
        return answer


@asynccontextmanager
async def open_passing(
    is_here: Callable[[str], bool],
    address_of: Callable[[str], Awaitable[str]],
    *,
    security: DialSecurity,
    rng: Rng,
    telemetry: Telemetry,
) -> AsyncIterator[TablePassing]:
    """Pass requests on until the block ends; connections are opened when they are needed.

    ``is_here``: whether this store has the segment. ``address_of``: ``HOST:PORT`` of the store that has it; UnavailableError:
    none has it now, or this is not known.
    """

    async def locate(segment: str) -> Endpoint:
        try:
            address = await address_of(segment)
        except (UnavailableError, SessionEndedError) as error:
            # As if that store did not answer: it is asked again after a pause.
            raise NeverSentError(error.message, **error.fields) from error
        return Endpoint(host=host_of(address), port=int(parse_address(address).rpartition(":")[2]))

    pool = ConnectionPool(locate, rng=rng, telemetry=telemetry, limits=_LIMITS, security=security)
    try:
        yield TablePassing(is_here, pool)
    finally:
        await pool.close()
