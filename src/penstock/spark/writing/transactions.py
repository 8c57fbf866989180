"""How the sink begins and ends transactions, on the driver and in tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import UUID

from penstock.model.errors import (
    AlreadyExistsError,
    PenstockError,
    ScopeNotFoundError,
    StreamNotFoundError,
    TransactionNotFoundError,
    TransactionStateError,
)
from penstock.model.policies import ScalingPolicy, StreamConfig
from penstock.ports.control.transactions import Transaction, TransactionStatus
from penstock.spark.connect import Connector, Services
from penstock.spark.options import WriteOptions
from penstock.spark.worker.plan_access import access_for

log = logging.getLogger("penstock.spark")

ABORT_S = 3.0
"""How long an abort may take. It must not delay the report of the failure; a lease ends what is not aborted."""


async def opened(services: Services, options: WriteOptions, begin: Callable[[], Awaitable[Transaction]]) -> Transaction:
    """The result of ``begin``. A missing scope or stream is created first, if that is allowed."""
    try:
        return await begin()
    except (ScopeNotFoundError, StreamNotFoundError) as error:
        if not await _created(services, options, scope_exists=not isinstance(error, ScopeNotFoundError)):
            raise
    return await begin()


async def _created(services: Services, options: WriteOptions, *, scope_exists: bool) -> bool:
    """Create the stream, and its scope if there is none. False: the options do not allow it."""
    controller = services.controller
    if not options.create_stream:
        return False
    if not scope_exists or not await controller.scopes.exists(options.stream.scope):
        if not options.create_scope:
            return False
        await _unless_exists(controller.scopes.create(options.stream.scope))
    config = StreamConfig(scaling=ScalingPolicy(min_segments=options.segments))
    await _unless_exists(controller.streams.create(options.stream, config))
    return True


async def writing_access(connector: Connector, options: WriteOptions, services: Services) -> Connector:
    """How the tasks of a write connect. Where each row names its stream, they may write to what the caller may write in
    option ``scope``, or else in the store."""
    if services.plan_token is None:
        return connector
    target = options.target
    if target is not None and options.create_stream and not await services.controller.streams.exists(target):
        await _created(services, options, scope_exists=True)
    wanted = options.scope if target is None else target
    return await access_for(connector, services, [wanted], "write", valid_s=options.token_s)


async def _unless_exists(creation: Awaitable[None]) -> None:
    with suppress(AlreadyExistsError):  # another task was first
        await creation


async def abort_if_open(services: Services, options: WriteOptions, transaction: UUID) -> None:
    """Abort a transaction unless its outcome is already decided."""
    try:
        status = await services.controller.transactions.status(options.stream, transaction)
        if status is TransactionStatus.OPEN:
            await services.controller.transactions.abort(options.stream, transaction)
    except (TransactionNotFoundError, TransactionStateError, StreamNotFoundError, ScopeNotFoundError):
        log.info("nothing left to abort", extra={"transaction": str(transaction)})


async def abort_after_failure(services: Services, options: WriteOptions, transaction: UUID) -> None:
    """As ``abort_if_open``, but give up after a short time."""
    try:
        async with asyncio.timeout(ABORT_S):
            await abort_if_open(services, options, transaction)
    except (PenstockError, TimeoutError) as error:
        # The original failure matters more; the lease ends the transaction.
        log.warning("transaction is left to its lease", extra={"transaction": str(transaction), "error": str(error)})
