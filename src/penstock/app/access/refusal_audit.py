"""Writes refused calls into the audit stream: once a minute, as sums."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from penstock.core.access.refusals import MINUTE_MS, Reason, Refusal, RefusalSums
from penstock.model.errors import PenstockError, ThrottledError, UnauthenticatedError
from penstock.model.identity import Identity
from penstock.ports.access.authenticator import Authenticator, Presented
from penstock.ports.clock import Clock

log = logging.getLogger(__name__)

Record = Callable[[Sequence[Mapping[str, Any]]], Awaitable[None]]
"""Writes one entry for each mapping of fields, durably and in one step."""


class RefusalAudit:
    """Takes refusals from all ports of a process while the block runs. At the end of the block it writes those that
    wait.

    A caller never waits for it. If writing fails, the sums are logged instead.
    """

    def __init__(self, record: Record, clock: Clock) -> None:
        self._record = record
        self._clock = clock
        self._sums = RefusalSums()
        self._ending = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __call__(self, refusal: Refusal) -> None:
        self._sums.add(refusal, self._clock.now_ms())

    async def flush(self) -> int:
        """Write what waits; returns how many entries. If cancelled, they may or may not be written."""
        taken = self._sums.take()
        if not taken:
            return 0
        try:
            await self._record([one.as_fields() for one in taken])
        except Exception as error:
            # An unexpected error too: it must not end the task, after which nothing would be written any more.
            for one in taken:
                fields = {"refusals": one.count, "reason": one.first.reason.value, "peer": one.first.peer}
                unexpected = None if isinstance(error, PenstockError) else error
                log.error(
                    "refused calls could not be written to the audit stream",
                    extra={**fields, "error": str(error)},
                    exc_info=unexpected,
                )
            return 0
        return len(taken)

    async def _run(self) -> None:
        while not self._ending.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(MINUTE_MS / 1000):
                    await self._ending.wait()
            await self.flush()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="audit of refusals")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Not by cancelling: a write that is under way would end without its outcome.
        self._ending.set()
        if self._task is not None:
            await self._task
        await self.flush()


class AuditedAuthenticator:
    """``ports.access.Authenticator`` that reports refused credentials. Calls without credentials are not reported,
    because most of them are health checks."""

    def __init__(self, inner: Authenticator, refused: Callable[[Refusal], None]) -> None:
        self._inner = inner
        self._refused = refused

    async def identify(self, shown: Presented) -> Identity:
        try:
            return await self._inner.identify(shown)
        except (UnauthenticatedError, ThrottledError) as error:
            if shown.authorization or shown.certificate:
                self._refused(Refusal(reason=_reason(error), peer=shown.peer, call=error.message))
            raise


def _reason(error: UnauthenticatedError | ThrottledError) -> Reason:
    if isinstance(error, ThrottledError):
        return Reason.ATTEMPTS
    return Reason.EXPIRED if error.fields.get("expired") else Reason.CREDENTIALS
